"""wanc doctor, on machines made of files: what it finds, what it makes of that, how it is told."""

import dataclasses
import json
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from wanc import __version__
from wanc.cli import main
from wanc.cli.doctor import print_report
from wanc.doctor import GIB, GOALS, LOOKS, RUN_BYTES, Check, examine, verdicts
from wanc.machine import (
    Machine,
    cpu_limit,
    fits,
    free_memory,
    release,
    requirements,
    this_machine,
)
from wanc.plan.plan import make_plan
from wanc.spec.resolve import resolve
from wanc.spec.sets import Request

V2 = "lm cmov cx8 fxsr mmx sse sse2 sse4_2 cx16 popcnt lahf_lm pni sse4_1 ssse3"
V3 = f"{V2} avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
V4 = f"{V3} avx512bw avx512cd avx512dq avx512f avx512vl"
NEEDS = {
    "torch": ">=2.13,<2.14",
    "jax": "==0.10.2",
    "jaxlib": "==0.10.2",
    "diffusers": ">=0.42,<0.43",
    "transformers": ">=5.20,<6",
    "safetensors": ">=0.6",
    "imageio-ffmpeg": ">=0.6",
    "typer": ">=0.29",
}
HAVE = {
    "torch": "2.13.0+cpu",
    "jax": "0.10.2",
    "jaxlib": "0.10.2",
    "diffusers": "0.42.1",
    "transformers": "5.24.0",
    "safetensors": "0.8.0",
    "imageio-ffmpeg": "0.8.1",
    "typer": "0.29.2",
}
VERSION = (
    "NeuronX Compiler version 2.28.1234.0+abcdef01\n\nPython version 3.11.7\nNumPy version 2.4.6"
)


