"""The VAE over its tiles: pixels to latents, and latents to pixels.

Knows tiles, latent frames and the ranks that they are dealt to. Does not know what the programs
compute, or where pixels come from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wanc.plan.schedule import tile_feed
from wanc.plan.tiles import Tile
from wanc.progress import Progress
from wanc.run import feeds
from wanc.run.guards import check_finite
from wanc.run.session import Session, Values
from wanc.run.tiles import stitch

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """One pass over all tiles: which programs, on what, and how it is reported."""

    kind: str
    """``vae_encode`` or ``vae_decode``."""
    frames: Sequence[Array]
    """Of each latent frame, what the programs take of it: the whole picture."""
    grain: int
    """Rows and columns of these for one of the tiles'."""
    what: str
    """What the programs give, for people."""


def encode(
    session: Session, frames: Sequence[Array], progress: Progress, vae_ranks: int | None
) -> Tensor:
    """Pixels of each latent frame [1, 3, 1 or 4, h, w] to latents [1, C, F, H, W], everywhere.

    Latents are the mean of what the encoder gives, normalised as the sampler has them, in fp32.
    """
    config = session.config
    stride, grid = config.model.vae.spatial_stride, config.geometry
    made = _Pass(kind="vae_encode", frames=frames, grain=stride, what="latents")
    parts = _run(session, made, progress, vae_ranks, "encode image")
    shape = (1, 2 * config.model.vae.z_channels, len(frames), grid.latent_rows, grid.latent_columns)

    def whole() -> bytes:
        assert parts is not None, "process 0 gathers the tiles"
        return stitch(parts, config.tiles, grain=1, px_per_latent=stride).tobytes()

    spread = session.world.spread("condition latents", whole)
    moments = torch.from_numpy(np.frombuffer(spread, np.float32).reshape(shape).copy())
    return feeds.sampler_latents(moments.chunk(2, dim=1)[0], config.model.vae)


def decode(
    session: Session, latents: Tensor, progress: Progress, vae_ranks: int | None = None
) -> Array | None:
    """Latents [1, C, F, H, W] to pixels [1, 3, frames, h, w] in process 0, None elsewhere.

    Pixels are as the tiles blend, not yet clamped.
    """
    config = session.config
    z = feeds.vae_latents(latents, config.model.vae).numpy()
    frames = [z[:, :, frame : frame + 1] for frame in range(z.shape[2])]
    made = _Pass(kind="vae_decode", frames=frames, grain=1, what="pixels")
    parts = _run(session, made, progress, vae_ranks, "decode")
    if parts is None:
        return None
    stride = config.model.vae.spatial_stride
    return stitch(parts, config.tiles, grain=stride, px_per_latent=stride)


def tile_ranks(session: Session, most: int | None) -> list[int]:
    """The rank of each tile, dealt in turn to no more than so many ranks."""
    planned = session.config.tiles.ranks
    used = min(most or len(planned), len(set(planned)))
    return [k % used for k in range(len(planned))]


def _run(
    session: Session, made: _Pass, progress: Progress, vae_ranks: int | None, name: str
) -> list[Array] | None:
    """Every tile on its rank, one latent frame at a time; what all give, in process 0."""
    tiles, ranks = session.config.tiles.tiles, tile_ranks(session, vae_ranks)
    here = [k for k, rank in enumerate(ranks) if session.here((rank,))]
    at_once = len({ranks[k] for k in here}) or 1
    parts: list[Array | None] = [None] * len(ranks)
    with progress.task(name, len(here) * len(made.frames)) as task:
        for start in range(0, len(here), at_once):
            wave = here[start : start + at_once]
            jobs = [(tiles[k], ranks[k]) for k in wave]
            for k, part in zip(wave, _run_wave(session, made, jobs, task.advance), strict=True):
                check_finite(part, name, f"{made.what} of tile {k + 1} of {len(parts)}")
                parts[k] = part
    return session.world.gather(parts, [session.process_of(rank) for rank in ranks])


def _run_wave(
    session: Session, made: _Pass, jobs: list[tuple[Tile, int]], report: Callable[[str], None]
) -> list[Array]:
    """Tiles on ranks of their own, at once: each latent frame is begun on every rank, then read."""
    states: list[Values] = [{} for _ in jobs]
    given: list[list[Array]] = [[] for _ in jobs]
    for frame, whole in enumerate(made.frames):
        part = "rest" if frame else "first"
        stages = [
            f"{made.kind}_{part}{session.config.tiles.suffix(tile.rows, tile.columns)}"
            for tile, _ in jobs
        ]
        for (tile, rank), state, stage in zip(jobs, states, stages, strict=True):
            session.feed(tile_feed(session.config.program(stage).program), _cut(whole, tile, made))
            session.run(stage, state, branches=(0,), ranks=(rank,))
        for (_, rank), state, stage, found in zip(jobs, states, stages, given, strict=True):
            found.append(session.results(stage, state, branches=(0,), ranks=(rank,)))
            report(f"{stage} on rank {rank}")
    return [np.concatenate(found, axis=2) for found in given]


def _cut(whole: Array, tile: Tile, made: _Pass) -> Array:
    rows = slice(tile.row * made.grain, (tile.row + tile.rows) * made.grain)
    columns = slice(tile.column * made.grain, (tile.column + tile.columns) * made.grain)
    return whole[..., rows, columns]
