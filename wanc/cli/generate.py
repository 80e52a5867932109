"""What run and decode share: one video or a batch of them, and what people are told of them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from wanc.cli.terminal import Terminal, emit, emit_json, note, table
from wanc.errors import RunError
from wanc.units import count

if TYPE_CHECKING:
    from wanc.run.batch import Item, Outcome
    from wanc.run.request import LoadRequest
    from wanc.run.start import Processes

_MOST_NAMES = 5
"""Of failed videos in one line."""


def quiet_frameworks() -> None:
    """XLA greets every device otherwise, and torch's store every peer."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def run_one(
    load: "LoadRequest", how: "Processes", item: "Item", sheet: Path | None, *, json: bool
) -> None:
    """One video to its file."""
    from wanc.run.batch import Outcome, run_to_file

    _check_sheet(sheet, how)
    record = run_to_file(load, how, Terminal(), item)
    if record is None:
        return
    if sheet:
        _write_sheet(sheet, [Outcome(item=item, state="made", record=record)])
    if json:
        emit_json(record)
        return
    times = ", ".join(f"{name} {value:.1f} s" for name, value in record["seconds"].items())
    note(f"{times}; {record['compile_count']} compilations")
    emit(str(item.output))


def run_batch(
    load: "LoadRequest",
    how: "Processes",
    items: "Sequence[Item]",
    sheet: Path | None,
    *,
    json: bool,
) -> None:
    """Many videos from one load, a summary of them, and a sheet; raises RunError if any failed.

    Programs have the summary as their one JSON document, and then the exit code alone.
    """
    from wanc.run.batch import run_many
    from wanc.run.video import check_crf

    check_crf(items[0].form, items[0].crf)
    folder = items[0].output.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made: {error.strerror}") from error
    _check_sheet(sheet, how)
    outcomes = run_many(load, how, Terminal(), items, _tell)
    if not outcomes:
        return
    if sheet:
        _write_sheet(sheet, outcomes)
    if json:
        emit_json([_plain(outcome) for outcome in outcomes])
    else:
        _show(outcomes)
    failed = [outcome.item.name for outcome in outcomes if outcome.state == "failed"]
    if failed:
        said = _failures(failed, len(outcomes))
        if not json:
            raise RunError(said)
        note(said)
        raise typer.Exit(RunError.exit_code)


def _failures(names: list[str], videos: int) -> str:
    named = ", ".join(names[:_MOST_NAMES])
    if len(names) > _MOST_NAMES:
        named += f" and {len(names) - _MOST_NAMES} more"
    return (
        f"{len(names)} of {count(videos, 'video')} failed ({named}); the same command makes those "
        "that are missing, and keeps the others"
    )


def _check_sheet(sheet: Path | None, how: "Processes") -> None:
    """Raise RunError where the sheet cannot be written: better now than after all videos."""
    from wanc.files import Reserved
    from wanc.run.batch import writes
    from wanc.run.outputs import as_run_error
    from wanc.run.start import find_launch

    if sheet and writes(find_launch(how)):
        with as_run_error(sheet), Reserved(sheet):
            pass


def _tell(outcome: "Outcome") -> None:
    if outcome.state == "failed":
        note(f"{outcome.item.name}: {outcome.error}")


def _show(outcomes: "Sequence[Outcome]") -> None:
    rows = []
    for outcome in outcomes:
        record = outcome.record or {}
        seconds = record.get("seconds", {}).get("total")
        said = " ".join((outcome.error or record.get("prompt", "")).split())
        rows.append(
            (
                outcome.item.output.name,
                outcome.state,
                str(record.get("sampling", {}).get("seed", "")),
                "" if seconds is None else f"{seconds:.1f} s",
                _cut(said, 36),
            )
        )
    table("Videos", ("video", "state", "seed", "time", "prompt, or what failed"), rows)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _plain(outcome: "Outcome") -> dict[str, Any]:
    return {
        "name": outcome.item.name,
        "output": str(outcome.item.output),
        "state": outcome.state,
        "error": outcome.error,
        "record": outcome.record,
    }


def _write_sheet(path: Path, outcomes: "Sequence[Outcome]") -> None:
    from wanc.run.sheet import SheetRow, few_frames, write_sheet
    from wanc.run.video import read_frames

    rows = []
    for outcome in outcomes:
        record = outcome.record or {}
        frames = None
        if outcome.error is None:
            frames = few_frames(read_frames(outcome.item.output, outcome.item.form))
        seed = record.get("sampling", {}).get("seed")
        caption = outcome.item.request.prompt or record.get("prompt", "")
        rows.append(
            SheetRow(
                caption=caption if seed is None else f"{caption} (seed {seed})",
                frames_FHWC=frames,
                error=outcome.error,
            )
        )
    write_sheet(path, rows)
    note(f"sheet {path}")
