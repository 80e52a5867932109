"""The run story: a loaded variant and a prompt become a video. Never compiles.

Reads from top to bottom. Has no branch on target, model or rank: every process of a run goes
through it, with the ranks that it hosts.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wanc.bundle.store import Bundle
from wanc.digest import of_bytes
from wanc.errors import WeightsError
from wanc.plan.text_encoder import EMBEDDING_NAMES
from wanc.plan.tiles import Tile
from wanc.processes.world import World, check_agreement
from wanc.progress import Progress
from wanc.run import feeds
from wanc.run.agreement import check_latents, check_noise
from wanc.run.guards import check_finite
from wanc.run.load import choose, fit_checkpoint, load
from wanc.run.outputs import Files
from wanc.run.prompt import PromptTokens, Tokenizer
from wanc.run.record import RunRecord, Stopwatch
from wanc.run.request import (
    LoadRequest,
    RunRequest,
    SamplingValues,
    draw_seed,
    sampling_values,
)
from wanc.run.sampler import draw_noise, guide, load_scheduler, make_scheduler, state_of
from wanc.run.saved import Saved, read_bytes, read_saved, resumed
from wanc.run.session import Session, Values
from wanc.run.tiles import stitch
from wanc.spec.model import Expert
from wanc.spec.topology import GUIDANCE_BRANCHES

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A variant and a checkpoint on their ranks, ready to generate again and again."""

    bundle: Bundle
    session: Session
    tokenizer: Tokenizer
    vae_ranks: int | None
    """Most ranks that decode tiles; None for as many as the plan deals tiles to."""
    seconds: float
    """What loading took."""

    def close(self) -> None:
        """Let go of the ranks."""
        self.session.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One generation: what is asked, what follows from it, and where it reports."""

    request: RunRequest
    values: SamplingValues
    files: Files
    clock: Stopwatch
    progress: Progress
    saved: Saved | None = None
    """Steps that are behind it already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one generation made."""

    prompt_embeddings: Array
    """[branches, T, D] fp32, of the guidance branches that this process serves."""
    latents: Tensor
    """[1, C, F, H, W] fp32, as the sampler leaves them."""
    pixels: Array | None
    """[1, 3, frames, rows, columns] fp32 in [-1, 1]; None but in process 0."""


def load_variant(request: LoadRequest, world: World, progress: Progress) -> Loaded:
    """Choose a bundle's variant, and put it and a checkpoint's weights on the ranks."""
    started = time.monotonic()
    bundle, selected = choose(request)
    config = fit_checkpoint(selected, request.weights)
    progress.note(f"variant {config.variant}")
    check_agreement(world, "bundle and variant", f"{bundle.digest} {config.variant}")
    with ExitStack() as undo:
        session = load(bundle, config, request.weights, world)
        if world.processes == 1:  # else all leave together, or end
            undo.callback(session.close)
        if session.casts:
            casts = [f"{n} tensors cast from {what}" for what, n in session.casts.items()]
            progress.note(f"weights: {'; '.join(casts)}")
        tokenizer = Tokenizer(request.weights)
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
    job = make_job(loaded, request, files, progress)
    progress.note(f"seed {job.values.seed}")
    record = make_video(loaded, job)
    loaded.session.forget()
    return record


def make_video(loaded: Loaded, job: Job) -> RunRecord:
    """From prompts to files."""
    made = sample(loaded, job)
    if job.request.profile:
        job.clock.restart()
        made = sample(loaded, job)
    if made.pixels is not None:
        with job.clock.stage("write"), job.progress.task("write", 1) as task:
            job.files.write(made.pixels, job.values.fps, made.latents.numpy())
            task.advance()
    return RunRecord.of(
        loaded.bundle, loaded.session, loaded.tokenizer, job.request, job.values, job.clock
    )


def make_job(loaded: Loaded, request: RunRequest, files: Files, progress: Progress) -> Job:
    """The request with all that it leaves open, the same in every process."""
    world, config = loaded.session.world, loaded.session.config
    saved = None
    if request.resume:
        path = request.resume
        saved = read_saved(world.spread("resume", lambda: read_bytes(path)), path)
        request = resumed(request, saved)
    elif request.seed is None:
        request = replace(request, seed=int(world.tell("seed", lambda: str(draw_seed()))))
    request = replace(request, negative=request.negative_prompt(config))
    values = sampling_values(request, config)
    asked = f"{request.prompt!r}, {request.negative!r}, {values}"
    check_agreement(world, "prompts and sampling values", asked)
    return Job(
        request=request,
        values=values,
        files=files,
        clock=Stopwatch(loaded.seconds),
        progress=progress,
        saved=saved,
    )


def prepare(session: Session, progress: Progress, vae_ranks: int | None = None) -> None:
    """Load every executable and every weight onto its ranks."""
    stages = session.config.schedule.stages
    tile_ranks = sorted(set(decoding_ranks(session, vae_ranks)))
    with progress.task("load", len(stages)) as task:
        for stage in stages:
            for rank in tile_ranks if session.is_single(stage) else [None]:
                session.prepare(stage.name, None if rank is None else (rank,), report=task.doing)
            task.advance(stage.name)


def sample(loaded: Loaded, job: Job) -> Generation:
    """Encode the prompts, denoise, decode."""
    session, clock, progress = loaded.session, job.clock, job.progress
    state: Values = {}
    with clock.stage("encode_text"), torch.no_grad(), progress.task("encode text", 1) as task:
        texts = (job.request.prompt, job.request.negative)
        prompts = [loaded.tokenizer(text or "") for text in texts]
        embeddings = encode_prompts(session, prompts, job.values, state)
        task.advance()
    with clock.stage("denoise"), torch.no_grad():
        latents = denoise(session, job, state)
    state.clear()
    with clock.stage("decode"), torch.no_grad():
        pixels = decode(session, latents, progress, loaded.vae_ranks)
    return Generation(prompt_embeddings=embeddings, latents=latents, pixels=pixels)


def encode_prompts(
    session: Session, prompts: list[PromptTokens], values: SamplingValues, state: Values
) -> Array:
    """Prompt embeddings of every wanted branch, and each expert's keys and values of them."""
    session.feed("token_embeddings", token_embeddings(session, prompts))
    session.feed("text_mask", np.stack([prompt.mask for prompt in prompts]))
    wanted = {branch for e in session.config.model.experts for branch in branches(values, e)}
    session.run("encode_text", state, branches=wanted)
    embeddings = session.results("encode_text", state, branches=wanted)
    check_finite(embeddings, "text encoding", "prompt embeddings")
    for expert in session.config.model.experts:
        session.run(f"context.{expert}", state, branches=branches(values, expert))
    return embeddings


