"""wanc tiny: a random checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from wanc.cli.terminal import emit, note


def tiny_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write it.")],
    seed: Annotated[int, typer.Option("--seed", help="Weights are drawn from it.")] = 0,
    shards: Annotated[
        int, typer.Option("--shards", min=1, help="Files of each model, with an index.")
    ] = 1,
) -> None:
    """Write a tiny random checkpoint.

    Two experts, in diffusers layout: diffusers itself loads and runs it."""
    from wanc.tiny import write_tiny_checkpoint

    write_tiny_checkpoint(directory, seed=seed, shards=shards, on_progress=note)
    emit(str(directory))
