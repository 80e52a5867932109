"""What follows from a shape and a model: latent grid, tokens, and their split over ranks.

Pure arithmetic on spec's numbers.
"""

from dataclasses import dataclass

from wanc.errors import RefusedError
from wanc.spec.model import Model
from wanc.spec.shape import Shape, nearest_multiples
from wanc.spec.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Latent and token grids of one shape."""

    latent_frames: int
    latent_rows: int
    latent_columns: int
    token_rows: int
    token_columns: int

    @property
    def tokens(self) -> int:
        """Sequence length L of the diffusion transformer."""
        return self.latent_frames * self.token_rows * self.token_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSplit:
    """How L tokens lie on ranks. cp cuts chunks; tp cuts each chunk, whose tail is padded.

    Tail pads are sliced off after every gather over tp, so attention never sees them. Only where
    cp does not divide L does the last chunk hold pads that attention masks as keys.
    """

    tokens: int
    chunk_tokens: int
    """Tokens of one cp chunk; with masked keys the pads of the last chunks are among them."""
    padded_chunk_tokens: int
    """Chunk and tail pads: a multiple of tp."""
    shard_tokens: int
    """Tokens on one rank."""
    masked: bool
    """Whether cp does not divide L, so that pad keys are masked."""


def geometry(shape: Shape, model: Model) -> Geometry:
    """Grids of a shape; raises RefusedError where this model cannot make it."""
    vae, patch = model.vae, model.transformer.patch_FHW
    grain = vae.spatial_stride * patch[1]
    problems = [
        f"{name} {value} is not a multiple of {grain}; "
        f"nearest are {' and '.join(map(str, nearest_multiples(value, grain)))}"
        for name, value in (("width", shape.width_px), ("height", shape.height_px))
        if value % grain
    ]
    if problems:
        raise RefusedError(f"shape {shape} with model {model.name}: " + "; ".join(problems))
    grid = Geometry(
        latent_frames=(shape.frames - 1) // vae.temporal_stride + 1,
        latent_rows=shape.height_px // vae.spatial_stride,
        latent_columns=shape.width_px // vae.spatial_stride,
        token_rows=shape.height_px // grain,
        token_columns=shape.width_px // grain,
    )
    longest = model.transformer.rope_max_positions
    if max(grid.latent_frames, grid.token_rows, grid.token_columns) > longest:
        raise RefusedError(
            f"shape {shape}: the token grid {grid.latent_frames}x{grid.token_rows}x"
            f"{grid.token_columns} goes past the model's {longest} RoPE positions on an axis"
        )
    return grid


def split_tokens(tokens: int, topology: Topology) -> TokenSplit:
    """Cut L tokens for a topology."""
    chunk = -(-tokens // topology.cp)
    padded = -(-chunk // topology.tp) * topology.tp
    return TokenSplit(
        tokens=tokens,
        chunk_tokens=chunk,
        padded_chunk_tokens=padded,
        shard_tokens=padded // topology.tp,
        masked=tokens % topology.cp != 0,
    )


def query_tile_tokens(heads: int, queries: int, keys: int, budget_bytes: int) -> int:
    """Queries whose fp32 scores against the keys fit the budget, cut as evenly as can be."""
    most = max(1, budget_bytes // (4 * heads * keys))
    tiles = -(-queries // most)
    return -(-queries // tiles)
