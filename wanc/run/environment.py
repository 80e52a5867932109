"""The variables that a run sets for the runtime of its target, before it loads anything."""

from wanc.bundle.config import VariantConfig
from wanc.run.load import can_run
from wanc.runtime.runtime import runtime_of


def environment(config: VariantConfig) -> dict[str, str]:
    """Those that follow from the bundle; none where it cannot be run yet. Raises BundleError."""
    return runtime_of(config.variant.target).environment(config) if can_run(config) else {}
