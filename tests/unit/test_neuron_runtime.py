"""What Trainium needs of a machine, on machines made of files; cores of several machines."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from tests.unit.test_doctor import Bench
from wanc.errors import BundleError, LostError, RequestError, RunError
from wanc.processes.launch import hosted_ranks
from wanc.processes.world import Alone
from wanc.runtime.neuron_environment import (
    free_endpoint,
    process_variables,
    set_variables,
    unset_variables,
    variable_requirements,
)
from wanc.runtime.neuron_runtime import NeuronRuntime, local_cores
from wanc.runtime.neuron_status import blame
from wanc.runtime.requirement import Requirement, worst
from wanc.runtime.runtime import TARGETS, runtime_of

REQUIRES = {
    "target": "trn2",
    "compiler": {"name": "neuronx-cc", "version": "2.28.7011.0+a1b2c3d4"},
    "lnc": 2,
    "scratchpad_page_size_mb": 2048,
}
CHIP = "sys/devices/virtual/neuron_device/neuron0/info/architecture/device_name"


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A Trn2 machine that lacks nothing."""
    for name in [name for name in os.environ if name.startswith("NEURON_")]:
        monkeypatch.delenv(name)
    made = Bench(tmp_path)
    made.trainium()
    made.write(CHIP, "Trainium2\n")
    return made


@pytest.fixture
def config(made):
    """config(topology="tp2", lnc=1): a variant for trn2."""

    def changed(topology="tp4-cp2", target="trn2", **requires):
        found = made(topology=topology).config
        stated = REQUIRES | {"target": target} | requires
        stated = {k: v for k, v in stated.items() if v is not None}
        return replace(found, variant=replace(found.variant, target=target), requires=stated)

    return changed


def found(bench, config) -> dict[str, Requirement]:
    return {each.what: each for each in NeuronRuntime(machine=bench.machine).check(config)}


def test_machine_that_has_everything(bench, config):
    requirements = found(bench, config())
    assert worst(requirements.values()) == "ok"
    assert {what: (each.needed, each.found) for what, each in requirements.items()} == {
        "nrtpy": ("2.x, as neuronx-cc", "2.35.1"),
        "libnrt": ("2.35, as nrtpy", "2.35.1.0"),
        "chips": ("Trainium2", "Trainium2"),
        "Neuron cores": ("8, one a rank", "64"),
    }


def test_machine_that_has_nothing(tmp_path, config):
    requirements = found(Bench(tmp_path), config())
    unmet = {what for what, each in requirements.items() if each.verdict == "incompatible"}
    assert unmet == {"nrtpy", "libnrt", "Neuron cores"}
    assert requirements["chips"].found == "not told"
    assert "--target cpu" in requirements["Neuron cores"].remedy
    assert "pip.repos.neuron.amazonaws.com" in requirements["nrtpy"].remedy


def test_placeholder_of_pypi_is_no_nrtpy(bench, config):
    bench.remove("nrtpy")
    bench.install("nrtpy", "2.35.1", code_bytes=900)
    nrtpy = found(bench, config())["nrtpy"]
    assert (nrtpy.found, nrtpy.verdict) == ("PyPI's placeholder 2.35.1", "incompatible")


def test_nrtpy_of_another_major_version(bench, config):
    compiler = {"name": "neuronx-cc", "version": "3.1.0"}
    nrtpy = found(bench, config(compiler=compiler))["nrtpy"]
    assert (nrtpy.needed, nrtpy.verdict) == ("3.x, as neuronx-cc", "incompatible")


@pytest.mark.parametrize(
    ("file", "seen", "verdict"),
    [
        ("libnrt.so.2.34.9.0", "2.34.9.0", "degraded"),
        ("libnrt.so", "of no known version", "degraded"),
        ("other.so", "not installed", "incompatible"),
    ],
)
def test_library_of_another_version_than_nrtpy(bench, config, file, seen, verdict):
    for path in (bench.root / "opt/aws/neuron/lib").iterdir():
        path.unlink()
    bench.write(f"opt/aws/neuron/lib/{file}", "")
    library = found(bench, config())["libnrt"]
    assert (library.found, library.verdict) == (seen, verdict)
    assert "aws-neuronx-runtime-lib" in library.remedy


