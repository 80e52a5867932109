"""From a target's name to the target. Nobody else asks which target it is."""

from wanc.errors import RefusedError
from wanc.targets.target import Target


def target_named(name: str, isa: str) -> Target:
    """The target of a name; raises RefusedError. isa is for targets that are CPUs."""
    if name != "cpu":
        raise RefusedError(f"target {name!r}: this version compiles for cpu only")
    from wanc.targets.cpu import CpuTarget

    return CpuTarget(isa=isa)
