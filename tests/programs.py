"""Programs that tests write by hand."""

from wanc.plan.abi import Program


def replicas(count: int, kind: str = "test") -> Program:
    """A program of so many replicas, for what is asked of a compiler and needs no ABI."""
    return Program(
        name=kind,
        ranks="all" if count > 1 else "one",
        replica_count=count,
        kind=kind,
        definition={},
        groups={},
        weights=(),
        inputs=(),
        outputs=(),
        donated={},
    )
