"""Runs a bundle to files: one video, or many from one load.

Knows runners, requests and files. Loads no framework: a supervisor needs none.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
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
        outputs = opened.enter_context(_outputs(item)) if writes(launch) else None
        _, config = choose(load)
        check_request(item.request, config)
        if outputs:
            _read_files(item.request, config)
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
    each as it ends. Under a launcher process 0 has the items and their outcomes, and the others
    none. Raises what loading raises, and what ends the processes of a launch.
    """
    launch = find_launch(processes)
    bundle, config = choose(load)
    made_with = _MadeWith(bundle=bundle.digest, config=config, weights=_files_of(load.weights))
    mine = items if writes(launch) else ()
    outcomes = {item.name: outcome for item in mine if (outcome := _ended(item, made_with))}
    for outcome in outcomes.values():
        told(outcome)
    todo = [item for item in mine if item.name not in outcomes]
    with ExitStack() as opened:
        runners = _Runners(lambda: start(load, config, launch, processes, progress))
        opened.push(runners.close)
        if launch is not None:
            plain = runners.running().agree("batch", lambda: json.dumps(as_plain(todo)))
            todo = from_plain(json.loads(plain), list[Item])
        for number, item in enumerate(todo, start=1):
            if writes(launch):
                progress.note(f"{item.name}, {number} of {len(todo)}: {item.output}")
            outcomes[item.name] = _run(runners, item, made_with)
            if writes(launch):
                told(outcomes[item.name])
    return [outcomes[item.name] for item in mine]


@dataclass(frozen=True, slots=True, kw_only=True)
class _MadeWith:
    """What all items of a batch are made with."""

    bundle: str
    """The bundle's digest."""
    config: VariantConfig
    weights: tuple[tuple[str, int, int], ...]
    """Names of the checkpoint's files, their sizes in bytes and their times in nanoseconds."""

    def asked(self, item: Item) -> str:
        """The digest of all that an item's video depends on; raises RequestError."""
        images = [of_bytes(data) for data in _read_files(item.request, self.config)]
        return of_json(
            {
                **as_plain(replace(item.request, image=None, last_image=None)),
                "images": images,
                "crf": item.crf,
                "bundle": self.bundle,
                "variant": self.config.variant.texts(),
                "weights": self.weights,
            }
        )


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


def _run(runners: _Runners, item: Item, made_with: _MadeWith) -> Outcome:
    """Generate one item; an error is its outcome, where the next item can still be run."""
    with ExitStack() as opened:
        reserved: list[tuple[Outputs, str]] = []

        def reserve() -> str:
            """Why the item's files cannot be, if they cannot: then no process runs it."""
            try:
                reserved.append((opened.enter_context(_outputs(item)), made_with.asked(item)))
            except (RequestError, RunError) as error:
                return str(error)
            return ""

        try:
            runner = runners.running()
            if refused := runner.agree("files", reserve):
                raise RunError(refused)
            if not reserved:
                runner.run(item.request, Files())
                return Outcome(item=item, state="made")
            ((outputs, asked),) = reserved
            with _latents_told(outputs):
                record = outputs.commit(runner.run(item.request, outputs.files) | {ASKED: asked})
            return Outcome(item=item, state="made", record=record)
        except (RequestError, RunError) as error:
            if runners.over:
                raise
            return Outcome(item=item, state="failed", error=str(error))


def _ended(item: Item, made_with: _MadeWith) -> Outcome | None:
    """The outcome of an item that is not to be run: it cannot be asked for, or it is there."""
    try:
        if item.error:
            raise RequestError(item.error)
        check_request(item.request, made_with.config)
        asked = made_with.asked(item)
    except RequestError as error:
        return Outcome(item=item, state="failed", error=str(error))
    record = _record_of(item)
    if record.get(ASKED) != asked or not item.output.exists():
        return None
    return Outcome(item=item, state="kept", record=record)


def _files_of(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of all files but hidden ones, which downloaders keep for themselves.

    A checkpoint is too large to be read for its digest.
    """
    found = []
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        if file.is_file() and not any(part.startswith(".") for part in name.parts):
            state = file.stat()
            found.append((str(name), state.st_size, state.st_mtime_ns))
    return tuple(found)


def _record_of(item: Item) -> dict[str, Any]:
    """The record beside an item's video; nothing where there is none that can be read."""
    try:
        record = json.loads(record_beside(item.output).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _read_files(request: RunRequest, config: VariantConfig) -> list[bytes]:
    """The images of a request, which fit; raises RequestError where a file of it is of no use."""
    for what, path in (("steps", request.resume), ("latents", request.latents)):
        if path is not None and not path.is_file():
            raise RequestError(f"{path}: no such file of saved {what}")
    images = [read_image(path) for path in request.images]
    fit_images(request.images, images, config.variant.shape, request.fit)
    return images


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
    """An error after the latents were saved says where they are; so does a lack of memory."""
    try:
        yield
    except (RunError, MemoryError) as error:
        ours = isinstance(error, RunError)
        said = f"{error}" if ours else f"memory ran out: {error}"
        if path := outputs.written_latents:
            said += f"\nits latents are in {path}: `wanc decode --latents {path}` goes on from them"
        raise (type(error) if ours else RunError)(said) from error


def writes(launch: Launch | None) -> bool:
    """Whether this process is the one that writes files."""
    return launch is None or launch.process == 0
