"""Addresses and leave of requests; and that a client costs nothing that commands must not pay."""

import subprocess
import sys

import pytest

from tests.unit.test_light_cli import HEAVY
from wanc.registry.reference import Reference
from wanc.registry.repository import connect


@pytest.fixture
def repository():
    return connect(Reference(host="ghcr.io", name="me/wan"), environment={})


def test_addresses(repository):
    assert repository.url("blobs", "sha256:0a") == "https://ghcr.io/v2/me/wan/blobs/sha256:0a"
    assert repository.url("blobs", "uploads", "") == "https://ghcr.io/v2/me/wan/blobs/uploads/"
    assert repository.url("a", b="x/y+z", c=None).endswith("/v2/me/wan/a?b=x%2Fy%2Bz")
    assert repository.url("a/../b", "?#").endswith("/v2/me/wan/a%2F..%2Fb/%3F%23")


@pytest.mark.parametrize(
    ("method", "push", "actions"),
    [
        ("GET", None, "pull"),
        ("HEAD", None, "pull"),
        ("GET", True, "pull,push"),
        ("POST", None, "pull,push"),
        ("PATCH", None, "pull,push"),
        ("PUT", None, "pull,push"),
    ],
)
def test_leave(method, push, actions, repository):
    asked = repository.asked(method, "https://ghcr.io/", "thing", push=push)
    assert asked.scopes == (f"repository:me/wan:{actions}",)
    assert asked.what == "ghcr.io/me/wan: thing"


def test_a_client_loads_no_framework():
    parts = ("uploads", "downloads", "referrers", "repository")
    line = f"import sys; from wanc.registry import {', '.join(parts)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    loaded = {*done.stdout.split()}
    assert "wanc.registry.transport" in loaded
    assert not (HEAVY | {"requests", "numpy"}) & loaded
