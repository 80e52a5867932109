"""Cases from the field about bundles and checkpoints that meet a run.

Each test names the public report that it retells.
"""

import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.compiled import tiny_plan, without_vae
from tests.cpu.test_parity import MASKED
from tests.doubles.neuron import calls, install_neuronx_cc
from tests.field.test_sampler import Notes
from wanc.bundle.store import NewVariant, config_blobs, open_bundle, write_bundle
from wanc.cache.store import Cache
from wanc.cli import main
from wanc.compile import compile_bundle
from wanc.digest import of_json
from wanc.errors import BundleError
from wanc.progress import Silent
from wanc.run import session
from wanc.targets.neuron import NeuronTarget
from wanc.weights.needs import schedule_needs

pytestmark = pytest.mark.xdist_group("field-run")


def test_executables_for_another_number_of_ranks_are_refused(wanc, tmp_path, monkeypatch):
    """aws-neuron/aws-neuron-sdk #1030: world size differs; an opaque runtime error."""
    two, one = (open_bundle(wanc.denoiser(MASKED, topology)) for topology in ("cp2", "tp1"))
    config = one.variants[0].config
    programs = tuple(
        replace(record, executable=two.variants[0].config.program(record.program.name).executable)
        for record in config.programs
    )
    mixed = replace(config, programs=programs)
    blobs = {
        blob.digest: (two if blob in config_blobs(two.variants[0].config) else one).read(blob)
        for blob in config_blobs(mixed)
    }
    write_bundle(
        tmp_path / "b", [NewVariant(config=mixed, executable_type="executable")], blobs.__getitem__
    )
    monkeypatch.setattr(session, "read_shards", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(BundleError, match="compiled for 2 replicas, but 1 ranks are to run it"):
        wanc.generate(tmp_path / "b", tmp_path / "v.mp4")


def test_a_bundle_that_was_moved_and_renamed_runs(wanc, tmp_path):
    """aws-neuron-sdk #1368, optimum-neuron #593: a moved path misses a prebuilt cache."""
    moved = tmp_path / "some where else" / "renamed"
    shutil.copytree(wanc.denoiser(MASKED, "tp1"), moved)
    assert torch.equal(wanc.latents(moved), wanc.latents(wanc.denoiser(MASKED, "tp1")))


def test_what_shapes_and_experts_share_is_stored_once_and_read_once(wanc, tmp_path, monkeypatch):
    """pytorch/executorch PR #18901: shared weights are stored twice."""
    plans = [without_vae(tiny_plan(shape, "tp1")) for shape in (MASKED, "432x240x33")]
    wanc.compile(plans, tmp_path / "b")
    bundle = open_bundle(tmp_path / "b")
    named = {blob for variant in bundle.variants for blob in config_blobs(variant.config)}
    of_shape, shared = ("dit_embed", "dit_blocks", "dit_head"), ("text_encoder", "dit_context")
    assert len(named) == 2 * (2 * len(of_shape) + len(shared))
    files = {file.name: file.stat().st_size for file in (bundle.path / "blobs/sha256").iterdir()}
    json_blobs = 5  # the index, and a manifest and a config of each variant
    assert len(files) == len(named) + json_blobs
    assert all(files[blob.digest.removeprefix("sha256:")] == blob.size_bytes for blob in named)

    reads: Counter[tuple[str, str]] = Counter()
    read = session.read_shards

    def counted(component, tensor, *rest):
        reads[component.name, tensor] += 1
        return read(component, tensor, *rest)

    monkeypatch.setattr(session, "read_shards", counted)
    wanc.latents(wanc.denoiser(MASKED, "cp2"), steps=2)
    assert {component for component, _ in reads} == {"text_encoder", "transformer", "transformer_2"}
    assert set(reads.values()) == {1}


@pytest.fixture(scope="module")
def bf16_checkpoint(tiny_checkpoint, tmp_path_factory) -> Path:
    return converted(tiny_checkpoint, tmp_path_factory.mktemp("bf16") / "tiny", torch.bfloat16)


def converted(checkpoint: Path, copy: Path, *through: torch.dtype) -> Path:
    """A copy of a checkpoint whose tensors have gone through these dtypes."""
    shutil.copytree(checkpoint, copy)
    for file in copy.rglob("*.safetensors"):
        tensors = load_file(file)
        for dtype in through:
            tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        save_file(tensors, file, metadata={"format": "pt"})
    return copy


def test_checkpoint_of_another_dtype_runs_and_the_run_says_so(wanc, bf16_checkpoint, tmp_path):
    """optimum-neuron #457 in kind: what a run was made with must be in its record."""
    casts = {}
    for precision in ("fp32", "bf16"):
        bundle = wanc.bundle(MASKED, "tp1", precision)
        for stored, weights in (("fp32", wanc.checkpoint), ("bf16", bf16_checkpoint)):
            said, output = Notes(), tmp_path / f"{precision}-{stored}.mp4"
            record = wanc.generate(bundle, output, weights=weights, progress=said, steps=1)
            made = casts[precision, stored] = record["casts"]
            told = [f"weights: {count} tensors cast from {what}" for what, count in made.items()]
            assert said.lines == [f"variant t2v {MASKED} tp1 {precision} cpu", *told, "seed 1"]
    config = open_bundle(wanc.bundle(MASKED, "tp1")).variants[0].config
    programs = {record.program.name: record.program for record in config.programs}
    count = len(schedule_needs(config.schedule, programs))
    narrowed = casts["bf16", "fp32"]["float32 to bfloat16"]
    assert 0 < narrowed < count  # there are islands of fp32
    assert casts == {
        ("fp32", "fp32"): {},
        ("fp32", "bf16"): {"bfloat16 to float32": count},
        ("bf16", "fp32"): {"float32 to bfloat16": narrowed},
        ("bf16", "bf16"): {"bfloat16 to float32": count - narrowed},
    }


def test_a_changed_compiler_flag_compiles_anew_and_is_named(wanc, tmp_path, monkeypatch, capsys):
    """optimum-neuron #457: compiled with other flags, and served from what was there."""
    compiler = install_neuronx_cc(tmp_path / "bin").parent
    monkeypatch.setenv("PATH", f"{compiler}{os.pathsep}{os.environ['PATH']}")
    plan = tiny_plan(MASKED, "tp1")
    plan = replace(
        plan,
        variant=replace(plan.variant, target="trn2"),
        programs=tuple(p for p in plan.programs if p.name in ("dit_embed", "dit_head")),
        schedule=replace(plan.schedule, stages=()),
    )
    cache, flag = Cache(tmp_path / "cache"), "--enable-fast-loading-neuron-binaries"
    for name, flags in (("a", ()), ("b", (flag,))):
        target = NeuronTarget(name="trn2", flags=flags, timeout_seconds=60, keep=tmp_path / "kept")
        compile_bundle([plan], target, tmp_path / name, cache=cache, jobs=1, progress=Silent())
    assert len(calls(compiler)) == 2 * len(plan.programs)
    keys = [
        {of_json(record.compile_key) for record in config.programs}
        for config in (open_bundle(tmp_path / name).variants[0].config for name in "ab")
    ]
    assert not keys[0] & keys[1]
    with pytest.raises(SystemExit) as end:
        main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--exit-code"])
    assert end.value.code == 1
    out = capsys.readouterr().out
    told = f"compile key\n  flags: added {flag}\n    dit_embed, dit_head in 1\n\nCompiled again"
    assert told in out
    assert "compiled again: 2 programs" in out


def test_bf16_weights_in_an_fp32_bundle_are_the_same_numbers(wanc, bf16_checkpoint, tmp_path):
    bundle = wanc.denoiser(MASKED, "tp1")
    rounded = converted(wanc.checkpoint, tmp_path / "r", torch.bfloat16, torch.float32)
    found = [
        replace(wanc, checkpoint=checkpoint).latents(bundle)
        for checkpoint in (bf16_checkpoint, rounded)
    ]
    assert np.array_equal(*found)