class Bench:
    """A machine below a folder, with all that compiling and running for cpu needs."""

    def __init__(self, root: Path) -> None:
        self.root, self.site, self.bin = root, root / "site", root / "bin"
        self.site.mkdir()
        self.bin.mkdir()
        self.write("proc/cpuinfo", f"processor\t: 0\nflags\t\t: {V4}\n")
        self.write("proc/meminfo", f"MemTotal: 1 kB\nMemAvailable:  {200 * GIB // 1024} kB\n")
        self.write("proc/self/cgroup", "0::/\n")
        self.install("wanc", __version__, requires=[f"{n}{v}" for n, v in NEEDS.items()])
        for name, version in HAVE.items():
            self.install(name, version)
        self.machine = Machine(
            root=root,
            cache=root / "cache" / "wanc",
            python=(3, 11, 9),
            cores=8,
            packages=(str(self.site),),
            programs=str(self.bin),
        )

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def install(self, name: str, version: str, *, code_bytes: int = 20_000, requires=()) -> None:
        """A package as pip leaves it."""
        module = name.replace("-", "_")
        info = f"site/{module}-{version}.dist-info"
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {need}" for need in (*requires, 'pytest>=8; extra == "dev"')]
        self.write(f"{info}/METADATA", "\n".join(lines) + "\n")
        self.write(f"site/{module}/__init__.py", "#" * code_bytes)
        self.write(f"{info}/RECORD", f"{module}/__init__.py,,{code_bytes}\n{info[5:]}/METADATA,,\n")

    def remove(self, name: str) -> None:
        (info,) = self.site.glob(f"{name.replace('-', '_')}-*.dist-info")
        for file in info.iterdir():
            file.unlink()
        info.rmdir()

    def program(self, name: str, script: str) -> None:
        """A program on the path."""
        file = self.write(f"bin/{name}", f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def trainium(self) -> None:
        """All that Trainium needs too."""
        self.install("neuronx-cc", "2.28.1234.0")
        self.program("neuronx-cc", f"echo '{VERSION}' >&2")
        self.install("nrtpy", "2.35.1")
        self.write("opt/aws/neuron/lib/libnrt.so.2.35.1.0", "")
        self.write("opt/aws/neuron/lib/libnrt.so.1", "")
        self.write("sys/module/neuron/version", "2.31.0.0\n")
        for number in range(16):
            self.write(f"dev/neuron{number}", "")

    def checks(self, **changed) -> dict[str, Check]:
        return {c.name: c for c in examine(dataclasses.replace(self.machine, **changed))}

    def verdict(self, goal: str, **changed):
        judged = verdicts(tuple(self.checks(**changed).values()))
        return {verdict.goal: verdict for verdict in judged}[goal]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    free_space(monkeypatch, 50 * GIB)
    return Bench(tmp_path)


def free_space(monkeypatch, free_bytes):
    """All disks have as much left."""
    usage = SimpleNamespace(free=free_bytes)
    monkeypatch.setattr("wanc.doctor.shutil.disk_usage", lambda folder: usage)


def test_machine_for_cpu_is_ready_for_cpu_alone(bench):
    ready = {v.goal: v.ready for v in verdicts(tuple(bench.checks().values()))}
    assert ready == dict(zip(GOALS, (True, True, False, False), strict=True))
    assert not bench.verdict("compile for cpu").because
    assert bench.verdict("compile for Trainium").because == ("neuronx-cc: not installed",)


def test_trainium_machine_is_ready_for_all(bench):
    bench.trainium()
    assert all(v.ready and not v.because for v in verdicts(tuple(bench.checks().values())))
    checks = bench.checks()
    assert checks["neuronx-cc"].found == "2.28.1234.0+abcdef01"
    assert checks["libnrt"].found == "2.35.1.0"
    assert checks["Neuron driver"].found == "version 2.31.0.0, 16 devices"
    assert checks["major versions"].found == "both 2"


def test_every_check_has_a_remedy_where_one_is_needed_and_none_elsewhere(bench, monkeypatch):
    free_space(monkeypatch, 0)
    for check in bench.checks(python=(3, 12, 0)).values():
        assert bool(check.remedy) == (check.usable != "yes"), check
        assert all((check.name, check.found, check.purpose))
        assert {check.group, *check.goals} <= set(GOALS)


def test_nothing_found_is_a_path(bench):
    bench.trainium()
    bench.program("neuronx-cc", "echo /opt/some/where/driver.py: broken >&2; exit 1")
    told = " ".join(check.found for check in bench.checks().values())
    assert "does not run: driver.py: broken" in told
    assert "/" not in told


def test_another_python_is_refused_for_every_goal(bench):
    check = bench.checks(python=(3, 12, 0))["Python"]
    assert (check.usable, check.goals) == ("no", GOALS)
    assert bench.verdict("run on cpu", python=(3, 12, 0)).because[0] == "Python: 3.12.0"


@pytest.mark.parametrize("name", [name for name in NEEDS if name != "typer"])
def test_missing_package_is_named_with_the_command_that_installs_it(bench, name):
    bench.remove(name)
    check = bench.checks()[name]
    assert (check.found, check.usable) == ("not installed", "no")
    assert shlex.split(check.remedy) == ["pip", "install", "-U", f"{name}{NEEDS[name]}"]
    for goal in check.goals:
        assert f"{name}: not installed" in bench.verdict(goal).because


def test_pinned_package_of_another_version_is_no_and_one_out_of_range_is_partly(bench):
    for name, version in (("jaxlib", "0.9.1"), ("transformers", "6.0.1")):
        bench.remove(name)
        bench.install(name, version)
    checks = bench.checks()
    assert (checks["jaxlib"].usable, checks["transformers"].usable) == ("no", "partly")
    assert checks["jaxlib"].found == "0.9.1, needs ==0.10.2"
    assert checks["transformers"].found == "6.0.1, needs >=5.20,<6"
    verdict = bench.verdict("run on cpu")
    assert not verdict.ready
    assert verdict.because == ("jaxlib: 0.9.1, needs ==0.10.2",)
    assert bench.verdict("run on Trainium").because[0] != "jaxlib: 0.9.1, needs ==0.10.2"


def test_packages_without_a_line_of_their_own_are_counted_or_named(bench):
    assert bench.checks()["other packages"].found == "1 as needed"
    bench.remove("typer")
    check = bench.checks()["other packages"]
    assert (check.found, check.usable) == ("typer not installed", "no")
    assert check.remedy == "pip install -U -e ."


def test_wanc_that_is_not_installed_leaves_versions_uncompared(bench):
    bench.remove("wanc")
    bench.remove("jaxlib")
    bench.install("jaxlib", "0.9.1")
    checks = bench.checks()
    assert checks["jaxlib"].usable == "yes"
    check = checks["other packages"]
    assert (check.found, check.usable) == ("wanc is not installed", "partly")


def test_package_with_broken_metadata_is_told_not_a_crash(bench):
    bench.write("site/torch-2.13.0+cpu.dist-info/METADATA", "\0")
    bench.write("site/nki-1.dist-info/METADATA", "Name: nki\n")
    checks = bench.checks()
    assert checks["torch"].usable in ("no", "partly")
    assert checks["nki"].found == "of no known version"


@pytest.mark.parametrize(
    ("flags", "found", "usable"),
    [
        (V4, "x86-64-v4", "yes"),
        (V3, "x86-64-v3", "yes"),
        (V2, "below x86-64-v3", "no"),
        ("fp asimd", "below x86-64-v3", "no"),
        (None, "below x86-64-v3", "no"),
    ],
)
def test_level_of_the_cpu(bench, flags, found, usable):
    bench.write("proc/cpuinfo", f"flags : {flags}\n" if flags else "")
    check = bench.checks()["CPU features"]
    assert (check.found, check.usable) == (found, usable)
    if usable == "no":
        assert not bench.verdict("run on cpu").ready
        assert check.found not in str(bench.verdict("compile for Trainium").because)


@pytest.mark.parametrize(
    ("group", "file", "text", "limit"),
    [
        ("0::/", "cpu.max", "150000 100000", 1.5),
        ("0::/", "cpu.max", "max 100000", None),
        ("0::/a/b", "a/cpu.max", "200000 100000", 2.0),
        ("4:cpu,cpuacct:/x\n0::/y", "y/cpu.max", "50000 100000", 0.5),
        ("garbage", "cpu.max", "150000 100000", None),
        ("", "cpu.max", "150000 100000", None),
    ],
)
def test_cpu_limit_of_control_groups(bench, group, file, text, limit):
    bench.write("proc/self/cgroup", group)
    bench.write(f"sys/fs/cgroup/{file}", text)
    assert cpu_limit(bench.machine) == limit


def test_limited_cores_are_told_with_the_jobs_that_suit(bench):
    bench.write("sys/fs/cgroup/cpu.max", "250000 100000")
    check = bench.checks()["cores"]
    assert (check.found, check.usable) == ("8, limited to 2.5", "partly")
    assert check.remedy.endswith("--jobs 2")
    assert bench.verdict("compile for cpu").ready


@pytest.mark.parametrize(
    ("group", "file", "limit", "expected"),
    [
        ("0::/", "memory.max", 4 * GIB, (4 * GIB, True)),
        ("0::/", "memory.max", "max", (200 * GIB, False)),
        ("0::/", "memory.max", 400 * GIB, (200 * GIB, False)),
        ("4:memory:/a", "memory/a/memory.limit_in_bytes", GIB, (GIB, True)),
        ("4:memory:/a", "memory/memory.limit_in_bytes", GIB, (GIB, True)),
        ("4:memory:/", "memory/memory.limit_in_bytes", 9223372036854771712, (200 * GIB, False)),
    ],
)
def test_free_memory_is_what_a_control_group_leaves(bench, group, file, limit, expected):
    bench.write("proc/self/cgroup", group)
    bench.write(f"sys/fs/cgroup/{file}", str(limit))
    assert free_memory(bench.machine) == expected


@pytest.mark.parametrize(
    ("free_gib", "usable"),
    [
        (200, ("yes", "yes", "yes")),
        (32, ("yes", "partly", "yes")),
        (8, ("yes", "partly", "partly")),
        (0.5, ("partly", "partly", "partly")),
    ],
)
def test_memory_is_held_against_each_purpose(bench, free_gib, usable):
    bench.write("proc/meminfo", f"MemAvailable: {int(free_gib * GIB) // 1024} kB\n")
    checks = bench.checks()
    names = ("memory", "memory to run", "memory, neuronx-cc")
    assert tuple(checks[name].usable for name in names) == usable


def test_memory_that_is_not_known_is_no_obstacle(bench):
    bench.write("proc/meminfo", "")
    assert bench.checks()["memory"].found == "not known"
    assert bench.verdict("run on cpu").ready


def test_memory_to_run_is_what_plan_sums_up():
    request = Request(shapes=("832x480x81",), precision="bf16")
    spec = resolve(request, "cpu")
    plan = make_plan(spec.model, spec.variants[0], spec.options, max_ranks=None)
    assert plan.memory_bytes == pytest.approx(RUN_BYTES, rel=0.1)


@pytest.mark.parametrize(("gib", "usable"), [(50, "yes"), (0.5, "partly")])
def test_free_space_is_told_of_both_disks(bench, monkeypatch, gib, usable):
    free_space(monkeypatch, int(gib * GIB))
    checks = bench.checks()
    assert checks["disk of the cache"].usable == usable
    assert checks["disk of this folder"].usable == usable


def test_disk_that_does_not_answer(bench, monkeypatch):
    def dead(folder):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr("wanc.doctor.shutil.disk_usage", dead)
    check = bench.checks()["disk of this folder"]
    assert (check.found, check.usable) == ("Stale file handle", "no")


def test_cache_is_counted_and_looking_leaves_nothing(bench):
    assert bench.checks()["cache"].found == "0 MiB"
    assert not bench.machine.cache.exists()
    bench.write("cache/wanc/blobs/a", "x" * 1000)
    bench.write("cache/wanc/stablehlo/b.json", "{}")
    before = sorted(bench.root.rglob("*"))
    assert bench.checks()["cache"].found == "0.000956 MiB"
    assert sorted(bench.root.rglob("*")) == before


def test_cache_that_cannot_be_made_is_no(bench):
    file = bench.write("a-file", "")
    check = bench.checks(cache=file / "wanc")["cache"]
    assert (check.found, check.usable) == ("Not a directory", "no")
    assert "XDG_CACHE_HOME" in check.remedy


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (f"echo '{VERSION}'", "2.28.1234.0+abcdef01"),
        (f"echo '{VERSION}' >&2", "2.28.1234.0+abcdef01"),
        (f"echo '{VERSION}'; exit 1", "does not run: NumPy version 2.4.6"),
        ("exit 3", "does not run: it said nothing"),
        ("echo hello", "does not run: hello"),
        ("printf '\\377\\376\\n'", "does not run: \ufffd\ufffd"),
    ],
)
def test_compiler_is_what_answers(bench, script, found):
    bench.program("neuronx-cc", script)
    assert bench.checks()["neuronx-cc"].found == found