@pytest.mark.parametrize(
    ("name", "target", "verdict"),
    [
        ("Trainium2", "trn2", "ok"),
        ("Trainium3", "trn2", "incompatible"),
        ("Trainium3", "trn3", "ok"),
        ("Trainium2", "trn3", "incompatible"),
        ("something newer", "trn3", "ok"),
        ("", "trn2", "ok"),
    ],
)
def test_chips_of_another_target(bench, config, name, target, verdict):
    """What the driver does not say, or says in new words, is for the runtime to refuse."""
    bench.write(CHIP, name)
    assert found(bench, config(target=target))["chips"].verdict == verdict


def test_fewer_cores_than_ranks_need_more_machines(bench, config):
    for number in range(1, 16):
        (bench.root / f"dev/neuron{number}").unlink()
    cores = found(bench, config())["Neuron cores"]
    assert (cores.found, cores.verdict) == ("4", "degraded")
    assert "more machines" in cores.remedy


@pytest.mark.parametrize(
    "damage",
    [{"compiler": None}, {"compiler": "2.28"}, {"lnc": "two"}, {"scratchpad_page_size_mb": None}],
    ids=str,
)
def test_damaged_requires(bench, config, damage):
    with pytest.raises(BundleError, match="requires is damaged"):
        found(bench, config(**damage))


def test_requires_of_another_target(bench, config):
    with pytest.raises(BundleError, match="requires target trn3"):
        found(bench, replace(config(), requires=REQUIRES | {"target": "trn3"}))


def test_both_targets_have_a_runtime_and_the_cpu_has_its_own(bench, config, made):
    assert TARGETS == ("cpu", "trn2", "trn3")
    for target in ("trn2", "trn3"):
        runtime = runtime_of(target, bench.machine)
        assert isinstance(runtime, NeuronRuntime)
        assert not runtime.in_host_memory
        assert runtime.processes(config("tp4-cp2", target)) == 8
        assert runtime.environment(config(target=target)) == {
            "NEURON_LOGICAL_NC_CONFIG": "2",
            "NEURON_SCRATCHPAD_PAGE_SIZE": "2048",
            "NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS": "0",
        }
    cpu, own = runtime_of("cpu", bench.machine), made(topology="tp4").config
    assert cpu.in_host_memory
    assert (cpu.processes(own), cpu.environment(own)) == (1, {})
    with pytest.raises(BundleError, match="target trn1; this version runs cpu, trn2, trn3"):
        runtime_of("trn1")


