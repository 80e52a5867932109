"""The run story: a loaded variant and a prompt become a video. Never compiles.

Reads from top to bottom. Has no branch on target, model or rank: every process of a run goes
through it, with the ranks that it hosts.
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from wanc.arrays import Array
from wanc.digest import of_bytes
from wanc.plan.transformer import GIVEN
from wanc.processes.world import World, check_agreement
from wanc.progress import Progress
from wanc.run import feeds, vae
from wanc.run.agreement import check_latents, check_noise
from wanc.run.condition import Condition, condition_frames, condition_of
from wanc.run.guards import check_finite, check_pixels
from wanc.run.job import Job, Loaded, about, as_saved, images_digest, make_job
from wanc.run.load import choose, fit_checkpoint, load, only_decoding
from wanc.run.observe import CONDITION, LATENTS, PIXELS, TEXT
from wanc.run.outputs import Files
from wanc.run.prompt import Tokenizer
from wanc.run.record import RunRecord
from wanc.run.request import (
    LoadRequest,
    RunRequest,
    SamplingValues,
    warnings,
)
from wanc.run.sampler import draw_noise, guide, load_scheduler, make_scheduler, state_of
from wanc.run.session import Session, Values
from wanc.run.text import branches, encode_prompts
from wanc.run.tiles import clamp
from wanc.spec.model import Expert

GIVEN_TIMESTEP = 0.0
"""Of tokens that are given: they are as at the end of denoising."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one generation made."""

    latents: Tensor
    """[1, C, F, H, W] fp32, as the decoder takes them but for its mean and deviation."""
    pixels: Array | None
    """[1, 3, frames, rows, columns] fp32 in [-1, 1]; None but in process 0."""


def load_variant(request: LoadRequest, world: World, progress: Progress) -> Loaded:
    """Choose a bundle's variant, and put it and a checkpoint's weights on the ranks."""
    started = time.monotonic()
    bundle, selected = choose(request)
    config = fit_checkpoint(selected, request.weights)
    if request.decode_only:
        config = only_decoding(config)
    progress.note(f"variant {config.variant}")
    check_agreement(world, "bundle and variant", f"{bundle.digest} {config.variant}")
    with ExitStack() as undo:
        session = load(bundle, config, request.weights, world)
        if world.processes == 1:  # else all leave together, or end
            undo.callback(session.close)
        if session.casts:
            casts = [f"{n} tensors cast from {what}" for what, n in session.casts.items()]
            progress.note(f"weights: {'; '.join(casts)}")
        tokenizer = None if request.decode_only else Tokenizer(request.weights)
        if not request.decode_only:
            load_scheduler()
        prepare(session, progress, request.vae_ranks)
        undo.pop_all()
    return Loaded(
        bundle=bundle,
        session=session,
        tokenizer=tokenizer,
        vae_ranks=request.vae_ranks,
        seconds=time.monotonic() - started,
    )


def generate(loaded: Loaded, request: RunRequest, files: Files, progress: Progress) -> RunRecord:
    """Make a video of a request, and write it; the record says how it was made."""
    try:
        job = make_job(loaded, request, files, progress)
        for said in (f"seed {job.values.seed}", *warnings(job.values, loaded.session.config)):
            progress.note(said)
        return make_video(loaded, job)
    finally:
        loaded.session.forget()


def make_video(loaded: Loaded, job: Job) -> RunRecord:
    """From prompts to files."""
    made = sample(loaded, job)
    if job.request.profile:
        job.clock.restart()
        made = sample(loaded, job)
    if made.pixels is not None:
        with job.clock.stage("write"), job.progress.task("write", 1) as task:
            job.files.write(made.pixels, job.values.fps, about(loaded, job), made.latents.numpy())
            task.advance()
    return RunRecord.of(
        loaded.bundle,
        loaded.session,
        loaded.tokenizer,
        job.request,
        job.values,
        job.clock,
        tuple(image.record for image in job.images),
    )


def prepare(session: Session, progress: Progress, vae_ranks: int | None = None) -> None:
    """Load every executable and every weight onto its ranks."""
    stages = session.config.schedule.stages
    tile_ranks = sorted(set(vae.tile_ranks(session, vae_ranks)))
    with progress.task("load", len(stages)) as task:
        for stage in stages:
            for rank in tile_ranks if session.is_single(stage) else [None]:
                session.prepare(stage.name, None if rank is None else (rank,), report=task.doing)
            task.advance(stage.name)


@torch.no_grad()
def sample(loaded: Loaded, job: Job) -> Generation:
    """Encode the prompts and the images, denoise, decode."""
    session, shape = loaded.session, loaded.session.config.variant.shape
    latents = final_latents(loaded, job)
    if not (session.world.process or job.request.latents):
        job.files.save_latents(latents.numpy(), as_saved(session, job, latents).header(job.values))
    with job.clock.stage("decode"):
        pixels = vae.decode(session, latents, job.progress, loaded.vae_ranks)
        if pixels is not None:
            check_pixels(
                pixels,
                frames=shape.frames,
                height_px=shape.height_px,
                width_px=shape.width_px,
            )
            pixels = clamp(pixels)
            job.observe(PIXELS, 0, pixels)
    return Generation(latents=latents, pixels=pixels)


