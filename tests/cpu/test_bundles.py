"""What a compiled bundle shares, and that equal requests give equal bytes."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import wanc.compile as story
from tests.cpu.conftest import tiny_plan
from tests.cpu.test_parity import MASKED, WHOLE
from wanc.bundle.store import Bundle, open_bundle
from wanc.cache.store import Cache

PROGRAMS = 7
"""Text encoder, four of the transformer, two of the VAE."""


def blobs(bundle: Bundle) -> Counter[str]:
    records = [record for v in bundle.variants for record in v.config.programs]
    found = [blob for r in records for blob in (r.stablehlo, r.executable)]
    return Counter(blob.digest for blob in found if blob)


def test_one_blob_per_program_however_many_ranks_experts_and_layers(wanc: Any) -> None:
    bundle = open_bundle(wanc.bundle(WHOLE, "tp4-cp8-cfg2", blocks_per_program=1))
    assert len(blobs(bundle)) == 2 * PROGRAMS
    stored = {file.name for file in (bundle.path / "blobs" / "sha256").iterdir()}
    json_blobs = 3  # index, manifest, config
    assert len(stored) == 2 * PROGRAMS + json_blobs


def test_two_shapes_share_text_encoder_context_and_vae(wanc: Any, tmp_path: Path) -> None:
    plans = [tiny_plan(shape, "tp2") for shape in ("256x256x5", "272x256x5")]
    wanc.compile(plans, tmp_path / "b")
    bundle = open_bundle(tmp_path / "b")
    by_program: dict[str, set[str]] = {}
    for variant in bundle.variants:
        for record in variant.config.programs:
            by_program.setdefault(record.program.name, set()).add(record.stablehlo.digest)
    shared = {name for name, digests in by_program.items() if len(digests) == 1}
    assert shared == {"text_encoder", "dit_context", "vae_decode_first", "vae_decode_rest"}


def test_adding_a_variant_keeps_the_others(wanc: Any, tmp_path: Path) -> None:
    path = tmp_path / "b"
    shutil.copytree(wanc.bundle(WHOLE, "tp1"), path)
    before = open_bundle(path)
    wanc.compile([tiny_plan(MASKED, "cp8")], path)
    after = open_bundle(path)
    kept, all_of_them = ({v.manifest.digest for v in b.variants} for b in (before, after))
    assert kept < all_of_them
    assert before.digest != after.digest


def test_compiling_again_traces_and_compiles_nothing(
    wanc: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = open_bundle(wanc.bundle(WHOLE, "tp1")).digest
    for name in (
        "wanc.trace.trace",
        "wanc.lower.lower.lower",
        "wanc.targets.cpu.CpuTarget.compile",
    ):
        monkeypatch.setattr(name, lambda *_, **__: pytest.fail("the cache was not used"))
    assert wanc.compile([tiny_plan(WHOLE, "tp1")], tmp_path / "again") == first


@pytest.mark.parametrize("edited", ["model/ops.py", "lower/operators.py"])
def test_an_edit_under_model_or_lower_always_traces(
    monkeypatch: pytest.MonkeyPatch, edited: str
) -> None:
    from wanc import identity

    program = tiny_plan(WHOLE, "tp1").programs[0]
    before = identity.spec_key(program)
    digests = dict(identity.source_digests())
    assert edited in digests
    digests[edited] = "sha256:of-the-edited-file"
    monkeypatch.setattr(identity, "source_digests", lambda: digests)
    assert identity.spec_key(program) != before


def test_a_damaged_cache_is_made_good(wanc: Any, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    program = tiny_plan(WHOLE, "tp1").programs[2]
    first = story.lower_cached(program, "sha256:key", "cpu", cache)
    for blob in (tmp_path / "cache" / "blobs").iterdir():
        blob.write_bytes(b"damaged")
    second = story.lower_cached(program, "sha256:key", "cpu", cache)
    assert (first.cached, second.cached) == (False, False)
    assert first.stablehlo == second.stablehlo


def test_the_same_request_gives_the_same_bundle_anywhere(
    wanc: Any, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Another directory, HOME, hash seed and name of the checkpoint; a fresh build of all."""
    elsewhere = tmp_path / "some where else"
    shutil.copytree(tiny_checkpoint, elsewhere / "renamed")
    environment = {
        **os.environ,
        "HOME": str(elsewhere),
        "XDG_CACHE_HOME": str(elsewhere / "cache"),
        "PYTHONHASHSEED": "12345",
        "XLA_FLAGS": "--xla_cpu_enable_fast_math=true",
    }
    line = ["--model", "renamed", "--shape", WHOLE, "--topology", "tp1", "-o", "b", "--jobs", "2"]
    subprocess.run(
        [sys.executable, "-m", "wanc", "compile", *line],
        cwd=elsewhere,
        env=environment,
        check=True,
        capture_output=True,
    )
    ours, theirs = open_bundle(wanc.bundle(WHOLE, "tp1")), open_bundle(elsewhere / "b")
    assert blobs(ours) == blobs(theirs)
    assert ours.digest == theirs.digest


def test_stopping_after_lowering_writes_a_bundle_without_executables(
    wanc: Any, tmp_path: Path
) -> None:
    from wanc.progress import Silent
    from wanc.targets.cpu import CpuTarget

    story.compile_bundle(
        [tiny_plan(WHOLE, "tp1")],
        CpuTarget(),
        tmp_path / "b",
        cache=wanc.cache,
        jobs=1,
        progress=Silent(),
        until="lower",
    )
    records = open_bundle(tmp_path / "b").variants[0].config.programs
    assert all(record.stablehlo and not record.executable for record in records)
