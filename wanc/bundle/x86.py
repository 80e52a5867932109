"""CPU features by LLVM's names, and whether a machine has them. Knows no container and no program.

LLVM and Linux name most features differently, and LLVM's list mixes what a machine must have with
hints on how code should be tuned, which any machine may ignore.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from wanc.errors import BundleError

CPUINFO = Path("/proc/cpuinfo")

_V3 = (
    # x86-64
    "64bit cmov cx8 fxsr mmx sse sse2"
    # x86-64-v2
    " crc32 cx16 popcnt sahf sse3 sse4.1 sse4.2 ssse3"
    # x86-64-v3
    " avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave"
)
_V4 = _V3 + " avx512bw avx512cd avx512dq avx512f avx512vl"

ISAS = {"x86-64-v3": frozenset(_V3.split()), "x86-64-v4": frozenset(_V4.split())}
"""What a machine of each ISA has: the levels of the x86-64 psABI, in LLVM's names."""

_KERNEL_NAMES = {
    "64bit": "lm",
    "avx512vbmi2": "avx512_vbmi2",
    "avxifma": "avx_ifma",
    "avxneconvert": "avx_ne_convert",
    "avxvnni": "avx_vnni",
    "avxvnniint16": "avx_vnni_int16",
    "avxvnniint8": "avx_vnni_int8",
    "bmi": "bmi1",
    "crc32": "sse4_2",
    "lzcnt": "abm",
    "pclmul": "pclmulqdq",
    "prfchw": "3dnowprefetch",
    "rdrnd": "rdrand",
    "sahf": "lahf_lm",
    "sha": "sha_ni",
    "sse3": "pni",
    **{
        f"avx512{name}": f"avx512_{name}"
        for name in ("bf16", "bitalg", "fp16", "vnni", "vp2intersect", "vpopcntdq")
    },
}
"""Linux's name of a feature where it is another than LLVM's with ``.`` and ``-`` as ``_``."""

_HINTS = re.compile(r"prefer-.*|fast-.*|slow-.*|tuning-.*|false-deps-.*|evex512|shstk")
"""Names that ask nothing of a machine. ``evex512`` only allows wide registers to avx512;
``shstk`` marks code that keeps a shadow stack where there is one, and Linux does not list it."""


def missing_features(features: Iterable[str], flags: frozenset[str]) -> tuple[str, ...]:
    """LLVM's names of the features that a machine with these flags of Linux lacks, sorted.

    A feature of no known name counts as missing.
    """
    needed = (feature for feature in features if not _HINTS.fullmatch(feature))
    return tuple(sorted(feature for feature in needed if kernel_name(feature) not in flags))


def kernel_name(feature: str) -> str:
    """Linux's name of a feature of LLVM."""
    return _KERNEL_NAMES.get(feature, re.sub("[.-]", "_", feature))


def machine_flags(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """Linux's names of the features that every CPU of this machine has; raises BundleError."""
    try:
        text = cpuinfo.read_text()
    except OSError as error:
        raise BundleError(
            f"CPU features unknown: {error}; executables of the cpu target need x86-64 Linux"
        ) from error
    lists = re.findall(r"^flags\s*:(.*)$", text, re.MULTILINE)
    if not lists:
        raise BundleError(
            f"{cpuinfo} lists no flags; executables of the cpu target need x86-64 Linux"
        )
    return frozenset.intersection(*(frozenset(flags.split()) for flags in lists))
