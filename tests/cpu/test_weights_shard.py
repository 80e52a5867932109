"""wanc weights shard as a user has it: the prepared checkpoint runs in place of the original."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.cpu.test_parity import WHOLE
from tests.cpu.test_run import line
from wanc.cli import main
from wanc.run.prompt import Tokenizer
from wanc.run.text import token_embeddings

TOPOLOGY = "tp2-cp2-cfg2"


@pytest.fixture(scope="module")
def prepared(wanc: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint prepared for its bundle, by the command."""
    output = tmp_path_factory.mktemp("prepared") / "weights"
    done = shard(wanc, output)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{output}\n"
    assert "shard: done" in done.stderr
    assert "fp32 cpu: read 1" in done.stderr
    return output


def shard(wanc: Any, output: Path, *more: str) -> subprocess.CompletedProcess[str]:
    bundle = wanc.bundle(WHOLE, TOPOLOGY)
    arguments = ["weights", "shard", wanc.checkpoint, "--bundle", bundle, "-o", output, *more]
    return subprocess.run(
        [sys.executable, "-m", "wanc", *map(str, arguments)], capture_output=True, text=True
    )


def test_run_of_the_prepared_checkpoint_gives_the_same_bits(
    wanc: Any, prepared: Path, tmp_path: Path
) -> None:
    latents = []
    for weights in (wanc.checkpoint, prepared):
        saved = tmp_path / f"{weights.name}.safetensors"
        arguments = line(wanc, wanc.bundle(WHOLE, TOPOLOGY), tmp_path / "v.mp4", "--json")
        arguments[arguments.index("--weights") + 1] = str(weights)
        done = subprocess.run(
            [sys.executable, "-m", "wanc", *arguments, "--save-latents", str(saved)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        latents.append(load_file(saved)["latents"])
        assert json.loads(done.stdout)["casts"] == {}
    assert np.array_equal(*latents)


def test_ranks_hold_the_mapped_files(wanc: Any, prepared: Path) -> None:
    """The run copies next to nothing, and takes each byte of a shard once."""
    from wanc.bundle.store import open_bundle
    from wanc.progress import Silent
    from wanc.run import pipeline
    from wanc.run.load import load

    opened = open_bundle(wanc.bundle(WHOLE, TOPOLOGY))
    counts = {}
    for weights in (wanc.checkpoint, prepared):
        session = load(opened, opened.variants[0].config, weights)
        pipeline.prepare(session, Silent())
        counts[weights] = [each.read_count for each in session.components.values()]
        session.close()
    copied = {weights: sum(count.copied_bytes for count in counts[weights]) for weights in counts}
    touched = [sum(count.touched_bytes for count in found) for found in counts.values()]
    assert copied[prepared] < copied[wanc.checkpoint] / 500  # a few biases of odd sizes
    assert touched[1] == copied[wanc.checkpoint] <= touched[0]


def test_the_embedding_table_stays_as_it_is(wanc: Any, prepared: Path) -> None:
    from types import SimpleNamespace

    from wanc.bundle.store import open_bundle
    from wanc.run.load import open_checkpoint

    config = open_bundle(wanc.bundle(WHOLE, TOPOLOGY)).variants[0].config
    rows = [
        token_embeddings(
            SimpleNamespace(components=open_checkpoint(config, weights), config=config),
            [Tokenizer(weights)("a lighthouse")],
        )
        for weights in (wanc.checkpoint, prepared)
    ]
    assert np.array_equal(*rows)


def test_json_says_what_it_took(wanc: Any, tmp_path: Path) -> None:
    done = shard(wanc, tmp_path / "w", "--json", "--topology", TOPOLOGY)
    record = json.loads(done.stdout)
    written = [f for f in (tmp_path / "w").rglob("*") if f.suffix == ".safetensors"]
    assert record["weights"] == str(tmp_path / "w")
    assert record["variant"] == f"t2v {WHOLE} {TOPOLOGY} fp32 cpu"
    assert record["written_bytes"] > sum(file.stat().st_size for file in written)
    assert record["read"]["copied_bytes"] == record["read"]["touched_bytes"] > 10_000_000


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        (["--topology", "tp8"], 2, "the bundle has no variant of topology tp8"),
        (["-o", "."], 2, "is there already; give the name of a new directory"),
        (["--bundle", "none"], 5, "none: no such bundle"),
    ],
    ids=["variant", "output", "bundle"],
)
def test_refusals_have_exit_codes(
    wanc: Any, tmp_path: Path, change: list[str], code: int, told: str
) -> None:
    done = shard(wanc, tmp_path / "w", *change)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert not list(tmp_path.iterdir())


def test_another_degree_is_refused_before_anything_is_loaded(
    wanc: Any, prepared: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wanc.run.pipeline.prepare", lambda *_: pytest.fail("it was loaded"))
    monkeypatch.setattr("signal.signal", lambda *_: None)  # main would keep SIGTERM for itself
    arguments = line(wanc, wanc.bundle(WHOLE, "tp1"), tmp_path / "v.mp4")
    arguments[arguments.index("--weights") + 1] = str(prepared)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 6
    told = capsys.readouterr().err
    assert "SelfAttention.o.weight is 2 parts of dim 1 in float32; needs whole in float32" in told
    assert "`wanc weights shard` prepares the original checkpoint for a bundle" in told
    assert not list(tmp_path.iterdir())
