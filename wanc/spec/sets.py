"""Shape sets: YAML files that declare the variants of one model, checked whole.

Every problem of a file is reported at once, with the file and the key.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from wanc.errors import RequestError
from wanc.spec.shape import Shape
from wanc.spec.target import PLACEMENTS, PRECISIONS
from wanc.spec.topology import Topology
from wanc.spec.variant import ATTENTIONS, TILE_GRIDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A compile request as given: by flags, by a set, or by a set that flags override.

    None stands for what was not given.
    """

    model: str | None = None
    shapes: tuple[str, ...] = ()
    topologies: tuple[str, ...] = ()
    precision: str | None = None
    placement: str | None = None
    target: str | None = None
    blocks_per_program: int | None = None
    attention: str | None = None
    vae_tiles: str | None = None

    def over(self, base: "Request") -> "Request":
        """This request, with the base's values where it gives none."""
        given = {key: getattr(self, key) for key in Request.__dataclass_fields__}
        return Request(
            **{
                key: getattr(base, key) if value in (None, ()) else value
                for key, value in given.items()
            }
        )


_LISTS = {"shapes": Shape.parse, "topologies": Topology.parse}
_CHOICES: dict[str, tuple[str, ...]] = {
    "precision": PRECISIONS,
    "placement": PLACEMENTS,
    "attention": ATTENTIONS,
    "vae_tiles": TILE_GRIDS,
}
_KEYS = tuple(Request.__dataclass_fields__)
_CONSTRUCTOR_ERRORS = (ValueError, KeyError, AttributeError)
"""What PyYAML lets through for a scalar that is not of its tag, as the date 2001-99-99."""


def read_set(path: Path) -> Request:
    """Read a shape set; raises RequestError with every problem."""
    try:
        text = path.read_text(encoding="utf-8")
        root, value = yaml.compose(text, yaml.SafeLoader), yaml.safe_load(text)
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, *_CONSTRUCTOR_ERRORS, RecursionError) as error:
        raise RequestError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict) or not isinstance(root, yaml.MappingNode):
        raise RequestError(f"{path}: needs keys and values, among them shapes")
    problems = [problem for key in value for problem in _problems(key, value[key])]
    count = Counter(key.value for key, _ in root.value)
    problems += [f"{key}: stands {count[key]} times" for key in _KEYS if count[key] > 1]
    problems += ["shapes: missing"] if "shapes" not in value else []
    if problems:
        lines = "\n  ".join(f"{path}: {problem}" for problem in problems)
        raise RequestError(f"{len(problems)} problems in the shape set:\n  {lines}")
    given: dict[str, Any] = {
        key: tuple(entry) if key in _LISTS else entry for key, entry in value.items()
    }
    return Request(**given)


def _problems(key: Any, value: Any) -> list[str]:
    if key not in _KEYS:
        return [f"{key}: not a key; known are {', '.join(_KEYS)}"]
    if key in _LISTS:
        return _list_problems(key, value)
    if key in _CHOICES and value not in _CHOICES[key]:
        return [f"{key}: {value!r} is not one of {', '.join(_CHOICES[key])}"]
    if key == "blocks_per_program":
        ok = type(value) is int and value > 0
        return [] if ok else [f"{key}: {value!r} is not a positive whole number"]
    return [] if isinstance(value, str) else [f"{key}: {value!r} is not text"]


def _list_problems(key: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not value:
        return [f"{key}: {value!r} is not a list with entries"]
    problems = []
    for i, entry in enumerate(value):
        try:
            _LISTS[key](str(entry))
        except RequestError as error:
            problems.append(f"{key}[{i}]: {error}")
    return problems
