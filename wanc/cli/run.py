"""wanc run: a bundle, a checkpoint and prompts to videos."""

from pathlib import Path
from typing import Annotated

import typer

from wanc.cli import options
from wanc.cli.bundles import local_bundle
from wanc.cli.generate import quiet_frameworks, run_batch, run_one
from wanc.cli.terminal import note
from wanc.errors import RequestError
from wanc.processes.launch import START_SECONDS


def run_command(
    bundle: options.BundlePath,
    weights: options.Weights,
    output: options.Output,
    prompt: Annotated[str | None, typer.Option("--prompt", help="What to show.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts", help="A file of prompts, one JSON object a line: a video of each."
        ),
    ] = None,
    negative: options.Negative = None,
    image: options.FirstImage = None,
    last_image: options.LastImage = None,
    fit: options.FitName = None,
    shape: options.WhichShape = None,
    topology: options.WhichTopology = None,
    precision: options.WhichPrecision = None,
    preset: options.PresetName = None,
    steps: options.Steps = None,
    guidance: options.GuidanceScale = None,
    flow_shift: options.FlowShift = None,
    sampler: options.SamplerName = None,
    expert: options.ExpertName = None,
    seed: options.Seed = None,
    num_videos: Annotated[
        int,
        typer.Option("--num-videos", min=1, help="Videos, of seeds from --seed on."),
    ] = 1,
    form: options.FormatName = None,
    crf: options.Crf = None,
    sheet: Annotated[
        Path | None,
        typer.Option("--sheet", help="A picture (PNG) of frames of all videos, to look at."),
    ] = None,
    save_latents: Annotated[
        Path | None, typer.Option("--save-latents", help="Keep final latents, as safetensors.")
    ] = None,
    vae_ranks: options.VaeRanks = None,
    processes: options.LocalProcesses = None,
    interface: options.Interface = None,
    start_timeout: options.StartTimeout = START_SECONDS,
    stall_timeout: options.StallTimeout = None,
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
    require_signature: options.RequireSignature = None,
    json: options.Json = False,
) -> None:
    """Run a bundle: a prompt, and images, to a video.

    On every rank of the variant's topology, without a compiler."""
    quiet_frameworks()
    from wanc.run.batch import Item, writes
    from wanc.run.lines import read_lines, seeds_of
    from wanc.run.request import Guidance, LoadRequest, RunRequest, draw_seed
    from wanc.run.start import Processes, find_launch
    from wanc.run.video import format_of

    if (prompts is None) == (prompt is None and resume is None):
        raise RequestError("give one of --prompt, --prompts and --resume: say what to show")
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
    )
    request = RunRequest(
        prompt=prompt,
        negative=negative,
        image=image,
        last_image=last_image,
        fit=fit,
        preset=preset,
        steps=steps,
        guidance=None if guidance is None else Guidance.parse(guidance),
        flow_shift=flow_shift,
        sampler=sampler,
        expert=expert,
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
    if prompts is not None:
        folder = output / "video.mp4" if form is None else output / f"video.{form}"
        items = read_lines(prompts, output, request, format_of(folder, form), crf)
    else:
        items = [
            Item(
                name=str(output),
                request=request,
                output=output,
                form=format_of(output, form),
                crf=crf,
                latents=save_latents,
            )
        ]
    if len(items) == num_videos == 1 and prompts is None:
        run_one(load, how, items[0], sheet, json=json)
        return
    if save_latents or resume:
        raise RequestError("--save-latents and --resume are of one video")
    if num_videos > 1:
        drawn = draw_seed()
        if any(item.request.seed is None for item in items) and writes(find_launch(how)):
            note(f"seed {drawn} is drawn: --seed {drawn} asks for the same videos again")
        items = [each for item in items for each in seeds_of(item, num_videos, drawn)]
    run_batch(load, how, items, sheet, json=json)