def final_latents(loaded: Loaded, job: Job) -> Tensor:
    """Latents [1, C, F, H, W] of a prompt and of images, or those that an earlier run saved."""
    if job.request.latents and job.saved:
        job.saved.check_whole(loaded.session.config, job.values)
        job.clock.noise_digest = job.saved.noise
        job.clock.latents_digest = check_latents(loaded.session, job.saved.latents, "the last step")
        return job.saved.latents
    session, clock, progress = loaded.session, job.clock, job.progress
    assert loaded.tokenizer is not None, "more than decoding was loaded"
    state: Values = {}
    with clock.stage("encode_text"), progress.task("encode text", 1) as task:
        texts = (job.request.prompt, job.request.negative)
        prompts = [loaded.tokenizer(text or "") for text in texts]
        job.observe(TEXT, 0, encode_prompts(session, prompts, job.values, state))
        task.advance()
    condition = Condition()
    if job.images:
        with clock.stage("encode_image"):
            condition = encode_images(loaded, job)
    with clock.stage("denoise"):
        latents = denoise(session, job, condition, state)
    state.clear()
    return latents


def encode_images(loaded: Loaded, job: Job) -> Condition:
    """The job's images as what the experts see beside the noise, or in its place."""
    config = loaded.session.config
    frames = condition_frames(job.images, config)
    latents = vae.encode(loaded.session, frames, job.progress, loaded.vae_ranks)
    job.observe(CONDITION, 0, latents.numpy())
    return condition_of(latents, config, with_last=len(job.images) > 1)


def denoise(session: Session, job: Job, condition: Condition, state: Values) -> Tensor:
    """From noise to latents, one scheduler step at a time."""
    model, values = session.config.model, job.values
    latents, scheduler, done = begin(session, job)
    feed_positions(session, condition)
    with job.progress.task("denoise", values.steps - done) as task:
        for step, timestep in enumerate(scheduler.timesteps[done:], start=done + 1):
            expert = values.expert_at(float(timestep), model)
            at = f"step {step} of {values.steps}"
            with job.clock.step(expert):
                seen = condition.seen(latents)
                noise = predict_noise(session, seen, float(timestep), expert, values, state)
            check_finite(noise, f"step.{expert}", f"noise at {at}")
            guided = guide(noise, values.guidance(expert))
            latents = scheduler.step(guided, timestep, latents, return_dict=False)[0]
            check_finite(latents, f"step.{expert}", f"latents after {at}")
            if job.request.check_ranks:
                wanted = branches(values, expert)
                check_noise(session, f"step.{expert}", state, branches=wanted, at=at)
                check_latents(session, latents, at)
            save_step(session, job, step, latents, scheduler)
            job.observe(LATENTS, step, latents.numpy())
            task.advance(f"step {step} {expert}")
    latents = condition.finished(latents)
    job.clock.latents_digest = check_latents(session, latents, "the last step")
    return latents


def feed_positions(session: Session, condition: Condition) -> None:
    """What is the same in all steps: tokens' places, pads, and which tokens are given."""
    config = session.config
    cos, sin = feeds.rope_tables(config.model.transformer, config.geometry)
    session.feed("rope_cos", cos)
    session.feed("rope_sin", sin)
    if config.tokens.masked:
        session.feed("key_mask", feeds.key_mask(config.tokens, config.mesh.topology.cp))
    if config.model.task == "ti2v":
        given = 0 if condition.first is None else condition.first.shape[2]
        session.feed(GIVEN, feeds.given_tokens(config.geometry, given))


def begin(session: Session, job: Job) -> tuple[Tensor, Any, int]:
    """Latents, scheduler and how many steps are done: none, or those of a saved run."""
    if job.saved:
        job.clock.noise_digest, job.clock.resumed_after = job.saved.noise, job.saved.step
        scheduler = job.saved.check(session.config, job.values, images_digest(job.images))
        return job.saved.latents, scheduler, job.saved.step
    latents = draw_noise(job.values.seed, session.config.latents_shape)
    job.clock.noise_digest = of_bytes(latents.numpy().tobytes())
    return latents, make_scheduler(job.values), 0


def save_step(session: Session, job: Job, step: int, latents: Tensor, scheduler: Any) -> None:
    """Save what resuming needs, where this step is one to save and this process the one to."""
    every = job.request.save_every
    if not every or step % every or session.world.process or not job.files.saved:
        return
    state = state_of(scheduler, tuple(latents.shape))
    saved = replace(as_saved(session, job, latents), step=step, scheduler=state)
    saved.write(job.files, job.values)


def predict_noise(
    session: Session,
    seen: Tensor,
    timestep: float,
    expert: Expert,
    values: SamplingValues,
    state: Values,
) -> Tensor:
    """The expert's noise [branches, C, F, H, W] for each wanted guidance branch, in fp32."""
    config, model = session.config, session.config.model.transformer
    timesteps = [timestep, GIVEN_TIMESTEP] if config.model.task == "ti2v" else [timestep]
    session.feed("tokens", feeds.tokens_of(seen, model))
    session.feed("timestep", feeds.timestep_sinusoids(timesteps, model.frequency_width))
    wanted = branches(values, expert)
    session.run(f"step.{expert}", state, branches=wanted)
    tokens = session.results(f"step.{expert}", state, branches=wanted)
    real = torch.from_numpy(tokens[: len(wanted), : config.tokens.tokens])
    return feeds.latent_of(real, model, config.geometry)