def test_compiler_that_cannot_be_started(bench):
    bench.program("neuronx-cc", "")
    (bench.bin / "neuronx-cc").write_bytes(b"\x7fELF")
    assert bench.checks()["neuronx-cc"].found == "does not run: Exec format error"


def test_placeholders_of_pypi_are_told_from_packages(bench):
    """Theirs have one file of 119 bytes."""
    for name in ("neuronx-cc", "nki", "libneuronxla"):
        bench.install(name, "1.0.post1", code_bytes=119)
        check = bench.checks()[name]
        assert (check.found, check.usable) == ("is PyPI's placeholder 1.0.post1", "no")
        assert check.remedy.startswith(f"pip install -U {name} --extra-index-url https://")
    bench.install("libneuronxla", "2.2.0")
    bench.remove("nki")
    bench.install("nki", "0.7.0")
    assert bench.checks()["nki"].found == "0.7.0"


def test_compiler_off_the_path(bench):
    bench.install("neuronx-cc", "2.28.0")
    assert bench.checks()["neuronx-cc"].found == "2.28.0 is not on PATH"


def test_optional_packages_stand_in_nothing_s_way(bench):
    bench.trainium()
    checks = bench.checks()
    assert checks["nki"].usable == checks["libneuronxla"].usable == "no"
    assert bench.verdict("compile for Trainium").ready


