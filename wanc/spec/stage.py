"""Stage files of vLLM-Omni: what a diffusion stage asks for, in wanc's words.

Reads YAML of the form ``stage_args``, with ``runtime`` and ``engine_args``, and of the newer form
``stages``, where a stage's settings stand side by side. Says of every field what became of it, and
reports every problem at once. Does not know what fields mean, and follows no other file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from wanc.errors import RefusedError, RequestError
from wanc.spec.sets import Request
from wanc.spec.stage_fields import KNOWN, NESTED, contradictions, meaning, request_of, run_options

FORMS = ("stage_args", "stages")
MODEL_LEFT_OPEN = "wan2.2-t2v-a14b unless --model names another"
"""What is planned where a stage fits several models."""

MOST_BYTES = 1 << 16
"""Of a stage file. Published ones have less than a tenth."""
MOST_DEPTH = 16
SHOWN_CHARACTERS = 40

Field = tuple[str, str, Any]
"""Where a person finds it in the file; its name; text, a list, a mapping, or None for null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Became:
    """What became of one field."""

    field: str
    value: str
    """As one line that a terminal can show."""
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A diffusion stage in wanc's words."""

    request: Request
    run_options: tuple[str, ...]
    """Options and values of ``wanc run`` for the same sampling."""
    became: tuple[Became, ...]
    """Of every field of the stage, in the order of the file, then of those beside the stages."""


def read_stage(path: Path) -> Stage:
    """Read a stage file's one diffusion stage.

    Raises RequestError, or RefusedError where all that is wrong is what wanc does not have.
    """
    fields = _fields(path, _document(path))
    values = _checked(path, fields)
    request = request_of(values)
    became = [
        Became(field=name, value=shown(value), meaning=meaning(name, value))
        for _, name, value in fields
    ]
    if request.model is None:
        became.append(Became(field="model", value="not said", meaning=MODEL_LEFT_OPEN))
    return Stage(
        request=request,
        run_options=tuple(run_options(values)),
        became=tuple(became),
    )


def _document(path: Path) -> dict[str, Any]:
    """Mappings, lists and texts of a file that anyone may have written; raises RequestError."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise yaml.YAMLError(f"larger than {MOST_BYTES} bytes, which no stage file is")
        text = data.decode("utf-8")
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):  # lazily: a deep one takes a minute
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_DEPTH or isinstance(event, yaml.AliasEvent):
                raise yaml.YAMLError(f"has aliases, *name, or is more than {MOST_DEPTH} deep")
        value = _plain(yaml.compose(text, yaml.SafeLoader))
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise RequestError(f"{path}: cannot be read: {_line(str(error))[:200]}") from error
    return value if isinstance(value, dict) else {}


def _plain(node: Any) -> Any:
    """A node's value, where every scalar but null is text; raises YAMLError."""
    if isinstance(node, yaml.SequenceNode):
        return [_plain(entry) for entry in node.value]
    if not isinstance(node, yaml.MappingNode):
        return None if node is None or node.tag.endswith(":null") else node.value.strip() or None
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = shown(_plain(key_node))
        if key in mapping:
            raise yaml.YAMLError(f"line {key_node.start_mark.line + 1}: {key} stands twice")
        mapping[key] = _plain(value_node)
    return mapping


def _fields(path: Path, document: dict[str, Any]) -> list[Field]:
    """Fields of the one diffusion stage, then those beside the stages that it leaves open."""
    stages = [
        (stage, f"{form}[{number}].")
        for form in FORMS
        for number, stage in enumerate(document.pop(form, None) or ())
        if isinstance(stage, dict) and _is_diffusion(stage)
    ]
    if len(stages) != 1:
        forms = " or ".join(FORMS)
        raise RequestError(f"{path}: needs one diffusion stage in {forms}, and has {len(stages)}")
    fields = list(_below(*stages[0]))
    said = {name for _, name, _ in fields}
    return fields + [field for field in _below(document, "") if field[1] not in said]


def _is_diffusion(stage: dict[str, Any]) -> bool:
    """Some files leave the type out: only a diffusion stage has one of these."""
    if stage.get("stage_type") is not None:
        return bool(stage["stage_type"] == "diffusion")
    settings = stage.get("engine_args") or stage
    return "model_class_name" in settings or "parallel_config" in settings


def _below(mapping: dict[str, Any], before: str) -> Iterator[Field]:
    for name, value in mapping.items():
        if name in NESTED and isinstance(value, dict):
            yield from _below(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", name, value


def _checked(path: Path, fields: list[Field]) -> dict[str, Any]:
    """Values of the fields that wanc knows, by name; raises with every problem."""
    given = [(w, name, value) for w, name, value in fields if name in KNOWN and value is not None]
    places = {name: where for where, name, _ in reversed(given)}
    values: dict[str, Any] = {}
    problems: dict[str, RequestError | RefusedError] = {}
    for where, name, value in given:
        try:
            meaning(name, value)
            if values.setdefault(name, value) != value:
                raise RequestError(f"is not {shown(values[name])}, as {places[name]} says")
        except (RequestError, RefusedError) as error:
            problems[where] = type(error)(f"{shown(value)} {error}")
    for name, why in contradictions(values, places.keys()):
        problems[places[name]] = RequestError(why)
    lines = [f"{path}: {where}: {problem}" for where, problem in problems.items()]
    if len(lines) > 1:
        lines.insert(0, f"{len(lines)} problems in the stage file:")
    if lines:
        refused = all(isinstance(problem, RefusedError) for problem in problems.values())
        raise (RefusedError if refused else RequestError)("\n  ".join(lines))
    return values


def shown(value: Any) -> str:
    """A value on one short line, which does nothing to a terminal; lists are not looked into."""
    if isinstance(value, dict | list):
        return "1 entry" if len(value) == 1 else f"{len(value)} entries"
    text = "null" if value is None else _line(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def _line(text: str) -> str:
    joined = " ".join(text.split())
    return joined if joined.isprintable() else ascii(joined)
