"""wanc run: a bundle, a checkpoint and a prompt to a video."""

import os
from pathlib import Path
from typing import Annotated

import typer

from wanc.cli import options
from wanc.cli.terminal import Terminal, emit, emit_json, note
from wanc.errors import RequestError
from wanc.processes.launch import START_SECONDS


def run_command(
    bundle: Annotated[Path, typer.Option("--bundle", help="The compiled bundle.")],
    weights: Annotated[
        Path, typer.Option("--weights", help="A checkpoint directory, prepared or not.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The mp4 to write.")],
    prompt: Annotated[str | None, typer.Option("--prompt", help="What to show.")] = None,
    negative: Annotated[
        str | None,
        typer.Option("--negative", help="What not to show. [default: the official text]"),
    ] = None,
    shape: options.WhichShape = None,
    topology: options.WhichTopology = None,
    precision: options.WhichPrecision = None,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Denoising steps. [default: the model's]")
    ] = None,
    guidance: Annotated[
        str | None,
        typer.Option(
            "--guidance", help="4 for both experts, or high=4,low=3. [default: the model's]"
        ),
    ] = None,
    flow_shift: Annotated[
        float | None, typer.Option("--flow-shift", help="[default: the model's]")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="[default: drawn once, and printed]")
    ] = None,
    save_latents: Annotated[
        Path | None, typer.Option("--save-latents", help="Write final latents as safetensors.")
    ] = None,
    vae_ranks: Annotated[
        int | None, typer.Option("--vae-ranks", min=1, help="Ranks that decode. [default: all]")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            min=1,
            help="Local processes that share the ranks. [default: what suits the target]",
        ),
    ] = None,
    interface: Annotated[
        str | None,
        typer.Option(
            "--interface",
            help="Network interface, or its address, that sockets bind. [default: loopback, or the "
            "one that leads to MASTER_ADDR]",
        ),
    ] = None,
    start_timeout: Annotated[
        float, typer.Option("--start-timeout", min=1, help="Seconds for processes to meet.")
    ] = START_SECONDS,
    stall_timeout: Annotated[
        float | None,
        typer.Option(
            "--stall-timeout",
            min=1,
            help="Seconds for any one step. [default: from the plan and the steps seen]",
        ),
    ] = None,
    check_ranks: Annotated[
        bool, typer.Option("--check-ranks", help="Compare all ranks' results after each step.")
    ] = False,
    checkpoint_every: Annotated[
        int | None,
        typer.Option("--checkpoint-every", min=1, help="Save every so many steps, to resume."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", help="Go on from saved steps, with their prompts and values."),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Generate twice; times are of the warm one.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Run a bundle: a prompt to a video.

    On every rank of the variant's topology, without a compiler."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # XLA greets every device otherwise
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from wanc.run.request import Guidance, LoadRequest, RunRequest
    from wanc.run.start import Processes, run_to_file

    if prompt is None and resume is None:
        raise RequestError("--prompt is missing: say what to show")
    load = LoadRequest(
        bundle=bundle,
        weights=weights,
        shape=shape,
        topology=topology,
        precision=precision,
        vae_ranks=vae_ranks,
    )
    request = RunRequest(
        prompt=prompt,
        negative=negative,
        steps=steps,
        guidance=None if guidance is None else Guidance.parse(guidance),
        flow_shift=flow_shift,
        seed=seed,
        profile=profile,
        check_ranks=check_ranks,
        resume=resume,
        save_every=checkpoint_every,
    )
    how = Processes(
        count=processes,
        interface=interface,
        start_seconds=start_timeout,
        stall_seconds=stall_timeout,
    )
    record = run_to_file(load, request, how, Terminal(), output=output, latents=save_latents)
    if record is None:
        return
    if json:
        emit_json(record)
        return
    times = ", ".join(f"{name} {value:.1f} s" for name, value in record["seconds"].items())
    note(f"{times}; {record['compile_count']} compilations")
    emit(str(output))
