"""Fixtures that tests of several folders share, and how often repetitions repeat."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="repetitions at full count")
    parser.addoption("--update-golden", action="store_true", help="rewrite the expected files")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: repeats; a sample without --soak, in full with it")


@pytest.fixture
def repetitions(request: pytest.FixtureRequest) -> Callable[[Any, Any], Any]:
    """How often, or what, to repeat: (the sample of make test, the full count of make soak)."""
    soak = request.config.getoption("--soak")
    return lambda sample, full: full if soak else sample


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this test run, the same for every xdist worker."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint of seed 0, in single files. Read only: it is shared."""
    from wanc.tiny import write_tiny_checkpoint

    directory = tmp_path_factory.mktemp("checkpoint") / "tiny"
    write_tiny_checkpoint(directory)
    return directory


@pytest.fixture(scope="session")
def wanc(
    tiny_checkpoint: Path, shared_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """wanc on the tiny checkpoint; workers share what is compiled."""
    from tests.compiled import Cache, Wanc

    return Wanc(tiny_checkpoint, Cache(shared_folder / "cache"), tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="session")
def diffusers_result(tiny_checkpoint: Path) -> Any:
    """What diffusers' WanPipeline makes of the same request, by shape and dtype."""
    from tests.compiled import Diffusers

    return Diffusers(tiny_checkpoint)
