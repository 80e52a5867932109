"""Fixtures that tests of several folders share, and how often repetitions repeat."""

import os
from collections.abc import Callable, Iterable
from functools import lru_cache
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


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Callable[[Iterable[str]], None]:
    """Prints lines where people see them: the tables of repetitions."""

    def shown(lines: Iterable[str]) -> None:
        with capsys.disabled():
            print("", *lines, sep="\n")

    return shown


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


@pytest.fixture(scope="session")
def of_task(
    shared_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Any, Any]]:
    """By task: wanc and diffusers on its tiny checkpoint."""
    from tests.compiled import Cache, Diffusers, Wanc
    from wanc.spec.presets import TINY_MODELS
    from wanc.tiny import write_tiny_checkpoint

    cache = Cache(shared_folder / "cache")

    @lru_cache
    def made(task: str) -> tuple[Any, Any]:
        model, folder = TINY_MODELS[task], tmp_path_factory.mktemp(task)  # type: ignore[index]
        write_tiny_checkpoint(folder / "checkpoint", model=model)
        ours = Wanc(folder / "checkpoint", cache, folder, model)
        return ours, Diffusers(folder / "checkpoint", model)

    return made


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """Two pictures of a video's size: no symmetry, no two corners of one colour."""
    import numpy as np
    from PIL import Image

    folder = tmp_path_factory.mktemp("pictures")

    @lru_cache
    def made(shape: str) -> tuple[Path, Path]:
        width, height, _ = map(int, shape.split("x"))
        down, across = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
        first = np.stack([across, down, 1 - across * down], -1)
        last = np.stack([1 - down, 0.5 + 0.5 * np.sin(9 * across), down * across], -1)
        paths = folder / f"{shape}-first.png", folder / f"{shape}-last.png"
        for path, picture in zip(paths, (first, last), strict=True):
            Image.fromarray(np.round(255 * picture).astype(np.uint8)).save(path)
        return paths

    return made
