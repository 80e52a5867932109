"""The command lines of neuronx-cc: which component is compiled with which flags.

Knows no program beyond its kind, and runs nothing. Flags are those of AWS's page "Neuron Compiler
CLI Reference Guide" and, where that has none, of the public Wan2.2 work for Trainium. That raises
the limit of instructions for the VAE only, for its DiT has attention kernels; plain attention takes
more, and other public work for trn2 raises the limit for transformers as well.
"""

from wanc.errors import RefusedError, RequestError
from wanc.machine import NEURON_COMPILER
from wanc.spec.target import target_facts

NAME = NEURON_COMPILER
LNC = 2
"""Physical cores joined to one logical core; AWS's default on these targets."""
SCRATCHPAD_PAGE_SIZE_MB = 2048
"""The runtime must use the same page size: NEURON_SCRATCHPAD_PAGE_SIZE."""

_PAGES = f"--hbm-scratchpad-page-size={SCRATCHPAD_PAGE_SIZE_MB}"
_TRANSFORMER = "--model-type=transformer"
_VAE = "--model-type=unet-inference"
_OWN = (
    "--framework",
    "--target",
    "--lnc",
    "-lnc",
    "--logical-nc-config",
    "--output",
    "--hbm-scratchpad-page-size",
)
"""What wanc sets itself; the compiler also takes the start of a long name."""
_UNSAFE_FP8 = "--experimental-unsafe-fp8e4m3fn-as-fp8e4m3"


def check_flags(flags: tuple[str, ...], target: str) -> None:
    """Raise RequestError for flags that are wanc's own, RefusedError for what a target lacks."""
    for flag in flags:
        name = flag.partition("=")[0]
        own = [
            other for other in _OWN if other == name or (len(name) > 2 and other.startswith(name))
        ]
        if own:
            raise RequestError(f"compiler flag {flag!r}: wanc sets {own[0]} itself")
        if target == "trn3" and _UNSAFE_FP8 in flag:
            raise RefusedError(
                f"compiler flag {flag!r}: trn3 has float8_e4m3fn, and {NAME} refuses the flag "
                "there (NCC_EOCP001); it is for trn2"
            )
    if flags and not flags[0].startswith("-"):
        raise RequestError(f"compiler flag {flags[0]!r}: flags start with a dash")


def flags_of(kind: str, target: str, extra: tuple[str, ...]) -> tuple[str, ...]:
    """All flags for a program of a kind, in order; the user's come last, where they win."""
    accelerator = target_facts(target).accelerator
    assert accelerator, f"{target} is no target of {NAME}"
    return (
        *("--framework", "XLA", "--target", target, "--lnc", str(LNC)),
        _VAE if kind.startswith("vae_") else _TRANSFORMER,
        "--auto-cast=none",
        "-O1",
        f"--internal-max-instruction-limit={accelerator.limits.instructions}",
        _PAGES,
        *extra,
    )


def compile_arguments(source: str, flags: tuple[str, ...], output: str) -> tuple[str, ...]:
    """What follows the compiler's name to compile a file into another."""
    return ("compile", source, *flags, "--output", output)
