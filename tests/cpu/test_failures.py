"""Bad input and bad luck: a clear error, the right exit code, and nothing left behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wanc.compile as story
from tests.cpu.conftest import PROMPT
from tests.cpu.test_parity import WHOLE
from tests.cpu.test_run import check_video, line
from wanc.cli import main
from wanc.errors import WancError


def fails(arguments: list[str], code: int, capsys: Any, *said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    captured = capsys.readouterr()
    assert ended.value.code == code, captured.err
    for words in said:
        assert words in captured.err
    assert captured.out == ""


@pytest.fixture
def bundle(wanc: Any, tmp_path: Path) -> Path:
    """A bundle that a test may damage."""
    copy = tmp_path / "bundle"
    shutil.copytree(wanc.bundle(WHOLE, "tp1"), copy)
    return copy


@pytest.fixture
def checkpoint(wanc: Any, tmp_path: Path) -> Path:
    """A checkpoint that a test may damage."""
    copy = tmp_path / "checkpoint"
    shutil.copytree(wanc.checkpoint, copy)
    return copy


def run_line(bundle: Path, weights: Path, output: Path, *more: str) -> list[str]:
    start = ["run", "--bundle", str(bundle), "--weights", str(weights), "--prompt", PROMPT]
    return [*start, "--steps", "4", "--seed", "1", "-o", str(output), *more]


def largest_blob(bundle: Path) -> Path:
    return max((bundle / "blobs" / "sha256").iterdir(), key=lambda file: file.stat().st_size)


def test_flipped_byte(bundle: Path, wanc: Any, tmp_path: Path, capsys: Any) -> None:
    blob = largest_blob(bundle)
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    arguments = run_line(bundle, wanc.checkpoint, tmp_path / "v.mp4")
    fails(arguments, 5, capsys, blob.name, "damaged")
    assert not list(tmp_path.glob("*.mp4"))


def test_missing_blob(bundle: Path, wanc: Any, tmp_path: Path, capsys: Any) -> None:
    blob = largest_blob(bundle)
    blob.unlink()
    arguments = run_line(bundle, wanc.checkpoint, tmp_path / "v.mp4")
    fails(arguments, 5, capsys, blob.name, "missing")


def test_another_jaxlib(
    bundle: Path, wanc: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wanc.runtime.cpu_runtime.version_of", lambda _: "0.99.0")
    arguments = run_line(bundle, wanc.checkpoint, tmp_path / "v.mp4")
    fails(arguments, 5, capsys, "need jaxlib 0.10.2", "0.99.0")


def test_another_cpu(
    bundle: Path, wanc: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wanc.bundle.xla_cpu.machine_flags", lambda: frozenset({"sse4_2"}))
    arguments = run_line(bundle, wanc.checkpoint, tmp_path / "v.mp4")
    fails(arguments, 5, capsys, "avx2")


def test_a_shape_that_the_bundle_lacks(
    bundle: Path, wanc: Any, tmp_path: Path, capsys: Any
) -> None:
    arguments = run_line(bundle, wanc.checkpoint, tmp_path / "v.mp4", "--shape", "208x128x9")
    fails(arguments, 2, capsys, "208x128x5", "wanc compile", "--shape 208x128x9")


@pytest.mark.parametrize("output", ["missing/v.mp4", "folder.mp4"])
def test_output_that_cannot_be_written_is_found_before_any_work(
    bundle: Path,
    wanc: Any,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
    output: str,
) -> None:
    (tmp_path / "folder.mp4").mkdir()
    monkeypatch.setattr("wanc.run.pipeline.load", lambda *_: pytest.fail("work was begun"))
    fails(run_line(bundle, wanc.checkpoint, tmp_path / output), 6, capsys, output)


def test_truncated_weights(bundle: Path, checkpoint: Path, tmp_path: Path, capsys: Any) -> None:
    (file,) = (checkpoint / "transformer").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-100])
    fails(run_line(bundle, checkpoint, tmp_path / "v.mp4"), 6, capsys, str(file))


def test_ctrl_c_while_denoising_leaves_nothing(
    bundle: Path, wanc: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("wanc.run.pipeline.predict_noise", interrupted)
    before = set(tmp_path.iterdir())
    with pytest.raises(SystemExit) as ended:
        main(run_line(bundle, wanc.checkpoint, tmp_path / "v.mp4"))
    assert ended.value.code == 130
    assert set(tmp_path.iterdir()) == before


def edit_config(checkpoint: Path, name: str, **changed: Any) -> None:
    file = checkpoint / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))


@pytest.mark.parametrize(
    ("file", "changed", "said"),
    [
        ("transformer", {"num_attention_heads": 4, "attention_head_dim": 48}, "heads"),
        ("transformer", {"eps": 1e-5}, "eps"),
        ("text_encoder", {"relative_attention_max_distance": 64}, "max_distance"),
        ("vae", {"latents_mean": [0.0] * 16}, "latents_mean"),
    ],
)
def test_a_checkpoint_of_other_numbers_is_refused(
    bundle: Path,
    checkpoint: Path,
    tmp_path: Path,
    capsys: Any,
    file: str,
    changed: dict[str, Any],
    said: str,
) -> None:
    """None of these leaves a trace in the shapes of tensors."""
    for name in [file, *(["transformer_2"] if file == "transformer" else [])]:
        edit_config(checkpoint, f"{name}/config.json", **changed)
    fails(run_line(bundle, checkpoint, tmp_path / "v.mp4"), 6, capsys, "another model", said)


def test_the_checkpoint_s_boundary_is_used(
    bundle: Path, checkpoint: Path, tmp_path: Path, capsys: Any
) -> None:
    edit_config(checkpoint, "model_index.json", boundary_ratio=0.95)
    with pytest.raises(SystemExit) as ended:
        main(run_line(bundle, checkpoint, tmp_path / "v.mp4", "--json"))
    assert ended.value.code == 0
    record = json.loads(capsys.readouterr().out)
    assert record["sampling"]["boundary"] == 0.95
    assert [step["expert"] for step in record["steps"]].count("low_noise") == 2


def test_a_full_disk_while_writing_leaves_the_latents(
    bundle: Path, wanc: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("wanc.run.outputs.write_video", full)
    before, latents = set(tmp_path.iterdir()), tmp_path / "l.safetensors"
    named = ["--save-latents", str(latents)]
    with pytest.raises(SystemExit) as ended:
        main(run_line(bundle, wanc.checkpoint, tmp_path / "v.mp4", *named))
    assert ended.value.code == 6
    said = capsys.readouterr().err
    assert "No space left" in said
    assert f"wanc decode --latents {latents}" in said
    assert set(tmp_path.iterdir()) == before | {latents}, "what decoding goes on from"


def test_latents_may_not_take_the_record_s_name(
    bundle: Path, wanc: Any, tmp_path: Path, capsys: Any
) -> None:
    arguments = run_line(bundle, wanc.checkpoint, tmp_path / "v.mp4")
    fails([*arguments, "--save-latents", str(tmp_path / "v.json")], 6, capsys, "v.json")


def test_weights_that_memory_cannot_hold_are_refused(
    bundle: Path, wanc: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wanc.run.memory.free_memory", lambda machine: (1 << 20, False))
    fails(run_line(bundle, wanc.checkpoint, tmp_path / "v.mp4"), 6, capsys, "0.0 GiB", "free")


def test_a_cache_that_takes_no_file_is_found_before_any_work(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(story, "lower_cached", lambda *_: pytest.fail("work was begun"))
    arguments = ["compile", "--model", "tiny", "--shape", WHOLE, "-o", str(tmp_path / "b")]
    fails(arguments, 6, capsys, "XDG_CACHE_HOME")


@pytest.mark.soak
def test_signals_at_any_moment_leave_no_half_file(
    wanc: Any, tmp_path: Path, repetitions: Callable[[int, int], int]
) -> None:
    """SIGINT and SIGTERM while wanc loads, denoises, decodes or writes: no mp4, or a whole one."""
    bundle = wanc.bundle(WHOLE, "tp1")
    count = repetitions(2, 20)
    for i in range(count):
        output = tmp_path / f"v{i}.mp4"
        process = subprocess.Popen(
            [sys.executable, "-m", "wanc", *line(wanc, bundle, output)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        time.sleep(1 + 7 * (i + 1) / count)
        sent = (signal.SIGINT, signal.SIGTERM)[i % 2]
        process.send_signal(sent)
        _, errors = process.communicate(timeout=60)
        assert process.returncode in (0, 128 + sent, -sent), errors.decode()
        assert output.exists() or process.returncode
        if output.exists():  # also where the signal came after the file had its name
            check_video(output)
            assert output.with_suffix(".json").exists()
        assert not list(tmp_path.glob(".new-*"))


KILLED_AT = """
import os, signal, sys
from pathlib import Path