def branches(values: SamplingValues, expert: Expert) -> range:
    """Guidance branches of an expert: without guidance only the conditioned one."""
    return range(GUIDANCE_BRANCHES if values.guidance(expert) > 1 else 1)


def token_embeddings(session: Session, prompts: list[PromptTokens]) -> Array:
    """Rows [branches, T, D] of the embedding table, read from the mapped file."""
    component = session.components["text_encoder"]
    name = next(name for name in EMBEDDING_NAMES if name in component.tensors)
    ids = sorted({i for prompt in prompts for i in prompt.ids})
    vocabulary = session.config.model.text_encoder.vocabulary
    if ids[-1] >= vocabulary:
        raise WeightsError(f"the tokenizer gives id {ids[-1]}; the table has {vocabulary} rows")
    rows = {i: component.read(name, [slice(i, i + 1), slice(None)])[0] for i in ids}
    return np.stack([[rows[i] for i in prompt.ids] for prompt in prompts]).astype(np.float32)


def denoise(session: Session, job: Job, state: Values) -> Tensor:
    """From noise to latents, one scheduler step at a time."""
    config, model, values = session.config, session.config.model, job.values
    latents, scheduler, done = begin(session, job)
    cos, sin = feeds.rope_tables(model.transformer, config.geometry)
    session.feed("rope_cos", cos)
    session.feed("rope_sin", sin)
    if config.tokens.masked:
        session.feed("key_mask", feeds.key_mask(config.tokens, config.mesh.topology.cp))
    with job.progress.task("denoise", values.steps - done) as task:
        for step, timestep in enumerate(scheduler.timesteps[done:], start=done + 1):
            expert = values.expert_at(float(timestep), model)
            at = f"step {step} of {values.steps}"
            with job.clock.step(expert):
                noise = predict_noise(session, latents, float(timestep), expert, values, state)
            check_finite(noise, f"step.{expert}", f"noise at {at}")
            guided = guide(noise, values.guidance(expert))
            latents = scheduler.step(guided, timestep, latents, return_dict=False)[0]
            check_finite(latents, f"step.{expert}", f"latents after {at}")
            if job.request.check_ranks:
                wanted = branches(values, expert)
                check_noise(session, f"step.{expert}", state, branches=wanted, at=at)
                check_latents(session, latents, at)
            save_step(session, job, step, latents, scheduler)
            task.advance(f"step {step} {expert}")
    job.clock.latents_digest = check_latents(session, latents, "the last step")
    return latents


