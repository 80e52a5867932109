"""Runs a bundle to files: one video, or many from one load.

Knows runners, requests and files. Loads no framework: a supervisor needs none.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wanc.bundle.config import VariantConfig
from wanc.digest import of_bytes, of_json
from wanc.errors import RequestError, RunError
from wanc.processes.launch import Launch
from wanc.progress import Progress
from wanc.run.image import fit_images, read_image
from wanc.run.load import choose
from wanc.run.outputs import Files, Outputs, record_beside, saved_beside
from wanc.run.request import LoadRequest, RunRequest, as_plain, check_request, from_plain
from wanc.run.start import Processes, Runner, closes, find_launch, start
from wanc.run.video import Format

ASKED = "asked"
"""Of a record: the digest of what was asked for, by which a batch finds what it has made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One video of a batch."""

    name: str
    """As people are told of it, as ``line 3``."""
    request: RunRequest
    output: Path
    form: Format
    crf: int | None = None
    latents: Path | None = None
    """Where final latents are kept, if they are."""
    error: str | None = None
    """Why it cannot be asked for at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of an item."""

    item: Item
    state: Literal["made", "kept", "failed"]
    """``kept``: an earlier batch had made it."""
    record: dict[str, Any] | None = None
    error: str | None = None


def run_to_file(
    load: LoadRequest, processes: Processes, progress: Progress, item: Item
) -> dict[str, Any] | None:
    """One generation to a file and its record, which is returned; None but in process 0.

    Before anything is loaded, files are reserved and values are checked; files are named once all
    are whole.
    """
    launch = find_launch(processes)
    with ExitStack() as opened:
        outputs = opened.enter_context(_outputs(item)) if _writes(launch) else None
        _, config = choose(load)
        check_request(item.request, config)
        if outputs:
            _asked(item.request, config)
        runner = start(load, config, launch, processes, progress)
        opened.push(closes(runner))
        if outputs is None:
            runner.run(item.request, Files())
            return None
        with _latents_told(outputs):
            return outputs.commit(runner.run(item.request, outputs.files))


def run_many(
    load: LoadRequest,
    processes: Processes,
    progress: Progress,
    items: Sequence[Item],
    told: Callable[[Outcome], None],
) -> list[Outcome]:
    """Generate every item from one load, and go on after one that fails.

    An item whose file and record an earlier batch made of the same request is kept. told hears of
    each as it ends. Under a launcher process 0 has the items and their outcomes. Raises what
    loading raises, and what ends the processes of a launch.
    """
    launch = find_launch(processes)
    bundle, config = choose(load)
    ended = [_ended(item, config, bundle.digest) for item in items] if _writes(launch) else []
    todo = [item for item, outcome in zip(items, ended, strict=False) if outcome is None]
    for outcome in filter(None, ended):
        told(outcome)
    if not todo and launch is None:
        return [outcome for outcome in ended if outcome]
    made: dict[str, Outcome] = {}
    with ExitStack() as opened:
        runners = _Runners(lambda: start(load, config, launch, processes, progress))
        opened.push(runners.close)
        plain = runners.running().agree("batch", lambda: json.dumps(as_plain(todo)))
        wanted = from_plain(json.loads(plain), list[Item])
        for number, item in enumerate(wanted, start=1):
            progress.note(f"{item.name}, {number} of {len(wanted)}: {item.output}")
            made[item.name] = _run(runners, item, config, writes=_writes(launch))
            told(made[item.name])
    return [outcome or made[item.name] for item, outcome in zip(items, ended, strict=True)]


@dataclass(slots=True)
class _Runners:
    """One runner after another: one that an error has ended is followed by a new one."""

    start: Callable[[], Runner]
    _runner: Runner | None = None

    def running(self) -> Runner:
        """A runner that is loaded."""
        if self._runner is None or not self._runner.alive:
            self._runner = self.start()
        return self._runner

    @property
    def over(self) -> bool:
        """Whether an error has ended the runner, and there can be no other."""
        return not (self._runner is None or self._runner.alive or self._runner.replaceable)

    def close(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Let go of the ranks."""
        if self._runner is not None:
            self._runner.close(error)


def _run(runners: _Runners, item: Item, config: VariantConfig, *, writes: bool) -> Outcome:
    """Generate one item; an error is its outcome, where the next item can still be run."""
    with ExitStack() as opened:
        try:
            if not writes:
                runners.running().run(item.request, Files())
                return Outcome(item=item, state="made")
            outputs = opened.enter_context(_outputs(item))
            with _latents_told(outputs):
                record = runners.running().run(item.request, outputs.files)
                record = outputs.commit(record | {ASKED: _asked(item.request, config)})
            return Outcome(item=item, state="made", record=record)
        except (RequestError, RunError) as error:
            if runners.over:
                raise
            return Outcome(item=item, state="failed", error=str(error))


def _ended(item: Item, config: VariantConfig, bundle: str) -> Outcome | None:
    """The outcome of an item that is not to be run: it cannot be asked for, or it is there."""
    try:
        if item.error:
            raise RequestError(item.error)
        check_request(item.request, config)
        asked = _asked(item.request, config)
    except RequestError as error:
        return Outcome(item=item, state="failed", error=str(error))
    record = _record_of(item)
    if record.get(ASKED) != asked or record.get("bundle") != bundle or not item.output.exists():
        return None
    return Outcome(item=item, state="kept", record=record)


def _record_of(item: Item) -> dict[str, Any]:
    """The record beside an item's video; nothing where there is none that can be read."""
    try:
        record = json.loads(record_beside(item.output).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _asked(request: RunRequest, config: VariantConfig) -> str:
    """The digest of a request and of its files, which are read and fitted; raises RequestError."""
    for what, path in (("steps", request.resume), ("latents", request.latents)):
        if path is not None and not path.is_file():
            raise RequestError(f"{path}: no such file of saved {what}")
    images = [read_image(path) for path in request.images]
    fit_images(request.images, images, config.variant.shape, request.fit)
    return of_json({**as_plain(request), "images": [of_bytes(data) for data in images]})


def _outputs(item: Item) -> Outputs:
    resume, saved = item.request.resume, saved_beside(item.output)
    resumes = resume is not None and resume.resolve() == saved.resolve()
    return Outputs(
        item.output,
        form=item.form,
        crf=item.crf,
        latents=item.latents,
        saves=item.request.save_every is not None or resumes,
    )


@contextmanager
def _latents_told(outputs: Outputs) -> Iterator[None]:
    """An error after the latents were saved says where they are."""
    try:
        yield
    except RunError as error:
        path = outputs.written_latents
        if path is None:
            raise
        raise type(error)(
            f"{error}\nits latents are in {path}: `wanc decode --latents {path}` goes on from them"
        ) from error


def _writes(launch: Launch | None) -> bool:
    return launch is None or launch.process == 0
