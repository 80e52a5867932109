"""About how many instructions a program is on a NeuronCore: an estimate from shapes alone.

For comparing programs with a compiler's ceiling, not what neuronx-cc will emit: it fuses, splits
and spills as it sees fit. Like a lower bound, it takes every tile as full as it can be. Tile sizes
are those of AWS's NKI documentation (nki.language.tile_size, nki.isa.nc_matmul). Here is what any
count rests on, and what plan knows of a group of blocks; lower/instructions.py counts a program.
"""

from wanc.plan.abi import Program
from wanc.spec.model import TEXT_TOKENS

PARTITIONS = 128
STATIONARY = 128
MOVING = 512
TILE_ELEMENTS = PARTITIONS * 512
"""Of what works element by element: one PSUM bank in fp32 on every partition."""

SCORE_PASSES = 6
"""Over attention's scores: scale, maximum, difference from it, exponential, sum, narrowing."""


def product(rows: int, depth: int, columns: int, taps: int = 1) -> int:
    """Instructions of a matrix product; taps are products that are summed in place.

    One multiplies a stationary tile of 128 x 128 by a moving one of 128 x 512, where the first 128
    is the depth. One more takes each finished tile of sums out of PSUM. Either factor may be the
    stationary one; the cheaper way counts.
    """
    sums = min(
        tiles(rows, STATIONARY) * tiles(columns, MOVING),
        tiles(rows, MOVING) * tiles(columns, STATIONARY),
    )
    return sums * (taps * tiles(depth, PARTITIONS) + 1)


def tiles(size: int, tile: int) -> int:
    """How many tiles a size takes."""
    return -(-size // tile)


def of_blocks(program: Program) -> int:
    """Of a group of transformer blocks: matrix products, and passes over attention's scores."""
    how: dict[str, int] = program.definition
    chunk, heads, width = how["chunk_tokens"], how["heads"], how["head_width"]
    ring = program.definition["attention"] == "ring"
    arrivals, keys = (how["cp"], chunk) if ring else (1, how["cp"] * chunk)
    linears = sum(
        product(chunk, inputs, outputs)
        for outputs, inputs in (w.shape for w in program.weights if len(w.shape) == 2)
    )
    self_attention = arrivals * heads * _attention(chunk, keys, width, how["query_tile_tokens"])
    cross = heads * _attention(chunk, TEXT_TOKENS, width, how["cross_query_tile_tokens"])
    return linears + how["layers"] * (self_attention + cross)


def _attention(queries: int, keys: int, width: int, tile: int) -> int:
    """Of one head: the two products of each query tile, and the softmax between them."""

    def of_tile(span: int) -> int:
        passes = SCORE_PASSES * tiles(span * keys, TILE_ELEMENTS)
        return product(span, width, keys) + product(span, keys, width) + passes

    whole, rest = divmod(queries, tile)  # no list of them: of an absurd shape it has no end
    return whole * of_tile(tile) + (of_tile(rest) if rest else 0)