def test_compiler_and_runtime_of_two_majors_do_not_go_together(bench):
    assert bench.checks()["major versions"].found == "not both here"
    bench.trainium()
    bench.remove("neuronx-cc")
    bench.install("neuronx-cc", "3.1.0")
    check = bench.checks()["major versions"]
    assert (check.found, check.usable) == ("3 and 2", "no")
    assert not bench.verdict("run on Trainium").ready
    (bench.root / "opt/aws/neuron/lib/libnrt.so.2.35.1.0").unlink()  # nrtpy is of a major, too
    assert bench.checks()["major versions"].found == "3 and 2"
    assert bench.checks()["libnrt"].found == "of no known version"


def test_device_that_cannot_be_opened(bench):
    bench.trainium()
    (bench.root / "dev/neuron3").unlink()
    (bench.root / "dev/neuron3").symlink_to("nothing")  # root may open whatever is there
    assert bench.checks()["Neuron driver"].found.endswith("no permission")


@pytest.mark.parametrize(
    ("version", "need", "ok"),
    [
        ("2.13.0+cpu", ">=2.13,<2.14", True),
        ("2.14.0", ">=2.13,<2.14", False),
        ("2.12.9", "<2.14,>=2.13", False),
        ("0.10.2", "==0.10.2", True),
        ("0.10.20", "==0.10.2", False),
        ("6", ">=6.0", True),
        ("10.0", ">=9", True),
        ("5.24.0.dev1", ">=5.20,<6", True),
        ("1.0", "", True),
        ("odd", ">=1", False),
    ],
)
def test_version_fits_what_is_needed(version, need, ok):
    assert fits(version, need) is ok