replace, left = Path.replace, [int(sys.argv[1])]

def kill(self, target):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)

Path.replace = kill
from wanc.cli import main
main(sys.argv[2:])
"""


@pytest.mark.soak
def test_a_compile_killed_at_any_rename_leaves_the_old_bundle_or_the_new(
    wanc: Any, tmp_path: Path, repetitions: Callable[[int, int], int]
) -> None:
    """SIGKILL at the n-th file that gets its name, the bundle's index among the last."""
    from wanc.bundle.store import open_bundle

    wanc.bundle(WHOLE, "cp2")  # now all that is left to do is to write the bundle
    bundle = tmp_path / "bundle"
    line = ["compile", "--model", str(wanc.checkpoint), "--shape", WHOLE, "--topology", "cp2"]
    cache = tmp_path / "home" / "wanc"
    cache.parent.mkdir()
    cache.symlink_to(wanc.cache.path)
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache.parent)}
    killed = 0
    for n in range(1, 1 + repetitions(18, 30), repetitions(6, 1)):
        shutil.rmtree(bundle, ignore_errors=True)
        shutil.copytree(wanc.bundle(WHOLE, "tp1"), bundle)
        before = open_bundle(bundle).digest
        done = subprocess.run(
            [sys.executable, "-c", KILLED_AT, str(n), *line, "-o", str(bundle)],
            env=environment,
            capture_output=True,
        )
        killed += done.returncode == -signal.SIGKILL
        after = open_bundle(bundle)
        assert after.digest == before or len(after.variants) == 2
    assert killed


