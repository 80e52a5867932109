"""Fixtures that tests of several folders share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint of seed 0, in single files. Read only: it is shared."""
    from wanc.tiny import write_tiny_checkpoint

    directory = tmp_path_factory.mktemp("checkpoint") / "tiny"
    write_tiny_checkpoint(directory)
    return directory