# --- variables ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NEURON_LOGICAL_NC_CONFIG", "1"),
        ("NEURON_RT_VIRTUAL_CORE_SIZE", "1"),
        ("NEURON_SCRATCHPAD_PAGE_SIZE", "512"),
        ("NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS", "3"),
    ],
)
def test_variable_of_the_user_s_is_a_finding(bench, config, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    finding = found(bench, config())[name]
    assert (finding.found, finding.verdict) == (value, "incompatible")
    assert finding.remedy == f"unset {name}: wanc sets it"


def test_variables_are_set_and_taken_back(monkeypatch):
    wanted = {"NEURON_SCRATCHPAD_PAGE_SIZE": "2048", "NEURON_LOGICAL_NC_CONFIG": "2"}
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    monkeypatch.delenv("NEURON_SCRATCHPAD_PAGE_SIZE", raising=False)
    assert not variable_requirements(wanted)
    new = set_variables(wanted)
    assert new == ("NEURON_SCRATCHPAD_PAGE_SIZE",)
    assert os.environ["NEURON_SCRATCHPAD_PAGE_SIZE"] == "2048"
    unset_variables(new)
    assert "NEURON_SCRATCHPAD_PAGE_SIZE" not in os.environ
    assert os.environ["NEURON_LOGICAL_NC_CONFIG"] == "2"


def test_every_conflict_is_told_at_once_and_nothing_is_set(monkeypatch):
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    monkeypatch.setenv("NEURON_SCRATCHPAD_PAGE_SIZE", "64")
    monkeypatch.delenv("NEURON_RT_VISIBLE_CORES", raising=False)
    wanted = {
        "NEURON_RT_VISIBLE_CORES": "0",
        "NEURON_LOGICAL_NC_CONFIG": "2",
        "NEURON_SCRATCHPAD_PAGE_SIZE": "2048",
    }
    with pytest.raises(BundleError) as caught:
        set_variables(wanted)
    assert str(caught.value).splitlines() == [
        "the environment:",
        "  need NEURON_LOGICAL_NC_CONFIG 2, found 1: unset NEURON_LOGICAL_NC_CONFIG: wanc sets it",
        "  need NEURON_SCRATCHPAD_PAGE_SIZE 2048, found 64: unset NEURON_SCRATCHPAD_PAGE_SIZE: "
        "wanc sets it",
    ]
    assert "NEURON_RT_VISIBLE_CORES" not in os.environ


def test_ranks_meet_at_a_port_of_the_world_s_address(monkeypatch):
    monkeypatch.delenv("NEURON_RT_ROOT_COMM_ID", raising=False)
    variables = process_variables([4, 5], Alone())
    assert variables["NEURON_RT_VISIBLE_CORES"] == "4,5"
    host, _, port = variables["NEURON_RT_ROOT_COMM_ID"].partition(":")
    assert (host, port.isdigit()) == ("127.0.0.1", True)
    assert free_endpoint("127.0.0.1") != variables["NEURON_RT_ROOT_COMM_ID"]


def test_ranks_meet_where_the_user_says(monkeypatch):
    monkeypatch.setenv("NEURON_RT_ROOT_COMM_ID", "10.0.0.1:4444")
    assert process_variables([0], Alone())["NEURON_RT_ROOT_COMM_ID"] == "10.0.0.1:4444"


# --- cores ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Many(Alone):
    """One of several processes, which stand on machines with these addresses."""

    process: int = 0
    addresses: Sequence[str] = ()

    @property
    def processes(self) -> int:
        return len(self.addresses)

    @property
    def address(self) -> str:
        return self.addresses[self.process]

    def hosted(self, ranks, process=None):
        return hosted_ranks(ranks, self.process if process is None else process, self.processes)

    def everyone(self, subject, text):
        assert text == self.address
        return list(self.addresses)


def test_one_process_hosts_every_core():
    assert local_cores((0, 1, 2, 3), Alone()) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert local_cores((2, 3, 0, 1), Alone()) == {0: 2, 1: 3, 2: 0, 3: 1}


def test_processes_of_one_machine_host_their_ranks_cores():
    cores = range(8)
    found = [local_cores(cores, Many(k, ["a"] * 4)) for k in range(4)]
    assert found == [{0: 0, 1: 1}, {2: 2, 3: 3}, {4: 4, 5: 5}, {6: 6, 7: 7}]


@pytest.mark.parametrize("per", [1, 4])
def test_each_of_two_machines_counts_from_its_own_first_core(per):
    addresses = ["a"] * per + ["b"] * per
    found = {}
    for process in range(2 * per):
        found |= local_cores(range(128), Many(process, addresses))
    assert found == {rank: rank % 64 for rank in range(128)}


def test_ranks_that_cannot_be_shared_out():
    with pytest.raises(RequestError, match="3 processes for 8 ranks"):
        local_cores(range(8), Many(0, ["a"] * 3))


@pytest.mark.parametrize(
    "cores",
    [(0, 0, *range(2, 8)), tuple(range(7)), tuple(range(9))],
    ids=["twice", "too few", "too many"],
)
def test_mesh_without_a_core_for_each_rank(bench, config, cores):
    damaged = config()
    damaged = replace(damaged, mesh=replace(damaged.mesh, cores=cores))
    with pytest.raises(BundleError, match="no core for each rank"):
        NeuronRuntime(machine=bench.machine).engine(damaged, Alone())


# --- statuses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "advice"),
    [
        ("NRT Error NRT_RESOURCE(4): Failed to allocate tensor", RunError, "no room"),
        ("NRT Error UNKNOWN STATUS(1206): Failed to execute model", LostError, "EFA"),
        ("NRT Error NRT_FAILURE(6): Failed to load model", RunError, "--target"),
        ("NRT Error NRT_QUEUE_FULL(7): Failed to execute model", RunError, ""),
        ("Unknown input(s) {'x'} (4) for model", RunError, ""),
    ],
)
def test_statuses(text, kind, advice):
    error = RuntimeError(text)
    blamed = blame(RunError, "call of it", error)
    assert type(blamed) is kind
    assert blamed.__cause__ is error
    assert str(blamed).startswith(f"call of it: {text}")
    assert advice in str(blamed)
    assert (str(blamed) == f"call of it: {text}") is not bool(advice)
    assert type(blame(BundleError, "load", error)) is BundleError


def test_error_without_words():
    assert str(blame(RunError, "call of it", AssertionError())) == "call of it: AssertionError"