def test_ctrl_c_while_compiling_stops_the_compilers(
    wanc: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes while one program is in its compiler and another is being lowered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lower_cached = story.lower_cached

    def interrupted(program: Any, *how: Any) -> Any:
        if program.name == "dit_embed":
            raise KeyboardInterrupt
        return lower_cached(program, *how)

    monkeypatch.setattr(story, "lower_cached", interrupted)
    model = ["--model", str(wanc.checkpoint), "--shape", WHOLE]
    with pytest.raises(SystemExit) as ended:
        main(["compile", *model, "-o", str(tmp_path / "b"), "--jobs", "1"])
    assert ended.value.code == 130
    assert not (tmp_path / "b").exists()
    assert not compilers_that_run()


def compilers_that_run() -> list[str]:
    """Command lines of this process' children that are compilers."""
    children = Path("/proc/self/task").glob("*/children")
    ids = [number for file in children for number in file.read_text().split()]
    lines = [Path(f"/proc/{number}/cmdline") for number in ids]
    texts = [line.read_text() for line in lines if line.exists()]
    return [text for text in texts if "cpu_worker" in text]


def test_every_error_is_json_with_json(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(tmp_path / "none"), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"]["exit_code"] == ended.value.code == 5


COMPILE_REFUSALS = [
    (["--shape", "208x128"], 2, "208x128"),
    (["--shape", "210x128x5"], 2, "208 and 224"),
    (["--shape", "208x128x6"], 2, "5 and 9"),
    (["--shape", WHOLE, "--topology", "tp2-pp2"], 2, "pp2"),
    (["--shape", WHOLE, "--topology", "cfg3"], 2, "cfg"),
    (["--shape", WHOLE, "--topology", "tp3"], 3, "tp1, tp2, tp4, tp8"),
    (["--shape", WHOLE, "--topology", "tp4-cp8-cfg2", "--max-ranks", "32"], 3, "32"),
    (["--shape", WHOLE, "--model", "wan9"], 3, "wan9"),
    (["--shape", WHOLE, "--model", "."], 3, "model_index.json"),
    (["--shape", WHOLE, "--blocks-per-program", "3"], 3, "1, 2"),
    (["--shape", WHOLE, "--target", "tpu"], 3, "tpu"),
    ([], 2, "--shape"),
]


@pytest.mark.parametrize(("arguments", "code", "said"), COMPILE_REFUSALS)
def test_compile_refuses_before_anything_is_traced(
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    model = [] if "--model" in arguments else ["--model", "tiny"]
    with pytest.raises(SystemExit) as ended:
        main(["compile", *model, *arguments, "-o", "b"])
    assert ended.value.code == code
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_every_error_has_a_code_of_the_tree() -> None:
    codes = {kind.exit_code for kind in WancError.__subclasses__()}
    assert codes == {2, 3, 4, 5, 6, 7}
