"""What became of a stage file of vLLM-Omni, for people and for programs."""

import shlex
from typing import Any

import msgspec

from wanc.cli.terminal import emit, table
from wanc.spec.stage import Stage


def print_stage(stage: Stage) -> None:
    """What a stage file became."""
    rows = [(became.field, became.value, became.meaning) for became in stage.became]
    table("Stage file", ("field", "value", "becomes"), rows)
    if stage.run_options:
        emit(f"wanc run {shlex.join(stage.run_options)}\n")


def stage_json(stage: Stage | None) -> dict[str, Any]:
    """The stage as a part of a command's JSON; nothing where there is none."""
    return {"stage": msgspec.to_builtins(stage)} if stage else {}
