"""What some tests need of a machine beside Python: skipped aloud, or failing where all must run."""

import os

import pytest


def needs(there: bool, what: str) -> None:
    """Go on where it is there; ``WANC_SKIP_NOTHING``, which .ci/run sets, has its absence fail."""
    if not there and os.environ.get("WANC_SKIP_NOTHING"):
        pytest.fail(f"this machine lacks {what}")
    if not there:
        pytest.skip(f"this machine lacks {what}")
