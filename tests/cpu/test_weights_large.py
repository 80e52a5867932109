"""What a rank reads of a large checkpoint: its share, of the original and of prepared files."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.compiled import tiny_plan
from wanc.digest import of_bytes
from wanc.plan.abi import Weight
from wanc.plan.plan import Plan
from wanc.progress import Silent
from wanc.spec.presets import TINY
from wanc.spec.target import DTYPE_BYTES
from wanc.weights.checkpoint import Component, open_components
from wanc.weights.needs import Need, calls, schedule_needs
from wanc.weights.prepare import prepare_shards
from wanc.weights.shards import read_shards
from wanc.weights.stored import ReadCount

MOST = 1.1
"""Bytes copied, as a multiple of the rank's own shards."""

FILE_TENSORS = 32
SAMPLE, FULL = 640, 1536
"""Widths of experts whose checkpoints take more than 64 MB with 2 blocks, 2 GB with 14."""

Weights = dict[tuple[str, str], Weight]


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a rank has to hold, in the dtypes that programs take."""

    split_bytes: int
    replicated_bytes: int


def large_plan(width: int) -> Plan:
    """tp4 in bf16, of a model whose experts hold most of it."""
    blocks = 2 if width == SAMPLE else 14
    experts = replace(
        TINY.transformer, heads=8, head_width=width // 8, ffn_width=4 * width, layers=blocks
    )
    model = replace(TINY, name="large", transformer=experts)
    return tiny_plan("208x128x5", "tp4", "bf16", model=model)


def weights_of(plan: Plan) -> Weights:
    """Every tensor that a rank takes, by component and name."""
    programs = {program.name: program for program in plan.programs}
    return {
        (call.component, weight.tensor_in(call.layers)): weight
        for call in calls(plan.schedule)
        for weight in programs[call.program].weights
    }


def needs_of(plan: Plan) -> list[Need]:
    return schedule_needs(plan.schedule, {program.name: program for program in plan.programs})


def write_random(plan: Plan, directory: Path) -> int:
    """Random bytes in the ABI's dtypes, in several files with an index; returns the bytes."""
    rng = np.random.Generator(np.random.PCG64(0))
    weights = weights_of(plan)
    for name in dict.fromkeys(component for component, _ in weights):
        folder, weight_map = directory / name, {}
        folder.mkdir(parents=True)
        tensors = [tensor for component, tensor in weights if component == name]
        for start in range(0, len(tensors), FILE_TENSORS):
            file = f"model-{start}.safetensors"
            some = tensors[start : start + FILE_TENSORS]
            save_file({tensor: draw(weights[name, tensor], rng) for tensor in some}, folder / file)
            weight_map |= dict.fromkeys(some, file)
        index = json.dumps({"weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(index)
    return sum(need.bytes for need in needs_of(plan))


def draw(weight: Weight, rng: np.random.Generator) -> Any:
    """The whole tensor, of random bits."""
    count = prod(weight.stored_shape) * DTYPE_BYTES[weight.dtype]
    return np.frombuffer(rng.bytes(count), weight.dtype).reshape(weight.stored_shape)


def prepare_all(plan: Plan, original: Path, directory: Path) -> None:
    needs = needs_of(plan)
    with Silent().task("shard", len(needs)) as task:
        for name, component in opened(plan, original).items():
            (directory / name).mkdir(parents=True)
            mine = [need for need in needs if need.component == name]
            prepare_shards(component, mine, directory / name, task)


def opened(plan: Plan, directory: Path) -> dict[str, Component]:
    return open_components(directory, [*dict.fromkeys(name for name, _ in weights_of(plan))])


def share_of(plan: Plan) -> Share:
    """The same for every rank."""
    weights = weights_of(plan).values()
    return Share(
        split_bytes=sum(weight.bytes for weight in weights if weight.axis),
        replicated_bytes=sum(weight.bytes for weight in weights if not weight.axis),
    )


def read_of(plan: Plan, directory: Path, rank: int) -> tuple[ReadCount, dict[Any, bytes]]:
    """What one rank reads, and digests of its shards."""
    components = opened(plan, directory)
    digests = {}
    for (component, tensor), weight in weights_of(plan).items():
        (shard,) = read_shards(components[component], tensor, weight, plan.mesh, (rank,))
        digests[component, tensor] = of_bytes(shard.reshape(-1).view(np.uint8).data)
    return sum((each.read_count for each in components.values()), ReadCount()), digests


@pytest.mark.soak
def test_a_rank_reads_its_share(tmp_path: Path, repetitions: Callable[[int, int], int]) -> None:
    """tp4; 64 MB in make test, 2 GB in make soak. Run with -s for the figures."""
    width = repetitions(SAMPLE, FULL)
    plan = large_plan(width)
    total_bytes = write_random(plan, tmp_path / "original")
    assert total_bytes > (64e6 if width == SAMPLE else 2e9)
    prepare_all(plan, tmp_path / "original", tmp_path / "prepared")
    share = share_of(plan)
    held_bytes = share.split_bytes + share.replicated_bytes
    print(f"\ncheckpoint of {total_bytes / 1e6:.1f} MB at tp4, MB of each rank")
    print("rank   share  replicated  original: copied  touched  prepared: copied  touched")
    for rank in plan.mesh.ranks:
        original, shards = read_of(plan, tmp_path / "original", rank)
        prepared, same_shards = read_of(plan, tmp_path / "prepared", rank)
        figures = (
            *(share.split_bytes, share.replicated_bytes),
            *(original.copied_bytes, original.touched_bytes),
            *(prepared.copied_bytes, prepared.touched_bytes),
        )
        row = [f"{value / 1e6:.2f}" for value in figures]
        print(f"{rank:4} {row[0]:>7} {row[1]:>11} {row[2]:>17} {row[3]:>8}", end="")
        print(f" {row[4]:>17} {row[5]:>8}")
        assert shards == same_shards
        assert original.copied_bytes <= MOST * share.split_bytes + share.replicated_bytes
        assert original.touched_bytes >= original.copied_bytes == held_bytes
        assert prepared.touched_bytes == held_bytes
        assert prepared.copied_bytes < held_bytes / 1000