def test_release_of_a_version():
    assert release("2.28.0+abc.1") == (2, 28)
    assert release("") == ()


def test_requirements_leave_out_extras(bench):
    assert requirements(bench.machine.package("wanc")) == NEEDS
    assert requirements(None) == {}


@pytest.mark.parametrize("full", [False, True])
def test_report_fits_80_columns_and_ends_with_the_verdicts(bench, capsys, full):
    if full:
        bench.trainium()
    else:
        bench.program("neuronx-cc", f"echo {'word ' * 30} >&2; exit 1")
        bench.remove("jaxlib")
    checks = tuple(bench.checks().values())
    print_report(checks, verdicts(checks))
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if ": pip install " not in line) <= 80
    text = "\n".join(line.rstrip() for line in lines)
    last = text.rpartition("Verdict\n")[2]
    assert all(goal in last for goal in GOALS)
    assert ("not ready" not in last) is full
    assert full or "neuronx-cc: pip install -U neuronx-cc --extra-index-url https://" in text


def test_command_prints_json_of_this_machine(capsys):
    with pytest.raises(SystemExit) as end:
        main(["doctor", "--json"])
    assert not end.value.code
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"checks", "verdicts"}
    assert [check["name"] for check in told["checks"]] == list(LOOKS)
    assert told["checks"][0].keys() == Check.__dataclass_fields__.keys()
    assert [verdict["goal"] for verdict in told["verdicts"]] == list(GOALS)


def test_this_machine_has_what_the_tests_run_on(tmp_path):
    machine = this_machine(tmp_path)
    assert machine.python == sys.version_info[:3]
    assert machine.cores >= 1


def test_looks_at_a_machine_with_nothing_at_all(tmp_path):
    nowhere = {"root": tmp_path, "cache": tmp_path / "cache", "packages": (), "programs": ""}
    machine = Machine(python=(3, 11, 0), cores=1, **nowhere)
    judged = verdicts(examine(machine))
    assert not any(verdict.ready for verdict in judged)
