"""Registries on this machine: Debian's docker-registry, and a double with faults on demand."""

import base64
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.registry import RegistryDouble, Storage
from tests.needs import needs
from wanc.registry.reference import Reference
from wanc.registry.repository import Repository, connect
from wanc.registry.retries import Patience

DOCKER_REGISTRY = Path("/usr/bin/docker-registry")
CONFIG = """
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}, delete: {{enabled: true}}}}
http: {{addr: 127.0.0.1:{port}}}
"""
START_SECONDS = 20.0


@pytest.fixture(scope="session")
def docker_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Host and port of a docker-registry, which has no referrers API."""
    needs(DOCKER_REGISTRY.exists(), "docker-registry")
    folder = tmp_path_factory.mktemp("docker-registry")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "config.yml"
    config.write_text(CONFIG.format(folder=folder, port=port))
    with (folder / "log").open("wb") as log:
        served = subprocess.Popen([DOCKER_REGISTRY, "serve", config], stdout=log, stderr=log)
    try:
        _wait_for(port, served, folder / "log")
        yield f"127.0.0.1:{port}"
    finally:
        served.terminate()
        served.wait()


def _wait_for(port: int, served: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and served.poll() is None:
        with socket.socket() as probe:
            if not probe.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.01)
    pytest.fail(f"docker-registry did not start: {log.read_text()}")


@pytest.fixture
def double() -> Iterator[RegistryDouble]:
    """A registry without faults, which must not find anything wrong with its clients."""
    with RegistryDouble() as registry:
        yield registry
    assert not registry.wrongs


@pytest.fixture
def storage() -> Iterator[Storage]:
    """Another host, whatever it is asked without credentials."""
    with Storage() as other:
        yield other
    assert not other.wrongs
    assert not [each for each in other.seen if "Authorization" in each.headers]


@pytest.fixture
def slept() -> list[float]:
    """Seconds of every wait, which takes none."""
    return []


@pytest.fixture
def opened(slept: list[float], tmp_path: Path) -> Iterator[Callable[..., Repository]]:
    """opened(host, "wan/bundle", credentials=("ann", "password"), patience={...}): a repository."""
    with ExitStack() as stack:

        def make(
            host: str,
            name: str = "wan/bundle",
            *,
            environment: dict[str, str] | None = None,
            patience: dict[str, Any] | None = None,
            plain_http: bool | None = None,
        ) -> Repository:
            times = {"sleep": slept.append, "chance": lambda: 1.0, "silence_seconds": 5.0}
            repository = connect(
                Reference(host=host, name=name),
                patience=Patience(**{**times, **(patience or {})}),
                environment=environment or {"HOME": str(tmp_path / "home")},
                plain_http=plain_http,
            )
            stack.callback(repository.close)
            return repository

        yield make


class Counted:
    """Bytes that moved, and that were reused."""

    def __init__(self) -> None:
        self.moved = self.reused = 0

    def __call__(self, moved: int, reused: int) -> None:
        self.moved += moved
        self.reused += reused


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
def logged_in(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """logged_in(host, ...): an environment in which ann is logged in."""

    def make(host, *, user="ann", secret="pass:word", identity=None):
        entry = {"auth": base64.b64encode(f"{user}:{secret}".encode()).decode()}
        if identity:
            entry = {"auth": base64.b64encode(f"{user}:".encode()).decode()}
            entry["identitytoken"] = identity
        (tmp_path / "config.json").write_text(json.dumps({"auths": {host: entry}}))
        return {"DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path)}

    return make
