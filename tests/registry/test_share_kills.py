"""Pushes and pulls that are killed: nothing half-done is named, and the same command goes on."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sound import verified, write_sound
from tests.unit.conftest import variant_of
from wanc.bundle.store import open_bundle
from wanc.registry.manifests import resolve
from wanc.registry.repository import Repository

FILL_BYTES = 6 << 20
"""Of each of seven executables: enough to be killed in."""


def start(line: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "wanc", *line],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(line: list[str]) -> float:
    """Run it to its end; seconds that it took."""
    began = time.monotonic()
    process = start(line)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()
    return time.monotonic() - began


def kill(line: list[str], seconds: float) -> bool:
    """Run it for so long and kill it; whether it still ran."""
    process = start(line)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


@pytest.mark.soak
def test_kills_at_random_moments_name_nothing_half_done(
    docker_registry: str,
    opened: Callable[..., Repository],
    tmp_path: Path,
    repetitions: Callable[[int, int], int],
    show: Any,
) -> None:
    """SIGKILL of pushes and pulls in turn.

    What a killed write had begun may stay in the bundle's folder, where gc finds it.
    """
    bundle = write_sound(tmp_path / "bundle", variant_of().config, fill_bytes=FILL_BYTES)
    digest = open_bundle(bundle).digest
    chance, outcomes, back = random.Random(7), Counter[str](), tmp_path / "back"
    push_seconds = finish(["push", str(bundle), f"{docker_registry}/kills/timed:v1"])
    pull_seconds = finish(["pull", f"{docker_registry}/kills/timed:v1", "-o", str(back)])
    for number in range(repetitions(5, 50)):
        repository = opened(docker_registry, f"kills/n{number}")
        reference = f"{docker_registry}/kills/n{number}:v1"
        push = ["push", str(bundle), reference]
        killed = kill(push, chance.uniform(0.3, 1) * push_seconds)
        tag = resolve(repository, "v1")
        assert tag is None or tag.digest == digest
        outcomes[
            f"push: {'killed' if killed else 'had ended'}, {'tagged' if tag else 'no tag'}"
        ] += 1
        finish(push)
        assert resolve(repository, "v1").digest == digest

        shutil.rmtree(back)
        pull = ["pull", reference, "-o", str(back)]
        killed = kill(pull, chance.uniform(0.3, 1) * pull_seconds)
        there = (back / "index.json").exists()
        assert not there or verified(back).is_sound
        outcomes[
            f"pull: {'killed' if killed else 'had ended'}, {'whole' if there else 'no bundle'}"
        ] += 1
        finish(pull)
        assert {finding.kind for finding in verified(back).findings} <= {"orphan"}
        assert open_bundle(back).digest == digest
    show(f"{count:4} {what}" for what, count in sorted(outcomes.items()))
    assert sum(count for what, count in outcomes.items() if ": killed" in what)
