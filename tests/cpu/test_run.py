"""wanc run as a user has it: files, records, and that nothing of the compile side is touched."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.compiled import tiny_plan
from tests.cpu.conftest import PROMPT, SEED, STEPS
from tests.cpu.test_parity import WHOLE
from wanc.errors import WeightsError
from wanc.run.prompt import PromptTokens
from wanc.run.text import token_embeddings
from wanc.run.vae import tile_ranks
from wanc.spec.presets import NEGATIVE_PROMPT, TINY

NO_COMPILER = """
import sys

class Forbidden:
    names = {"wanc.model", "wanc.trace", "wanc.lower", "wanc.targets", "wanc.compile", "jax"}

    def find_spec(self, name, path=None, target=None):
        if name in self.names or any(name.startswith(one + ".") for one in self.names):
            raise ImportError(f"the run side imported {name}")

sys.meta_path.insert(0, Forbidden())

from jaxlib import _jax

def fail(*_, **__):
    raise AssertionError("the run side compiled something")

for entry in ("compile", "compile_and_load", "compile_ifrt_program"):
    setattr(_jax.Client, entry, fail)

from wanc.cli import main
main(sys.argv[1:])
"""


def line(wanc: Any, bundle: Path, output: Path, *more: str) -> list[str]:
    values = {
        "--bundle": bundle,
        "--weights": wanc.checkpoint,
        "--prompt": PROMPT,
        "--steps": STEPS,
        "--seed": SEED,
        "-o": output,
    }
    return ["run", *(str(part) for pair in values.items() for part in pair), *more]


def test_runs_with_compiling_made_impossible(wanc: Any, tmp_path: Path) -> None:
    output = tmp_path / "v.mp4"
    arguments = line(wanc, wanc.bundle(WHOLE, "tp4-cp8-cfg2"), output, "--json")
    done = subprocess.run(
        [sys.executable, "-c", NO_COMPILER, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)  # stdout holds the record and nothing else
    assert record == json.loads((tmp_path / "v.json").read_text())
    assert record["compile_count"] == 0
    assert record["negative_prompt"] == NEGATIVE_PROMPT
    assert record["sampling"] == {
        "steps": STEPS,
        "flow_shift": 12.0,
        "boundary": 0.875,
        "guidance_high": 4.0,
        "guidance_low": 3.0,
        "seed": SEED,
        "fps": 16,
        "sampler": "unipc",
        "only": None,
        "preset": "official",
    }
    assert [step["expert"] for step in record["steps"]] == ["high_noise"] * 3 + ["low_noise"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["v.json", "v.mp4"]
    check_video(output)


def check_video(path: Path) -> None:
    from imageio.v2 import get_reader

    with get_reader(path) as reader:
        meta = reader.get_meta_data()
        frames = list(reader.iter_data())
    assert meta["fps"] == 16
    assert meta["size"] == (208, 128)
    assert len(frames) == 5
    assert np.std(frames[0]) > 1  # not one flat colour


def test_compile_and_run_equals_load_and_run(wanc: Any) -> None:
    """The same executables from the bundle, opened twice, give the same bits."""
    bundle = wanc.bundle(WHOLE, "tp1")
    first, second = (wanc.sample(wanc.session(bundle)) for _ in range(2))
    assert np.array_equal(first.latents, second.latents)


def test_latents_are_saved_and_profile_runs_twice(wanc: Any, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    record = wanc.generate(
        wanc.bundle(WHOLE, "tp1"),
        tmp_path / "v.mp4",
        latents=tmp_path / "l.safetensors",
        profile=True,
    )
    assert len(record["steps"]) == STEPS
    latents = load_file(tmp_path / "l.safetensors")["latents"]
    assert np.array_equal(latents, wanc.generation(WHOLE, "tp1").latents)


def test_noise_is_the_same_for_every_topology(wanc: Any, tmp_path: Path) -> None:
    digests = {
        wanc.generate(wanc.bundle(WHOLE, topology), tmp_path / "v.mp4")["noise"]
        for topology in ("tp1", "tp2-cp2-cfg2")
    }
    assert len(digests) == 1


@pytest.mark.parametrize(("high", "low"), [(1.0, 1.0), (4.0, 1.0)])
def test_guidance_of_one_leaves_out_the_unconditioned_pass(
    wanc: Any, high: float, low: float
) -> None:
    from wanc.run.request import Guidance

    guidance = Guidance(high=high, low=low)
    latents = [
        wanc.sample(wanc.session(wanc.bundle(WHOLE, topology)), guidance=guidance).latents
        for topology in ("tp2-cp2", "tp2-cp2-cfg2")
    ]
    assert np.array_equal(*latents)


def test_a_sharded_checkpoint_gives_the_same_video(wanc: Any, tmp_path: Path) -> None:
    from wanc.bundle.store import open_bundle
    from wanc.run.load import load
    from wanc.tiny import write_tiny_checkpoint

    write_tiny_checkpoint(tmp_path / "sharded", shards=3)
    opened = open_bundle(wanc.bundle(WHOLE, "tp1"))
    session = load(opened, opened.variants[0].config, tmp_path / "sharded")
    assert np.array_equal(wanc.sample(session).latents, wanc.generation(WHOLE, "tp1").latents)


def test_tiles_are_dealt_evenly_to_fewer_ranks(wanc: Any) -> None:
    """Four tiles on four ranks, taken by three: no rank gets two before every rank has one."""
    plan = tiny_plan("320x320x5", "tp4")
    session = SimpleNamespace(config=SimpleNamespace(tiles=plan.tiles))
    assert plan.tiles.ranks == (0, 1, 2, 3)
    assert tile_ranks(session, 3) == [0, 1, 2, 0]
    assert tile_ranks(session, 2) == [0, 1, 0, 1]
    assert tile_ranks(session, 9) == tile_ranks(session, None) == [0, 1, 2, 3]


def test_a_tokenizer_larger_than_the_table_is_refused(wanc: Any) -> None:
    session = wanc.session(wanc.bundle(WHOLE, "tp1"))
    prompt = PromptTokens(ids=(TINY.text_encoder.vocabulary,) * 512, real=1)
    with pytest.raises(WeightsError, match="1024 rows"):
        token_embeddings(session, [prompt])
    session.close()
