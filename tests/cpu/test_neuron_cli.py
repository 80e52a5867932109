"""wanc compile for Trainium from the command line, with the double of neuronx-cc."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.neuron import act_next, calls, install_neuronx_cc
from wanc.bundle.lock import read_lock
from wanc.bundle.store import open_bundle
from wanc.cli import main

REQUEST = ["compile", "--model", "tiny", "--shape", "208x128x5", "--topology", "tp2"]


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_folder: Path) -> Path:
    """The double's folder, first on PATH, and a cache that knows the programs' StableHLO only."""
    folder = install_neuronx_cc(tmp_path / "bin").parent
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache" / "wanc").mkdir(parents=True)
    for kept in ("blobs", "stablehlo"):
        lowered = shared_folder / "lowered" / kept
        lowered.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cache" / "wanc" / kept).symlink_to(lowered)
    return folder


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return int(end.value.code or 0)


def test_auto_finds_the_compiler(compiler: Path, tmp_path: Path, capsys: Any) -> None:
    assert run(*REQUEST, "-o", tmp_path / "b") == 0
    assert "target trn2 (auto: neuronx-cc found)" in capsys.readouterr().err
    (variant,) = open_bundle(tmp_path / "b").variants
    assert variant.config.variant.target == "trn2"
    assert variant.config.requires["compiler"]["version"].startswith("2.")
    assert len(calls(compiler)) == len(variant.config.programs) == 7


def test_no_compiler_is_met_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("wanc.compile.lower_cached", lambda *_: pytest.fail("work was begun"))
    assert run(*REQUEST, "--target", "trn2", "-o", tmp_path / "b") == 4
    assert "pip install -U neuronx-cc" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_flags_are_in_the_key(compiler: Path, tmp_path: Path) -> None:
    flags = "--enable-fast-loading-neuron-binaries"
    assert run(*REQUEST, "--target", "trn2", "-o", tmp_path / "a") == 0
    more = ["--neuron-flags", flags, "--neuron-input", "stablehlo"]
    assert run(*REQUEST, "--target", "trn2", "-o", tmp_path / "b", *more) == 0
    plain, flagged = (open_bundle(tmp_path / name).variants[0].config for name in "ab")
    for one, two in zip(plain.programs, flagged.programs, strict=True):
        assert one.stablehlo == two.stablehlo
        assert two.compile_key["flags"] == [*one.compile_key["flags"], flags]
        assert (one.compile_key["input_form"], two.compile_key["input_form"]) == (
            "hlo",
            "stablehlo",
        )
    assert len(calls(compiler)) == 14


def test_a_failure_names_what_is_kept(compiler: Path, tmp_path: Path, capsys: Any) -> None:
    act_next(compiler, "error")
    assert run(*REQUEST, "--target", "trn2", "-o", tmp_path / "b", "--jobs", "1") == 4
    kept = tmp_path / "cache" / "wanc" / "failed"
    (folder,) = kept.iterdir()
    assert str(folder) in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_a_failure_does_not_wait_for_other_compilers(
    compiler: Path, tmp_path: Path, capsys: Any
) -> None:
    """The last program fails when all are lowered, while the first is still at it."""
    act_next(compiler, "hang", *["ok"] * 5, "error")
    assert run(*REQUEST, "-o", tmp_path / "b", "--jobs", "2", "--timeout", "1") == 4
    assert "failed with status 1" in capsys.readouterr().err
    assert not any(alive(call["pid"]) for call in calls(compiler))


def test_a_compile_that_is_killed_is_taken_up_without_repeating(
    compiler: Path, tmp_path: Path
) -> None:
    act_next(compiler, "ok", "ok", "ok", "hang")
    line = [sys.executable, "-m", "wanc", *REQUEST, "--target", "trn2", "--jobs", "1"]
    running = subprocess.Popen([*line, "-o", tmp_path / "b"], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while len(calls(compiler)) < 4:
            assert time.monotonic() < deadline
            assert running.poll() is None
            time.sleep(0.05)
    finally:
        running.kill()
        running.wait()
    hanging = calls(compiler)[-1]["pid"]
    os.kill(hanging, signal.SIGKILL)
    assert not (tmp_path / "b").exists()
    assert run(*REQUEST, "--target", "trn2", "-o", tmp_path / "b") == 0
    assert len(calls(compiler)) == 4 + 4  # three were done, the fourth is made again
    assert open_bundle(tmp_path / "b").variants[0].config.stage == "compile"


def test_a_lock_alone(compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.yaml").write_text(
        "model: tiny\ntarget: trn2\nshapes: [208x128x5]\ntopologies: [tp2]\n"
    )
    assert run("compile", "some.yaml", "--stop-after", "lower", "--lock") == 0
    lock = read_lock(tmp_path / "bundles" / "some.lock.json")
    assert [*lock.variants] == ["tiny t2v 208x128x5 tp2 bf16 trn2 trn2-torus"]
    assert len(lock.variants["tiny t2v 208x128x5 tp2 bf16 trn2 trn2-torus"]) == 7
    assert {path.name for path in (tmp_path / "bundles").iterdir()} == {"some.lock.json"}
    assert calls(compiler) == []
    assert run("compile", "some.yaml", "--lock", "-o", "b") == 0
    assert run("diff", "b", "bundles/some.lock.json", "--exit-code") == 0


@pytest.mark.parametrize(
    "arguments", [["--lock"], ["--lock", "--stop-after", "lower"]], ids=lambda a: " ".join(a)
)
def test_a_lock_is_named_after_its_set(arguments: list[str]) -> None:
    assert run(*REQUEST, "--target", "cpu", *arguments) == 2


TOO_LONG = (
    *("compile", "--model", "wan2.2-t2v-a14b", "--shape", "1280x720x81", "--target", "trn2"),
    *("--topology", "tp8-cp4-cfg2", "--blocks-per-program", "20"),
)
"""A program of more instructions than the compiler takes."""


def test_what_can_only_be_planned_is_not_compiled(tmp_path: Path, capsys: Any) -> None:
    assert run(*TOO_LONG, "-o", tmp_path / "b") == 3
    assert "--blocks-per-program" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(("stage", "code"), [("plan", 0), ("trace", 3), ("lower", 3)])
def test_nor_is_its_text_shown_beyond_the_plan(stage: str, code: int, capsys: Any) -> None:
    assert run(*TOO_LONG, "--stop-after", stage) == code
    shown = capsys.readouterr()
    assert "million instructions" in shown.err
    assert bool(shown.out) is (code == 0)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--neuron-flags", "--verbose='info"], "No closing quotation"),
        (["--neuron-flags", "--target trn1"], "wanc sets --target itself"),
        (["--isa", "x86-64-v4"], "--isa: for target cpu"),
        (["--target", "cpu", "--timeout", "60"], "--timeout: for Trainium"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[-1],
)
def test_compiler_options_that_cannot_be(
    compiler: Path, wrong: list[str], says: str, tmp_path: Path, capsys: Any
) -> None:
    assert run(*REQUEST, *wrong, "-o", tmp_path / "b") == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP], ids=lambda sent: sent.name)
def test_a_signal_leaves_no_compiler(compiler: Path, tmp_path: Path, sent: signal.Signals) -> None:
    """SIGHUP is what a broken connection sends, an hour into a compile."""
    act_next(compiler, "hang")
    line = [sys.executable, "-m", "wanc", *REQUEST, "--target", "trn2", "--jobs", "1"]
    running = subprocess.Popen([*line, "-o", tmp_path / "b"], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (compiler / "child.pid").exists():
            assert time.monotonic() < deadline
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(sent)
        assert running.wait(timeout=30) == 128 + sent
    finally:
        running.kill()
        running.wait()
    for pid in (calls(compiler)[-1]["pid"], int((compiler / "child.pid").read_text())):
        assert not alive(pid)


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