def begin(session: Session, job: Job) -> tuple[Tensor, Any, int]:
    """Latents, scheduler and how many steps are done: none, or those of a saved run."""
    if job.saved:
        job.clock.noise_digest, job.clock.resumed_after = job.saved.noise, job.saved.step
        return job.saved.latents, job.saved.check(session.config, job.values), job.saved.step
    latents = draw_noise(job.values.seed, session.config.latents_shape)
    job.clock.noise_digest = of_bytes(latents.numpy().tobytes())
    return latents, make_scheduler(job.values), 0


def save_step(session: Session, job: Job, step: int, latents: Tensor, scheduler: Any) -> None:
    """Save what resuming needs, where this step is one to save and this process the one to."""
    every = job.request.save_every
    if not every or step % every or session.world.process or not job.files.saved:
        return
    saved = Saved(
        step=step,
        latents=latents,
        scheduler=state_of(scheduler, tuple(latents.shape)),
        sampler=job.values.sampler,
        request=job.request,
        noise=job.clock.noise_digest,
        variant=session.config.variant.texts(),
    )
    saved.write(job.files, job.values)


def predict_noise(
    session: Session,
    latents: Tensor,
    timestep: float,
    expert: Expert,
    values: SamplingValues,
    state: Values,
) -> Tensor:
    """The expert's noise [branches, C, F, H, W] for each wanted guidance branch, in fp32."""
    config, model = session.config, session.config.model.transformer
    session.feed("tokens", feeds.tokens_of(latents, model))
    session.feed("timestep", feeds.timestep_sinusoid(timestep, model.frequency_width))
    wanted = branches(values, expert)
    session.run(f"step.{expert}", state, branches=wanted)
    tokens = session.results(f"step.{expert}", state, branches=wanted)
    real = torch.from_numpy(tokens[: len(wanted), : config.tokens.tokens])
    return feeds.latent_of(real, model, config.geometry)


def decoding_ranks(session: Session, most: int | None) -> list[int]:
    """The rank of each tile, dealt in turn to no more than so many ranks."""
    planned = session.config.tiles.ranks
    used = min(most or len(planned), len(set(planned)))
    return [k % used for k in range(len(planned))]


def decode(
    session: Session, latents: Tensor, progress: Progress, vae_ranks: int | None = None
) -> Array | None:
    """Every tile on its rank, one latent frame at a time; process 0 stitches whole frames."""
    config = session.config
    plan, shape = config.tiles, config.variant.shape
    z = feeds.vae_latents(latents, config.model.vae).numpy()
    ranks = decoding_ranks(session, vae_ranks)
    here = [k for k, rank in enumerate(ranks) if session.here((rank,))]
    at_once = len({ranks[k] for k in here}) or 1
    parts: list[Array | None] = [None] * len(ranks)
    with progress.task("decode", len(here) * z.shape[2]) as task:
        for start in range(0, len(here), at_once):
            wave = here[start : start + at_once]
            jobs = [(plan.tiles[k], ranks[k]) for k in wave]
            for k, part in zip(wave, decode_wave(session, jobs, z, task.advance), strict=True):
                check_finite(part, "decode", f"pixels of tile {k + 1} of {len(parts)}")
                parts[k] = part
    gathered = session.world.gather(parts, [session.process_of(rank) for rank in ranks])
    if gathered is None:
        return None
    stride = config.model.vae.spatial_stride
    return stitch(gathered, plan, stride, shape.width_px, shape.height_px)


def decode_wave(
    session: Session, jobs: list[tuple[Tile, int]], z: Array, report: Callable[[str], None]
) -> list[Array]:
    """Tiles on ranks of their own, at once: each latent frame is begun on every rank, then read."""
    states: list[Values] = [{} for _ in jobs]
    pixels: list[list[Array]] = [[] for _ in jobs]
    for frame in range(z.shape[2]):
        part = "rest" if frame else "first"
        stages = [
            f"vae_decode_{part}{session.config.tiles.suffix(tile.rows, tile.columns)}"
            for tile, _ in jobs
        ]
        for (tile, rank), state, stage in zip(jobs, states, stages, strict=True):
            rows = slice(tile.row, tile.row + tile.rows)
            columns = slice(tile.column, tile.column + tile.columns)
            latent = z[:, :, frame : frame + 1, rows, columns]
            session.feed(f"latent_{tile.rows}x{tile.columns}", latent)
            session.run(stage, state, branches=(0,), ranks=(rank,))
        for (_, rank), state, stage, found in zip(jobs, states, stages, pixels, strict=True):
            found.append(session.results(stage, state, branches=(0,), ranks=(rank,)))
            report(f"{stage} on rank {rank}")
    return [np.concatenate(found, axis=2) for found in pixels]
