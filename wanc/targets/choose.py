"""From a target's name to the target. Nobody else asks which target it is."""

from dataclasses import dataclass
from pathlib import Path

from wanc.cache.store import default_cache
from wanc.errors import RefusedError
from wanc.targets.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronOptions:
    """How neuronx-cc is run."""

    flags: tuple[str, ...] = ()
    """Compiler flags that follow wanc's own."""
    input_form: str = "hlo"
    """What neuronx-cc reads: hlo or stablehlo."""
    timeout_seconds: float = 4 * 3600.0
    """For one attempt at one program; graphs that needed longer were never seen to end."""
    keep: Path | None = None
    """Where files of failed compiles are kept; None is a folder of the user's cache."""


def target_named(name: str, isa: str, neuron: NeuronOptions | None = None) -> Target:
    """The target of a name; raises RefusedError. isa is for CPUs, neuron for Trainium."""
    if name == "cpu":
        from wanc.targets.cpu import CpuTarget

        return CpuTarget(isa=isa)
    if name in ("trn2", "trn3"):
        from wanc.targets.neuron import NeuronTarget

        options = neuron or NeuronOptions()
        return NeuronTarget(
            name=name,
            flags=options.flags,
            input_form=options.input_form,
            timeout_seconds=options.timeout_seconds,
            keep=options.keep or default_cache() / "failed",
        )
    raise RefusedError(f"target {name!r}: this version compiles for cpu, trn2 and trn3")
