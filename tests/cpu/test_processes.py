"""Ranks over several processes: the same numbers, and a quick, clear end when one fails."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cpu.test_parity import WHOLE
from tests.cpu.test_run import line
from tests.supervised import START, Outcome, Strike, run

MESH = "tp2-cp2-cfg2"
THREE = "cp3"
"""Three ranks, so that one of three processes is in the middle."""
IN_TIME_SECONDS = 10.0
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
STAGES = (START, "encode text", "denoise", "decode")
ROLES = (0, 1)
SAMPLE = [
    (START, 1, signal.SIGKILL),
    ("denoise", 0, signal.SIGSTOP),
    ("decode", 1, signal.SIGKILL),
]


@pytest.fixture(scope="module")
def alone(wanc: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The record of one process with all ranks."""
    return wanc.generate(wanc.bundle(WHOLE, MESH), tmp_path_factory.mktemp("alone") / "v.mp4")


# --- the same numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 2, 8])
def test_processes_give_the_bits_of_one(wanc, alone, tmp_path, processes):
    """Four do so under torchrun."""
    record = wanc.generate(wanc.bundle(WHOLE, MESH), tmp_path / "v.mp4", processes=processes)
    assert record["latents"] == alone["latents"]
    assert record["noise"] == alone["noise"]
    ranks = [process["ranks"] for process in record["processes"]]
    assert [rank for each in ranks for rank in each] == list(range(8))
    assert [len(each) for each in ranks] == [8 // processes] * processes
    assert all(process["peak_memory_bytes"] > 50 << 20 for process in record["processes"])
    assert (tmp_path / "v.mp4").stat().st_size > 1000
    assert sorted(file.name for file in tmp_path.iterdir()) == ["v.json", "v.mp4"]


def test_64_ranks_on_two_processes(wanc, tmp_path):
    """tp4's sums have four members, which gloo would add in an order of its own."""
    bundle, video = wanc.bundle(WHOLE, "tp4-cp8-cfg2"), tmp_path / "v.mp4"
    one, two = (wanc.generate(bundle, video, processes=n, steps=2) for n in (None, 2))
    assert one["latents"] == two["latents"]


def test_under_torchrun(wanc, alone, tmp_path):
    launched = ["-m", "torch.distributed.run", "--nproc-per-node", "4", "-m", "wanc"]
    arguments = line(wanc, wanc.bundle(WHOLE, MESH), tmp_path / "v.mp4", "--json")
    arguments += ["--guidance", "high=4,low=3"]
    done = subprocess.run(
        [sys.executable, *launched, *arguments], capture_output=True, text=True, env=few_threads()
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["latents"] == alone["latents"]  # and nothing else is there


def few_threads() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def free_port(address: str = "127.0.0.1") -> str:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return str(probe.getsockname()[1])


def launch(
    arguments: list[str], processes: int, *, address: str = "127.0.0.1", hosts: Any = None
) -> list[subprocess.Popen[str]]:
    """Start processes as Slurm or Kubernetes would, each in a network namespace where hosts has."""
    port, started = free_port(), []
    for rank in range(processes):
        place = {"RANK": rank, "WORLD_SIZE": processes, "LOCAL_RANK": 0}
        place |= {"MASTER_ADDR": address, "MASTER_PORT": port}
        inside = ["ip", "netns", "exec", hosts[rank]] if hosts else []
        started.append(
            subprocess.Popen(
                [*inside, sys.executable, "-m", "wanc", *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**few_threads(), **{name: str(value) for name, value in place.items()}},
            )
        )
    return started


@pytest.fixture
def two_hosts() -> Any:
    """Two network namespaces joined by a pair of interfaces, with no other way out."""
    if os.geteuid():
        pytest.fail("network namespaces need root: run the tests as root, as CI does")
    names = [f"wanc{os.getpid()}{k}" for k in (0, 1)]
    ends = [f"w{os.getpid() % 10000}{k}" for k in (0, 1)]
    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        pair = ["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]]
        subprocess.run(pair, check=True)
        for k, (name, end) in enumerate(zip(names, ends, strict=True)):
            subprocess.run(["ip", "link", "set", end, "netns", name], check=True)
            for command in (
                ["addr", "add", f"10.77.0.{k + 1}/24", "dev", end],
                ["link", "set", end, "up"],
                ["link", "set", "lo", "up"],
            ):
                subprocess.run(["ip", "-n", name, *command], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=True)


def test_two_network_namespaces_as_two_hosts(wanc, alone, tmp_path, two_hosts):
    arguments = line(wanc, wanc.bundle(WHOLE, MESH), tmp_path / "v.mp4", "--json")
    arguments += ["--guidance", "high=4,low=3"]
    started = launch(arguments, 2, address="10.77.0.1", hosts=two_hosts)
    ended = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], ended
    assert json.loads(ended[0][0])["latents"] == alone["latents"]
    assert ended[1][0] == ""


# --- failures -------------------------------------------------------------------------------------


def struck(wanc: Any, folder: Path, stage: str, process: int, number: Any, seed: int) -> Outcome:
    folder.mkdir()
    strike = Strike(stage, process, number, random.Random(seed))
    bundle = wanc.bundle(WHOLE, THREE)
    return run(bundle, wanc.checkpoint, folder, processes=3, progress=strike)


def check_end(outcome: Outcome, process: int, number: Any) -> None:
    assert outcome.error is not None
    assert outcome.error.exit_code == 6
    said = "SIGKILL" if number == signal.SIGKILL else "gave no sign"
    assert f"process {process} (rank {process})" in str(outcome.error)
    assert said in str(outcome.error)
    assert outcome.seconds < IN_TIME_SECONDS
    assert outcome.alive == []
    assert set(outcome.files) <= {"v.latents.safetensors"}  # once they are final: to go on from


@pytest.mark.soak
def test_a_process_that_dies_or_stops_ends_the_run(wanc, tmp_path, repetitions, show):
    """make test has a sample of places once; make soak each of them again and again, as a table."""
    places = repetitions(SAMPLE, [(s, p, n) for s in STAGES for p in ROLES for n in SIGNALS])
    times = repetitions(1, 20)
    wanc.bundle(WHOLE, THREE)  # compiled before threads share it
    with ThreadPoolExecutor(repetitions(2, 3)) as pool:
        runs = {
            (*place, k): pool.submit(struck, wanc, tmp_path / f"{i}-{k}", *place, seed=k)
            for i, place in enumerate(places)
            for k in range(times)
        }
    rows, wrong = [], []
    for stage, process, number in places:
        ends = [runs[stage, process, number, k].result() for k in range(times)]
        faults = [fault for end in ends if (fault := fault_of(end, process, number))]
        seconds = sorted(end.seconds for end in ends)
        rows.append(
            f"{number.name:<8} process {process} {stage:<12} {times - len(faults):>3} of {times} "
            f"as they should, median {seconds[times // 2]:.1f} s, longest {seconds[-1]:.1f} s"
        )
        wrong += [f"{rows[-1]}: {fault}" for fault in faults]
    show(rows)
    assert not wrong, "\n".join(wrong)


def fault_of(end: Outcome, process: int, number: Any) -> str | None:
    """What is not as it should be, in words."""
    try:
        check_end(end, process, number)
    except AssertionError as fault:
        return f"{fault}; {end}"
    return None


FAULT = """
import os, sys
if os.environ.get("RANK") == "1" and "wanc.worker" in sys.orig_argv:
    import wanc.run.pipeline as pipeline
    right, calls = pipeline.guide, []

    def guide(*given):
        calls.append(given)
        if len(calls) == 2:
            {fault}
        return right(*given)

    pipeline.guide = guide
"""
FAULTS = {
    "sleeps": (
        "import time; time.sleep(3600)",
        ("process 1 (rank 1) made no progress", "1 of 4 done (step 1 high_noise)", "pipeline.py"),
    ),
    "spins": (
        "while True: pass",
        ("process 1 (rank 1) made no progress", "1 of 4 done (step 1 high_noise)", "pipeline.py"),
    ),
    "runs out of memory": (
        "raise MemoryError('no room for 3 GiB')",
        ("process 1 (rank 1) in stage denoise, 1 of 4 done", "no room for 3 GiB"),
    ),
    "raises": (
        "raise ValueError('broken')",
        ("process 1 (rank 1) in stage denoise, 1 of 4 done", "broken"),
    ),
    "exits": (
        "os._exit(3)",
        ("process 1 (rank 1) in stage denoise, 1 of 4 done", "exit code 3"),
    ),
    "crashes": (
        "os.abort()",
        ("process 1 (rank 1) in stage denoise, 1 of 4 done", "SIGABRT"),
    ),
    "disagrees": (
        "return right(*given) + 1e-3",
        ("ranks disagree on the latents after the last step: rank 1 of 3",),
    ),
}


def faulty(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """Have every process that is started run some code first."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


@pytest.mark.soak
def test_a_process_that_fails_ends_the_run(wanc, tmp_path, monkeypatch, repetitions):
    """make test has one that stalls, one that raises and one that dies; make soak has all."""
    bundle = wanc.bundle(WHOLE, THREE)
    for what in repetitions(("spins", "raises", "crashes"), FAULTS):
        fault, said = FAULTS[what]
        out = tmp_path / what
        out.mkdir()
        with monkeypatch.context() as patched:
            faulty(patched, tmp_path / f"site {what}", FAULT.format(fault=fault))
            outcome = run(bundle, wanc.checkpoint, out, processes=3, stall_seconds=8.0)
        assert outcome.error is not None
        assert outcome.error.exit_code == 6
        assert all(words in str(outcome.error) for words in said), str(outcome.error)
        assert outcome.alive == []
        assert outcome.files == []


def test_check_ranks_names_the_step(wanc, tmp_path, monkeypatch):
    fault = FAULT.format(fault="return right(*given) + 1e-3")
    faulty(monkeypatch, tmp_path / "site", fault)
    out = tmp_path / "out"
    out.mkdir()
    bundle = wanc.bundle(WHOLE, THREE)
    outcome = run(bundle, wanc.checkpoint, out, processes=3, check_ranks=True)
    assert "latents after step 2 of 4: rank 1 of 3" in str(outcome.error)


def test_a_start_that_crashes_by_itself_is_tried_again(wanc, tmp_path, monkeypatch):
    once = tmp_path / "once"
    crash = f"""
import os, sys
if os.environ.get("RANK") == "1" and "wanc.worker" in sys.orig_argv:
    try:
        os.mkdir({str(once)!r})
        os.abort()
    except FileExistsError:
        pass
"""
    faulty(monkeypatch, tmp_path / "site", crash)
    out = tmp_path / "out"
    out.mkdir()
    outcome = run(wanc.bundle(WHOLE, THREE), wanc.checkpoint, out, processes=3, steps=1)
    assert outcome.error is None, outcome.error
    assert once.exists()


def test_a_peer_that_dies_under_another_launcher_ends_the_rest(wanc, tmp_path):
    arguments = line(wanc, wanc.bundle(WHOLE, THREE), tmp_path / "v.mp4", "--steps", "200")
    started = launch(arguments, 3)
    assert started[0].stderr is not None
    for said in started[0].stderr:
        if said.startswith("encode text"):
            break
    started[1].kill()
    killed = time.monotonic()
    ended = [process.communicate(timeout=60)[1] for process in started]
    assert time.monotonic() - killed < IN_TIME_SECONDS
    assert [started[k].returncode for k in (0, 2)] == [6, 6], ended
    for k in (0, 2):
        assert "process 1 (rank 1) gave no sign" in ended[k]
    assert not list(tmp_path.iterdir())


def test_no_socket_binds_every_interface(wanc, tmp_path):
    """Looked at while the processes denoise."""

    class Look(Strike):
        def send(self) -> None:
            assert self.supervisor is not None
            for pid in self.supervisor.pids:
                found.extend(listening(pid))

    found: list[str] = []
    look = Look("denoise", 0, signal.SIGCONT)
    outcome = run(wanc.bundle(WHOLE, THREE), wanc.checkpoint, tmp_path, processes=3, progress=look)
    assert outcome.error is None
    assert len(found) > 3
    assert set(found) == {"0100007F"}  # 127.0.0.1


def listening(pid: int) -> list[str]:
    """Local addresses that a process listens at, as the kernel writes them."""
    inodes = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(file)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return [row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes]


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(number) for file in tasks for number in file.read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_supervisor_that_ends_takes_its_processes_along(wanc, tmp_path, number):
    arguments = line(wanc, wanc.bundle(WHOLE, THREE), tmp_path / "v.mp4", "--steps", "200")
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "wanc", *arguments, "--processes", "3"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert supervisor.stderr is not None
    for said in supervisor.stderr:
        if said.startswith("load: done"):
            break
    children = children_of(supervisor.pid)
    assert len(children) == 3
    supervisor.send_signal(number)
    supervisor.communicate(timeout=20)
    expected = {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}
    assert supervisor.returncode == expected[number]
    until = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < until:
        time.sleep(0.1)
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    if number != signal.SIGKILL:
        assert not list(tmp_path.iterdir())


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "more", "code", "said"),
    [
        ({}, ["--processes", "3"], 2, "1, 2, 4, 8 processes would work"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, [], 2, "lacks MASTER_ADDR, MASTER_PORT"),
        ({}, ["--processes", "2", "--interface", "nowhere9"], 2, "this machine has lo"),
    ],
)
def test_what_cannot_be_spread_is_refused(
    wanc, tmp_path, capsys, monkeypatch, environment, more, code, said
):
    from wanc.cli import main

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main(line(wanc, wanc.bundle(WHOLE, MESH), tmp_path / "v.mp4", *more))
    assert ended.value.code == code
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
