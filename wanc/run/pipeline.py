"""The run story: a bundle, a checkpoint and a prompt become a video. Never compiles.

Reads from top to bottom. Has no branch on target, model or rank.
"""

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wanc.bundle.store import open_bundle
from wanc.digest import of_bytes
from wanc.errors import WeightsError
from wanc.plan.text_encoder import EMBEDDING_NAMES
from wanc.plan.tiles import Tile
from wanc.progress import Progress
from wanc.run import feeds
from wanc.run.guards import check_finite
from wanc.run.load import fit_checkpoint, load, select_variant
from wanc.run.outputs import Outputs
from wanc.run.prompt import PromptTokens, Tokenizer
from wanc.run.record import RunRecord, Stopwatch
from wanc.run.request import RunRequest, sampling_values
from wanc.run.sampler import SamplingValues, draw_noise, guide, make_scheduler
from wanc.run.session import Session, Values
from wanc.run.tiles import stitch
from wanc.spec.model import Expert
from wanc.spec.topology import GUIDANCE_BRANCHES

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one generation made."""

    prompt_embeddings: Array
    """[branches, T, D] fp32."""
    latents: Tensor
    """[1, C, F, H, W] fp32, as the sampler leaves them."""
    pixels: Array
    """[1, 3, frames, rows, columns] fp32 in [-1, 1]."""


def generate(request: RunRequest, progress: Progress) -> RunRecord:
    """Run a request and write its video and its record."""
    clock = Stopwatch()
    with ExitStack() as opened:
        outputs = opened.enter_context(Outputs(request.output, request.save_latents))
        with clock.stage("load"):
            bundle = open_bundle(request.bundle)
            selected = select_variant(
                bundle,
                request.weights,
                shape=request.shape,
                topology=request.topology,
                precision=request.precision,
            )
            config = fit_checkpoint(selected, request.weights)
            values = sampling_values(request, config)
            progress.note(f"variant {config.variant}; seed {values.seed}")
            session = opened.enter_context(closing(load(bundle, config, request.weights)))
            if session.casts:
                casts = [f"{n} tensors cast from {what}" for what, n in session.casts.items()]
                progress.note(f"weights: {'; '.join(casts)}")
            tokenizer = Tokenizer(request.weights)
            prepare(session, progress, request.vae_ranks)
        made = sample(session, tokenizer, request, values, clock, progress)
        if request.profile:
            clock.restart()
            made = sample(session, tokenizer, request, values, clock, progress)
        with clock.stage("write"):
            outputs.fill(made.pixels, values.fps, made.latents.numpy())
        record = RunRecord.of(bundle, request, values, tokenizer, session, clock)
        outputs.commit(record.to_json())
        return record


def prepare(session: Session, progress: Progress, vae_ranks: int | None = None) -> None:
    """Load every executable and every weight onto its ranks."""
    stages = session.config.schedule.stages
    tile_ranks = sorted(set(decoding_ranks(session, vae_ranks)))
    with progress.task("load", len(stages)) as task:
        for stage in stages:
            for rank in tile_ranks if session.is_single(stage) else [None]:
                session.prepare(stage.name, None if rank is None else (rank,))
            task.advance(stage.name)


def sample(
    session: Session,
    tokenizer: Tokenizer,
    request: RunRequest,
    values: SamplingValues,
    clock: Stopwatch,
    progress: Progress,
) -> Generation:
    """Encode the prompts, denoise, decode."""
    state: Values = {}
    with clock.stage("encode_text"), torch.no_grad():
        prompts = [tokenizer(request.prompt), tokenizer(request.negative_prompt(session.config))]
        embeddings = encode_prompts(session, prompts, values, state)
    with clock.stage("denoise"), torch.no_grad():
        latents = denoise(session, values, state, clock, progress)
    state.clear()
    with clock.stage("decode"), torch.no_grad():
        pixels = decode(session, latents, progress, request.vae_ranks)
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


def denoise(
    session: Session, values: SamplingValues, state: Values, clock: Stopwatch, progress: Progress
) -> Tensor:
    """From noise to latents, one scheduler step at a time."""
    config, model = session.config, session.config.model
    grid = config.geometry
    size = (grid.latent_frames, grid.latent_rows, grid.latent_columns)
    latents = draw_noise(values.seed, (1, model.transformer.out_channels, *size))
    clock.noise_digest = of_bytes(latents.numpy().tobytes())
    scheduler = make_scheduler(values)
    cos, sin = feeds.rope_tables(model.transformer, grid)
    session.feed("rope_cos", cos)
    session.feed("rope_sin", sin)
    if config.tokens.masked:
        session.feed("key_mask", feeds.key_mask(config.tokens, config.mesh.topology.cp))
    with progress.task("denoise", values.steps) as task:
        for step, timestep in enumerate(scheduler.timesteps, start=1):
            expert = values.expert_at(float(timestep), model)
            with clock.step(expert):
                noise = predict_noise(session, latents, float(timestep), expert, values, state)
            check_finite(noise, f"step.{expert}", f"noise at step {step} of {values.steps}")
            guided = guide(noise, values.guidance(expert))
            latents = scheduler.step(guided, timestep, latents, return_dict=False)[0]
            check_finite(latents, f"step.{expert}", f"latents after step {step} of {values.steps}")
            task.advance(f"step {step} {expert}")
    return latents


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
) -> Array:
    """Every tile on its rank, one latent frame at a time, stitched to whole frames."""
    config = session.config
    plan, shape = config.tiles, config.variant.shape
    z = feeds.vae_latents(latents, config.model.vae).numpy()
    jobs = list(zip(plan.tiles, decoding_ranks(session, vae_ranks), strict=True))
    at_once = len({rank for _, rank in jobs})
    parts: list[Array] = []
    with progress.task("decode", len(jobs) * z.shape[2]) as task:
        for start in range(0, len(jobs), at_once):
            parts += decode_wave(session, jobs[start : start + at_once], z, task.advance)
    for k, part in enumerate(parts, start=1):
        check_finite(part, "decode", f"pixels of tile {k} of {len(parts)}")
    stride = config.model.vae.spatial_stride
    return stitch(parts, plan, stride, shape.width_px, shape.height_px)


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
