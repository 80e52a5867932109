"""What planning must know of a target. How a target compiles is the business of targets/.

Numbers of chips are AWS's published ones for trn2.48xlarge and for a Trn3 UltraServer, with two
physical cores joined to one logical core (LNC 2).
"""

from dataclasses import dataclass
from itertools import permutations
from typing import Literal

from wanc.errors import RefusedError
from wanc.spec.topology import AXES

Precision = Literal["fp32", "bf16"]
DType = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")

DTYPES: dict[Precision, DType] = {"fp32": "float32", "bf16": "bfloat16"}
"""The dtype of matrices and activations. Norms, softmax and some parameters stay fp32 in both."""

DTYPE_BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2}

ORDERS: tuple[str, ...] = tuple("-".join(order) for order in permutations(AXES))
"""Arithmetic placements: the mesh axes from the one that varies fastest over ranks."""

TORUS = "trn2-torus"
PLACEMENTS: tuple[str, ...] = ("linear", TORUS, *ORDERS)
"""How ranks lie on the fabric. ``linear`` is ``tp-cp-cfg``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """How the chips of one machine are joined; cores are numbered chip by chip, row by row."""

    kind: Literal["torus", "switch"]
    """``torus``: each chip has links to four neighbours. ``switch``: every chip to every other."""
    rows: int
    columns: int
    cores_per_chip: int
    """Logical cores."""

    @property
    def cores(self) -> int:
        """Logical cores of one machine."""
        return self.rows * self.columns * self.cores_per_chip


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A chip's published peaks, shared by its logical cores."""

    bf16_flops_per_second: float
    fp32_flops_per_second: float
    hbm_bytes: int
    hbm_bytes_per_second: float
    link_bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerLimits:
    """What the target's compiler is known to refuse or not to finish."""

    instructions: int
    """Most instructions of one program, as estimated: the limit that the compiler is given."""
    usual_instructions: int
    """The compiler's own limit; where the user names no number, programs are cut to keep to it."""
    operation_instructions: int
    """Most instructions of one operation; the smallest such limit that has been reported."""
    tensor_bytes: int
    """Largest tensor."""
    communicators: int
    """Most distinct lists of replica groups in one program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """What planning knows of a target that is no CPU."""

    fabric: Fabric
    chip: Chip
    limits: CompilerLimits

    @property
    def core_hbm_bytes(self) -> int:
        """Memory of one logical core."""
        return self.chip.hbm_bytes // self.fabric.cores_per_chip


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """A target as plan sees it."""

    name: str
    default_precision: Precision
    default_placement: str
    score_budget_bytes: int
    """Most bytes of fp32 attention scores that a program holds at once; sets the query tile."""
    blocks_per_program: int
    """Most transformer blocks in one program, where the user names no number."""
    accelerator: Accelerator | None = None
    """None where the machine is any CPU: nothing is known of its memory or speed."""


GIB = 1 << 30

NEURON_COMPILE_BYTES = 16 * GIB
"""Memory of one compile by neuronx-cc: 64 of them at once were seen to want about a TB."""

TRN2_FABRIC = Fabric(kind="torus", rows=4, columns=4, cores_per_chip=4)
TRN3_FABRIC = Fabric(kind="switch", rows=36, columns=4, cores_per_chip=4)

_LIMITS = CompilerLimits(
    instructions=15_000_000,
    usual_instructions=5_000_000,
    operation_instructions=150_000,
    tensor_bytes=2 * GIB,
    communicators=16,
)

TARGETS: dict[str, TargetFacts] = {
    "cpu": TargetFacts(
        name="cpu",
        default_precision="fp32",
        default_placement="linear",
        score_budget_bytes=256 << 20,
        blocks_per_program=4,
    ),
    "trn2": TargetFacts(
        name="trn2",
        default_precision="bf16",
        default_placement=TORUS,
        score_budget_bytes=GIB,
        blocks_per_program=10,
        accelerator=Accelerator(
            fabric=TRN2_FABRIC,
            chip=Chip(
                bf16_flops_per_second=667e12,
                fp32_flops_per_second=181e12,
                hbm_bytes=96 * GIB,
                hbm_bytes_per_second=2.9e12,
                link_bytes_per_second=1.28e12,
            ),
            limits=_LIMITS,
        ),
    ),
    "trn3": TargetFacts(
        name="trn3",
        default_precision="bf16",
        default_placement="linear",
        score_budget_bytes=GIB,
        blocks_per_program=10,
        accelerator=Accelerator(
            fabric=TRN3_FABRIC,
            chip=Chip(
                bf16_flops_per_second=671e12,
                fp32_flops_per_second=183e12,
                hbm_bytes=144 * GIB,
                hbm_bytes_per_second=4.9e12,
                link_bytes_per_second=0.256e12,  # inside a sled; 2.56e12 for a chip in all
            ),
            limits=_LIMITS,
        ),
    ),
}


def target_facts(name: str) -> TargetFacts:
    """Facts of a target by name; raises RefusedError."""
    try:
        return TARGETS[name]
    except KeyError:
        known = ", ".join(TARGETS)
        raise RefusedError(f"target {name!r} is not known; known are {known}") from None
