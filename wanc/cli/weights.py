"""wanc weights: a checkpoint prepared for the ranks of a bundle."""

from pathlib import Path
from typing import Annotated

import typer

from wanc.cli import options
from wanc.cli.terminal import Terminal, emit, emit_json, note
from wanc.spec.checkpoint import checkpoint_directory
from wanc.units import size

weights_app = typer.Typer(
    name="weights", help="Prepare a checkpoint for the ranks of a bundle.", rich_markup_mode=None
)


@weights_app.command("shard")
def shard_command(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT",
            help="A directory in diffusers layout; toy-t2v and toy-i2v come with wanc.",
            parser=checkpoint_directory,
        ),
    ],
    bundle: Annotated[Path, typer.Option("--bundle", help="The bundle that will run it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The directory to write.")],
    shape: options.WhichShape = None,
    topology: options.WhichTopology = None,
    precision: options.WhichPrecision = None,
    json: options.Json = False,
) -> None:
    """Write a checkpoint whose files hold each rank's shards.

    In the dtypes that programs take, to be mapped by wanc run --weights without a copy."""
    from msgspec import to_builtins

    from wanc.run.prepare import prepare_weights

    record = prepare_weights(
        bundle,
        checkpoint,
        output,
        shape=shape,
        topology=topology,
        precision=precision,
        progress=Terminal(),
    )
    if json:
        emit_json({"weights": str(output), **to_builtins(record)})
        return
    read, written = size(record.read.copied_bytes), size(record.written_bytes)
    note(f"{record.variant}: read {read}, wrote {written}")
    emit(str(output))
