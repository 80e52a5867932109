"""Whether attention with a static bound would lose rows: a check on diffusers' own transformers.

Instead of a row's maximum score, such attention subtracts scale·‖q_i‖·max_j‖k_j‖, which is never
less. Where it is more by UNDERFLOW, every term of the row's sum vanishes in fp32, and the row would
be zero without an error. Knows q and k as diffusers has them, after norms and RoPE.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from wanc.errors import RunError
from wanc.spec.model import EXPERT_COMPONENTS, Expert

UNDERFLOW = 85.0
"""exp of minus this is hardly a normal fp32 number."""

_SCORES_BYTES = 64 << 20
"""Most that the scores of one tile of queries take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBound:
    """How far the bound lies above the true maxima in one denoising step."""

    step: int
    """From 1."""
    expert: Expert
    largest_excess: float
    """Of the bound over a row's largest score."""
    layer: int
    """The layer of that row, from 0."""
    rows: int
    """Of all layers, heads, tokens and guidance branches."""
    lost_rows: int
    """Those whose excess is above UNDERFLOW."""


@dataclass(frozen=True, slots=True)
class SoftmaxBounds:
    """What was seen so far."""

    _seen: dict[int, StepBound] = field(default_factory=dict)

    @property
    def steps(self) -> tuple[StepBound, ...]:
        """One for each step, in order."""
        return tuple(self._seen[step] for step in sorted(self._seen))

    def add(self, step: int, expert: Expert, layer: int, excess: Tensor) -> None:
        """Count the rows of one self-attention, by their excess."""
        seen, largest = self._seen.get(step), float(excess.max())
        worse = seen is None or largest > seen.largest_excess
        self._seen[step] = StepBound(
            step=step,
            expert=expert,
            largest_excess=largest if seen is None or worse else seen.largest_excess,
            layer=layer if seen is None or worse else seen.layer,
            rows=(seen.rows if seen else 0) + excess.numel(),
            lost_rows=(seen.lost_rows if seen else 0) + int((excess > UNDERFLOW).sum()),
        )


@contextmanager
def observe_softmax_bounds(pipe: Any) -> Iterator[SoftmaxBounds]:
    """Look at every self-attention of a Wan pipeline that runs meanwhile; raises RunError."""
    found = SoftmaxBounds()
    replaced: list[tuple[Any, Any]] = []
    for expert, component in EXPERT_COMPONENTS.items():
        transformer = getattr(pipe, component, None)
        for layer, block in enumerate(transformer.blocks if transformer else ()):
            replaced.append((block.attn1, block.attn1.processor))
            note = _noting(found, pipe, expert, layer)
            block.attn1.processor = _watched(block.attn1.processor, note)
    try:
        yield found
    finally:
        for attention, processor in replaced:
            attention.processor = processor


def bound_excess(q_BNLK: Tensor, k_BNLK: Tensor, scale: float) -> Tensor:
    """[B, N, L] fp32: how far each row's bound lies above its largest score.

    Works in tiles of queries: the scores of all would be L times L.
    """
    batch, heads, tokens, _ = q_BNLK.shape
    tile = max(1, _SCORES_BYTES // (4 * k_BNLK.shape[2]))
    excess = torch.empty(batch, heads, tokens)
    for b in range(batch):
        for n in range(heads):
            k_LK = k_BNLK[b, n].float()
            longest = k_LK.norm(dim=-1).max()
            for start in range(0, tokens, tile):
                q_LK = q_BNLK[b, n, start : start + tile].float()
                largest = (q_LK @ k_LK.T).amax(dim=-1)
                bound = q_LK.norm(dim=-1) * longest
                excess[b, n, start : start + tile] = scale * (bound - largest)
    return excess


Note = Callable[[Tensor, Tensor, float], None]


def _noting(found: SoftmaxBounds, pipe: Any, expert: Expert, layer: int) -> Note:
    def note(q_BNLK: Tensor, k_BNLK: Tensor, scale: float) -> None:
        step = (pipe.scheduler.step_index or 0) + 1  # None before the scheduler's first
        found.add(step, expert, layer, bound_excess(q_BNLK, k_BNLK, scale))

    return note


def _watched(processor: Any, note: Note) -> Any:
    """The attention processor, with the q and k of its attention noted."""

    def process(*args: Any, **how: Any) -> Any:
        with _Looking(note) as looking:
            given = processor(*args, **how)
        if not looking.calls:
            raise RunError(
                "self-attention did not go through torch's scaled_dot_product_attention: "
                "the bounds are seen there alone; use diffusers' backend 'native'"
            )
        return given

    return process


class _Looking(TorchFunctionMode):
    """Sees what goes into torch's attention, and lets it go on."""

    def __init__(self, note: Note) -> None:
        super().__init__()
        self.calls = 0
        self._note = note

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        how = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.calls += 1
            q, k = (*args, how.get("query"), how.get("key"))[:2]
            self._note(q, k, how.get("scale") or q.shape[-1] ** -0.5)
        return func(*args, **how)
