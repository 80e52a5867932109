"""Prompts from a file: one JSON object a line, each a video with its own settings.

Knows requests and names of files. A line that is wrong is an item with an error, not the end.
"""

from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from wanc.errors import RequestError
from wanc.run.batch import Item
from wanc.run.outputs import record_beside
from wanc.run.request import Guidance, RunRequest
from wanc.run.video import Format

MOST_LINES = 100_000
MOST_BYTES = 64 << 20


class Line(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a line may say. What it leaves out is as the command line has it."""

    prompt: str
    negative: str | None = None
    seed: int | None = None
    steps: int | None = None
    guidance: float | str | None = None
    """A number, or as ``high=4,low=3``."""
    flow_shift: float | None = None
    sampler: str | None = None
    expert: str | None = None
    preset: str | None = None
    image: str | None = None
    """A path, from the file's folder."""
    last_image: str | None = None
    fit: str | None = None
    output: str | None = None
    """A name in the folder of outputs; the number of the line if there is none."""


def read_lines(
    path: Path, folder: Path, common: RunRequest, form: Format, crf: int | None
) -> list[Item]:
    """The items of a file of prompts, whose videos go to a folder; raises RequestError."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise RequestError(f"{path}: larger than {MOST_BYTES >> 20} MiB")
    lines = data.removeprefix(BOM_UTF8).splitlines()
    numbered = [(k, line) for k, line in enumerate(lines, start=1) if line.strip()]
    if not 1 <= len(numbered) <= MOST_LINES:
        raise RequestError(f"{path}: {len(numbered)} prompts; needs 1 to {MOST_LINES}")
    items = [_item(k, line, path, folder, common, form) for k, line in numbered]
    return [replace(item, crf=crf) for item in _apart(items)]


def _item(
    number: int, line: bytes, path: Path, folder: Path, common: RunRequest, form: Format
) -> Item:
    name, suffix = f"line {number}", "" if form == "png" else f".{form}"
    output = folder / f"{number:04d}{suffix}"
    try:
        said = msgspec.json.decode(line, type=Line)
        request = _request(said, path.parent, common)
        if said.output is not None:
            output = folder / _plain_name(said.output, suffix)
    except (msgspec.MsgspecError, RequestError) as error:
        return Item(name=name, request=common, output=output, form=form, error=f"{error}")
    return Item(name=name, request=request, output=output, form=form)


def _request(said: Line, folder: Path, common: RunRequest) -> RunRequest:
    values: dict[str, Any] = {
        name: value
        for name, value in msgspec.structs.asdict(said).items()
        if value is not None and name != "output"
    }
    if said.guidance is not None:
        values["guidance"] = Guidance.parse(str(said.guidance))
    for name in ("image", "last_image"):
        if name in values:
            values[name] = folder / values[name]
    return replace(common, **values)


def _plain_name(name: str, suffix: str) -> str:
    """A file's name that leads nowhere else; raises RequestError."""
    if name != Path(name).name or name in ("", ".", "..") or "\0" in name:
        raise RequestError(f"output {name!r}: needs the plain name of a file")
    if not name.endswith(suffix):
        raise RequestError(f"output {name!r}: the videos of this run end in {suffix}")
    return name


def _apart(items: Sequence[Item]) -> list[Item]:
    """The items; where two would write one file, the second has an error."""
    first: dict[Path, str] = {}
    found = []
    for item in items:
        names = item.output, record_beside(item.output)
        taken = next((first[name] for name in names if name in first), None)
        if item.error is None and taken is not None:
            item = replace(item, error=f"output {item.output.name}: {taken} writes that name")
        if item.error is None:
            first |= dict.fromkeys(names, item.name)
        found.append(item)
    return found


def seeds_of(item: Item, count: int, drawn: int) -> list[Item]:
    """So many items in place of one: seeds from its own, or from one drawn, on.

    Each stands in the name of its video. One with an error stays as it is.
    """
    if item.error is not None:
        return [item]
    first = drawn if item.request.seed is None else item.request.seed
    found = []
    for seed in range(first, first + count):
        output = item.output.with_name(f"{item.output.stem}-{seed}{item.output.suffix}")
        request, name = replace(item.request, seed=seed), f"{item.name}, seed {seed}"
        found.append(replace(item, name=name, request=request, output=output))
    return found
