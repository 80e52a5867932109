"""wanc tiny: a random checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from wanc.cli.terminal import emit, note
from wanc.errors import RequestError


def tiny_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write it.")],
    task: Annotated[
        str, typer.Option("--task", help="t2v, i2v, or ti2v: one expert and the residual VAE.")
    ] = "t2v",
    seed: Annotated[int, typer.Option("--seed", help="Weights are drawn from it.")] = 0,
    shards: Annotated[
        int, typer.Option("--shards", min=1, help="Files of each model, with an index.")
    ] = 1,
) -> None:
    """Write a tiny random checkpoint.

    In diffusers layout: diffusers itself loads and runs it."""
    from wanc.spec.presets import TINY_MODELS
    from wanc.tiny import write_tiny_checkpoint

    model = next((m for name, m in TINY_MODELS.items() if name == task), None)
    if model is None:
        raise RequestError(f"task {task!r} is not known; known are {', '.join(TINY_MODELS)}")
    write_tiny_checkpoint(directory, model=model, seed=seed, shards=shards, on_progress=note)
    emit(str(directory))
