"""wanc decode: saved latents to a video."""

from pathlib import Path
from typing import Annotated

import typer

from wanc.cli import options
from wanc.cli.bundles import local_bundle
from wanc.cli.generate import quiet_frameworks, run_one
from wanc.processes.launch import START_SECONDS


def decode_command(
    bundle: options.BundlePath,
    weights: options.Weights,
    latents: Annotated[
        Path, typer.Option("--latents", help="Final latents that a run saved, or left behind.")
    ],
    output: options.Output,
    shape: options.WhichShape = None,
    topology: options.WhichTopology = None,
    precision: options.WhichPrecision = None,
    form: options.FormatName = None,
    crf: options.Crf = None,
    vae_ranks: options.VaeRanks = None,
    processes: options.LocalProcesses = None,
    interface: options.Interface = None,
    start_timeout: options.StartTimeout = START_SECONDS,
    stall_timeout: options.StallTimeout = None,
    require_signature: options.RequireSignature = None,
    json: options.Json = False,
) -> None:
    """Decode the latents of a run to a video.

    After a run that failed once it had them, or for another format; on any topology."""
    quiet_frameworks()
    from wanc.run.batch import Item
    from wanc.run.request import LoadRequest, RunRequest
    from wanc.run.start import Processes
    from wanc.run.video import format_of

    load = LoadRequest(
        bundle=local_bundle(
            bundle, "executables", (shape, topology, precision), signers=require_signature or ()
        ),
        weights=weights,
        shape=shape,
        topology=topology,
        precision=precision,
        vae_ranks=vae_ranks,
        signers=tuple(require_signature or ()),
        decode_only=True,
    )
    item = Item(
        name=str(output),
        request=RunRequest(latents=latents),
        output=output,
        form=format_of(output, form),
        crf=crf,
    )
    how = Processes(
        count=processes,
        interface=interface,
        start_seconds=start_timeout,
        stall_seconds=stall_timeout,
    )
    run_one(load, how, item, None, json=json)
