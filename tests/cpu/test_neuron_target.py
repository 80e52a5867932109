"""The neuron targets, with a double of neuronx-cc: commands, keys, and every known way to fail."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event, Timer
from typing import Any

import pytest

from tests.cpu.test_cpu_target import artifact
from tests.doubles import neuronx_cc
from tests.doubles.neuron import act_next, calls, input_of, install_neuronx_cc
from tests.programs import replicas
from wanc.bundle.neff import read_neff
from wanc.digest import of_bytes, of_json
from wanc.errors import RefusedError, RequestError, ToolchainError
from wanc.plan.abi import Program, Tensor
from wanc.targets import neuron
from wanc.targets.choose import NeuronOptions, target_named
from wanc.targets.neuron import NeuronTarget
from wanc.targets.neuron_hlo import hlo_module
from wanc.targets.target import Target

TEXT = """
module @toy {
  func.func public @main(%x: tensor<2x3xf32> {tf.aliasing_output = 1 : i32}, %y: tensor<4xbf16>)
      -> (tensor<4xbf16>, tensor<2x3xf32>) {
    %a = stablehlo.tanh %y : tensor<4xbf16>
    %b = stablehlo.add %x, %x : tensor<2x3xf32>
    return %a, %b : tensor<4xbf16>, tensor<2x3xf32>
  }
}
"""
STABLEHLO = artifact(TEXT)
PROGRAM = replace(
    replicas(1, "dit_blocks"),
    inputs=(
        Tensor(name="cache", shape=(2, 3), dtype="float32"),
        Tensor(name="latent", shape=(4,), dtype="bfloat16"),
    ),
    outputs=(
        Tensor(name="out", shape=(4,), dtype="bfloat16"),
        Tensor(name="next", shape=(2, 3), dtype="float32"),
    ),
    donated={"cache": "next"},
)
VAE = replace(PROGRAM, kind="vae_decode_first")
UNSAFE_FP8 = "--internal-hlo2tensorizer-options=--experimental-unsafe-fp8e4m3fn-as-fp8e4m3"
KEPT = of_bytes(STABLEHLO)[7:19] + "-dit_blocks"

Make = Callable[..., NeuronTarget]


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH with the double, which compiles until it is told to act."""
    folder = tmp_path / "bin"
    install_neuronx_cc(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make("trn3", flags=..., input_form=..., timeout_seconds=...)."""

    def made(name: str = "trn2", **options: Any) -> NeuronTarget:
        return NeuronTarget(
            name=name, **{"timeout_seconds": 60.0, "keep": tmp_path / "failed", **options}
        )

    return made


def ended(pid: int) -> bool:
    """Whether a process ends within a moment, waited for or not."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


# --- a compile ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("program", "target"), [(PROGRAM, "trn2"), (VAE, "trn3")])
def test_command_is_the_documented_one(make: Make, bin_folder: Path, program: Program, target: str):
    component = {
        "dit_blocks": "--model-type=transformer",
        "vae_decode_first": "--model-type=unet-inference",
    }[program.kind]
    neff = make(target, flags=("--verbose", "info")).compile(program, STABLEHLO)
    (call,) = calls(bin_folder)
    assert call["arguments"] == [
        *("compile", "program.hlo", "--framework", "XLA", "--target", target, "--lnc", "2"),
        *(component, "--auto-cast=none", "-O1", "--internal-max-instruction-limit=15000000"),
        *("--hbm-scratchpad-page-size=2048", "--verbose", "info", "--output", "program.neff"),
    ]
    assert input_of(neff) == hlo_module(STABLEHLO)
    assert not Path(call["folder"]).exists()


def test_neff_has_the_interface_of_the_program(make: Make, bin_folder: Path):
    neff = read_neff(make().compile(PROGRAM, STABLEHLO), "toy")
    assert [(t.name, t.size_bytes) for t in neff.inputs] == [("input0", 24), ("input1", 8)]
    assert [(t.name, t.size_bytes) for t in neff.outputs] == [("output0", 8), ("output1", 24)]
    assert neff.header.lnc == 2


def test_stablehlo_goes_as_it_is(make: Make, bin_folder: Path):
    neff = make(input_form="stablehlo").compile(PROGRAM, STABLEHLO)
    assert input_of(neff) == STABLEHLO
    assert calls(bin_folder)[0]["arguments"][1] == "program.mlir"


def test_environment_is_its_own(make: Make, bin_folder: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("NEURON_CC_FLAGS", "NEURON_RT_VISIBLE_CORES", "XLA_FLAGS", "PYTHONPATH"):
        monkeypatch.setenv(name, "--of-the-user")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/libraries")
    make().compile(PROGRAM, STABLEHLO)
    (call,) = calls(bin_folder)
    environment = call["environment"]
    assert set(environment) - {"LC_CTYPE"} == {  # Python sets that one for itself
        *("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR", "PYTHONHASHSEED"),
    }
    assert environment["PATH"] == os.environ["PATH"]
    assert environment["LD_LIBRARY_PATH"] == "/libraries"
    assert environment["TMPDIR"] == call["folder"]


def test_threads_compile_at_the_same_time(make: Make, bin_folder: Path):
    act_next(bin_folder, *["slow 0.3", "exit70"] * 2)
    started = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        neffs = list(pool.map(lambda _: make().compile(PROGRAM, STABLEHLO), range(4)))
    assert len(set(neffs)) == 1
    assert len(calls(bin_folder)) == 6
    assert time.monotonic() - started < 20


# --- flags ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flag",
    [
        *("--target", "--target=trn1", "--lnc", "-lnc=1", "--logical-nc-config=1", "--output=x"),
        *("--framework", "--frame", "--hbm-scratchpad-page-size=512", "--t", "--outp"),
    ],
)
def test_flags_that_wanc_sets_are_refused(make: Make, flag: str):
    with pytest.raises(RequestError, match=r"wanc sets --?[a-z-]+ itself"):
        make(flags=("--verbose=info", flag))


def test_flags_start_with_a_dash(make: Make):
    with pytest.raises(RequestError, match=r"'other\.hlo': flags start with a dash"):
        make(flags=("other.hlo",))


def test_unsafe_fp8_is_for_trn2(make: Make, bin_folder: Path):
    assert make("trn2", flags=(UNSAFE_FP8,)).compile(PROGRAM, STABLEHLO)
    with pytest.raises(RefusedError, match=r"trn3 has float8_e4m3fn.*NCC_EOCP001"):
        make("trn3", flags=(UNSAFE_FP8,))


def test_unknown_flag_is_the_compilers_to_refuse(make: Make, bin_folder: Path):
    with pytest.raises(ToolchainError, match=r"status 2; .*(?s:.*)unrecognized .*--no-such-flag"):
        make(flags=("--no-such-flag",)).compile(PROGRAM, STABLEHLO)


@pytest.mark.parametrize(
    ("options", "cause"),
    [({"name": "trn1"}, "trn2 or trn3"), ({"input_form": "onnx"}, "hlo or stablehlo")],
)
def test_unknown_options_are_refused(make: Make, options: dict[str, str], cause: str):
    with pytest.raises(RefusedError, match=cause):
        make(**options)


# --- failures -------------------------------------------------------------------------------------


def failure(target: NeuronTarget, **how: Any) -> str:
    with pytest.raises(ToolchainError) as caught:
        target.compile(PROGRAM, STABLEHLO, **how)
    return str(caught.value)


@pytest.mark.parametrize(
    ("act", "cause"),
    [
        ("killed", "was killed, for want of memory most likely; run fewer compilers at once"),
        ("killed137", "was killed, for want of memory most likely; run fewer compilers at once"),
        ("killedchild", "was killed, for want of memory most likely; run fewer compilers at once"),
        ("segfault", "was killed by SIGSEGV"),
        ("error", "failed with status 1"),
        ("diagnosed", "failed with status 70"),
        ("nothing", "ended with status 0 and wrote no file"),
        ("empty", "ended with status 0 and wrote an empty file"),
        ("garbage", "ended with status 0, but its output: not a NEFF"),
        ("wrong-size", "input0 (cache): 26 bytes; needed are 24, float32 2x3"),
        ("wrong-count", "3 outputs; needed are 2"),
        ("wrong-lnc", "LNC 1; needed is 2"),
    ],
)
def test_failure_is_told_and_kept(
    make: Make, bin_folder: Path, tmp_path: Path, act: str, cause: str
):
    act_next(bin_folder, act)
    text = failure(make())
    assert text.startswith(
        f"program dit_blocks {of_bytes(STABLEHLO)[:19]}: neuronx-cc {neuronx_cc.VERSION} "
    )
    assert cause in text
    assert len(calls(bin_folder)) == 1, "no other failure is tried again"
    kept = tmp_path / "failed" / KEPT
    assert f"command, log and input are kept in {kept}" in text
    assert (kept / "program.hlo").read_bytes() == hlo_module(STABLEHLO)
    log = (kept / "log-1.txt").read_text()
    assert text.endswith(log.strip() or "it wrote nothing")
    assert {path.name for path in kept.iterdir()} - {"program.neff"} == {
        *("command.sh", "program.hlo", "log-1.txt"),
    }


def test_kept_command_runs(make: Make, bin_folder: Path, tmp_path: Path):
    act_next(bin_folder, "error")
    failure(make(flags=("--verbose=info", "--internal-hlo2tensorizer-options=--a --b")))
    kept = tmp_path / "failed" / KEPT
    done = subprocess.run([kept / "command.sh"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert read_neff((kept / "program.neff").read_bytes(), "again")
    first, second = calls(bin_folder)
    assert first["arguments"] == second["arguments"]
    assert {*second["environment"]} - {*first["environment"]} <= {"LD_LIBRARY_PATH", "PWD"}


def test_transient_failure_is_tried_again(make: Make, bin_folder: Path, tmp_path: Path):
    act_next(bin_folder, "exit70", "exit70", "ok")
    assert make().compile(PROGRAM, STABLEHLO)
    assert [call["act"] for call in calls(bin_folder)] == ["exit70", "exit70", "ok"]
    assert not (tmp_path / "failed").exists()


def test_transient_failure_is_given_up(make: Make, bin_folder: Path, tmp_path: Path):
    act_next(bin_folder, "exit70", "exit70", "exit70", "ok")
    assert "failed with status 70, 3 times; command" in failure(make())
    assert len(calls(bin_folder)) == 3
    logs = sorted((tmp_path / "failed" / KEPT).glob("log-*.txt"))
    assert [log.read_text() for log in logs] == ["some backend ended without a reason\n"] * 3


def test_another_failure_ends_the_attempts(make: Make, bin_folder: Path):
    act_next(bin_folder, "exit70", "error", "ok")
    assert "failed with status 1, 2 times" in failure(make())


def test_folder_that_takes_nothing_hides_no_failure(make: Make, bin_folder: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    act_next(bin_folder, "error")
    text = failure(make(keep=tmp_path / "file" / "failed"))
    assert "failed with status 1" in text
    assert "its files could not be kept in" in text
    assert text.endswith("error: an internal error")


def test_garbage_reaches_no_compiler(make: Make, bin_folder: Path):
    with pytest.raises(ToolchainError, match="jaxlib makes no HLO"):
        make().compile(PROGRAM, b"garbage")
    assert not calls(bin_folder)


# --- nothing is left running ----------------------------------------------------------------------


def pids(bin_folder: Path) -> list[int]:
    """Of the compiler, and of what it started."""
    return [calls(bin_folder)[0]["pid"], int((bin_folder / "child.pid").read_text())]


def test_hanging_compiler_is_killed_with_its_children(make: Make, bin_folder: Path):
    act_next(bin_folder, "hang")
    text = failure(make(timeout_seconds=0.5))
    assert "did not end within 0.5 s and was killed" in text
    assert "--blocks-per-program" in text
    assert all(map(ended, pids(bin_folder)))


def test_stop_kills_the_compiler_and_its_children(make: Make, bin_folder: Path, tmp_path: Path):
    act_next(bin_folder, "hang")
    stop = Event()
    Timer(0.4, stop.set).start()
    started = time.monotonic()
    assert failure(make(), stop=stop).endswith("compiling was stopped")
    assert time.monotonic() - started < 10
    assert all(map(ended, pids(bin_folder)))
    assert not (tmp_path / "failed").exists()


def test_child_that_outlives_its_compiler_is_killed(make: Make, bin_folder: Path):
    act_next(bin_folder, "child")
    assert make().compile(PROGRAM, STABLEHLO)
    assert all(map(ended, pids(bin_folder)))


# --- keys, requirements, jobs ---------------------------------------------------------------------


def test_key_has_all_that_matters_and_nothing_of_the_host(
    make: Make, bin_folder: Path, tmp_path: Path
):
    key = make().compile_key(PROGRAM, "sha256:00")
    assert set(key) == {
        *("key_version", "target", "stablehlo", "lnc", "compiler", "flags"),
        *("input_form", "jaxlib", "sources"),
    }
    assert key["compiler"] == {"name": "neuronx-cc", "version": neuronx_cc.VERSION}
    assert "--model-type=transformer" in key["flags"]
    assert {"targets/neuron.py", "targets/neuron_command.py", "targets/neuron_hlo.py"} <= {
        *key["sources"]
    }
    others = [
        make("trn3").compile_key(PROGRAM, "sha256:00"),
        make(flags=("--verbose=info",)).compile_key(PROGRAM, "sha256:00"),
        make(input_form="stablehlo").compile_key(PROGRAM, "sha256:00"),
        make().compile_key(VAE, "sha256:00"),
        make().compile_key(PROGRAM, "sha256:01"),
    ]
    assert len({of_json(entries) for entries in [key, *others]}) == 6
    assert make().compile_key(replicas(2, "dit_blocks"), "sha256:00") == key
    assert make(timeout_seconds=1.0).compile_key(PROGRAM, "sha256:00") == key
    for text in (str(tmp_path), str(Path.home()), os.getcwd()):
        assert text not in str(key)


def test_flags_of_the_key_are_those_of_the_command(make: Make, bin_folder: Path):
    target = make(flags=("--verbose=info",))
    target.compile(PROGRAM, STABLEHLO)
    arguments = calls(bin_folder)[0]["arguments"]
    assert arguments[2:-2] == target.compile_key(PROGRAM, "sha256:00")["flags"]


def test_another_compiler_is_another_key(
    make: Make, bin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = make().compile_key(PROGRAM, "sha256:00")
    newer = install_neuronx_cc(tmp_path / "newer")
    newer.write_text('#!/bin/sh\necho "NeuronX Compiler version 2.29.1.0+ffff" >&2\n')
    monkeypatch.setenv("PATH", f"{newer.parent}{os.pathsep}{os.environ['PATH']}")
    after = make().compile_key(PROGRAM, "sha256:00")
    assert after["compiler"]["version"] == "2.29.1.0+ffff"
    assert {entry for entry in before if before[entry] != after[entry]} == {"compiler"}


def test_version_is_asked_once(make: Make, bin_folder: Path):
    for _ in range(3):
        make().check_toolchain()
        make().requires()
    assert len(calls(bin_folder, "--version")) == 1


def test_requires_names_compiler_and_page_size(make: Make, bin_folder: Path):
    assert make("trn3").requires() == {
        "target": "trn3",
        "compiler": {"name": "neuronx-cc", "version": neuronx_cc.VERSION},
        "lnc": 2,
        "scratchpad_page_size_mb": 2048,
    }


@pytest.mark.parametrize(
    ("free_gib", "cores", "jobs", "why"),
    [
        (1024, 192, 64, "192 cores, and 1024 GiB of memory at 16 GiB a compile"),
        (1024, 8, 8, "8 cores, and 1024 GiB of memory at 16 GiB a compile"),
        (9, 8, 1, "8 cores, and 9 GiB of memory at 16 GiB a compile"),
        (None, 8, 1, "free memory is not known"),
    ],
)
def test_jobs_are_bounded_by_memory(
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    free_gib: int | None,
    cores: int,
    jobs: int,
    why: str,
):
    free = None if free_gib is None else free_gib << 30
    machine = neuron.this_machine
    monkeypatch.setattr(neuron, "free_memory", lambda machine: (free, False))
    monkeypatch.setattr(neuron, "this_machine", lambda: replace(machine(), cores=cores))
    assert make().default_jobs() == (jobs, why)


# --- no compiler ----------------------------------------------------------------------------------

INSTALL = r"pip install -U neuronx-cc --extra-index-url https://pip\.repos\.neuron\.amazonaws\.com"


def without_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code_bytes: int) -> None:
    """A PATH without neuronx-cc, and a package of that name."""
    monkeypatch.setenv("PATH", str(tmp_path))
    metadata = tmp_path / "neuronx_cc-1.0.post1.dist-info"
    (tmp_path / "neuronx-cc").mkdir()
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: neuronx-cc\nVersion: 1.0.post1\n"
    )
    (metadata / "RECORD").write_text("neuronx-cc/__init__.py,,\n")
    (tmp_path / "neuronx-cc/__init__.py").write_bytes(bytes(code_bytes))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


def test_missing_compiler_is_told(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for ask in (
        make().check_toolchain,
        make().requires,
        lambda: make().compile(PROGRAM, STABLEHLO),
        lambda: make().compile_key(PROGRAM, "sha256:00"),
    ):
        with pytest.raises(ToolchainError, match=f"neuronx-cc is not on PATH; .*{INSTALL}"):
            ask()


def test_placeholder_is_told(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    without_compiler(tmp_path, monkeypatch, 20)
    with pytest.raises(ToolchainError, match=rf"1\.0\.post1 is PyPI's placeholder.*{INSTALL}"):
        make().check_toolchain()


def test_package_without_its_command_is_told(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    without_compiler(tmp_path, monkeypatch, 100_000)
    with pytest.raises(ToolchainError, match="is installed, but its command is not on PATH"):
        make().check_toolchain()


@pytest.mark.parametrize("script", ["#!/bin/sh\necho something else\n", "#!/no/such/program\n"])
def test_another_program_is_told(make: Make, bin_folder: Path, script: str):
    (bin_folder / "neuronx-cc").write_text(script)
    with pytest.raises(ToolchainError, match=r"neuronx-cc --version: .*, where 'NeuronX Compiler"):
        make().check_toolchain()


# --- the choice -----------------------------------------------------------------------------------


def test_targets_go_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target: Target = target_named("trn2", "x86-64-v3")
    assert target == NeuronTarget(
        name="trn2", timeout_seconds=14400.0, keep=tmp_path / "wanc" / "failed"
    )
    options = NeuronOptions(
        flags=("--verbose=info",), input_form="stablehlo", timeout_seconds=60.0, keep=tmp_path
    )
    target = target_named("trn3", "x86-64-v3", options)
    assert target == NeuronTarget(
        name="trn3",
        flags=("--verbose=info",),
        input_form="stablehlo",
        timeout_seconds=60.0,
        keep=tmp_path,
    )
    assert target.executable_type == "application/vnd.wanc.program.neff.v1"
    with pytest.raises(RefusedError, match="cpu, trn2 and trn3"):
        target_named("inf2", "x86-64-v3")
