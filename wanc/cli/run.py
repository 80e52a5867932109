"""wanc run: a bundle, a checkpoint and a prompt to a video."""

import os
from pathlib import Path
from typing import Annotated

import typer

from wanc.cli import options
from wanc.cli.terminal import Terminal, emit, emit_json, note


def run_command(
    bundle: Annotated[Path, typer.Option("--bundle", help="The compiled bundle.")],
    weights: Annotated[Path, typer.Option("--weights", help="A checkpoint directory.")],
    prompt: Annotated[str, typer.Option("--prompt", help="What to show.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The mp4 to write.")],
    negative: Annotated[
        str | None,
        typer.Option("--negative", help="What not to show. [default: the official text]"),
    ] = None,
    shape: Annotated[
        str | None, typer.Option("--shape", help="Which variant, where there are several.")
    ] = None,
    topology: Annotated[
        str | None, typer.Option("--topology", help="Which variant, where there are several.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", help="Which variant, where there are several.")
    ] = None,
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
    profile: Annotated[
        bool, typer.Option("--profile", help="Generate twice; times are of the warm one.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Run a bundle: a prompt to a video.

    On every rank of the variant's topology, without a compiler."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # XLA greets every device otherwise
    from wanc.run.pipeline import generate
    from wanc.run.request import Guidance, RunRequest

    request = RunRequest(
        bundle=bundle,
        weights=weights,
        prompt=prompt,
        output=output,
        negative=negative,
        shape=shape,
        topology=topology,
        precision=precision,
        steps=steps,
        guidance=None if guidance is None else Guidance.parse(guidance),
        flow_shift=flow_shift,
        seed=seed,
        save_latents=save_latents,
        vae_ranks=vae_ranks,
        profile=profile,
    )
    record = generate(request, Terminal())
    if json:
        emit_json(record.to_json())
        return
    times = ", ".join(f"{name} {value:.1f} s" for name, value in record.seconds.items())
    note(f"{times}; {record.compile_count} compilations")
    emit(str(output))
