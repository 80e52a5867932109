"""wanc check, on machines made of files: what a variant needs, what is found, how it is told."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.unit.conftest import Made
from tests.unit.test_doctor import V2, Bench
from tests.unit.test_xla_cpu import V3_FLAGS, container, target
from wanc.bundle.config import Blob
from wanc.bundle.store import Bundle, open_bundle, write_bundle
from wanc.bundle.x86 import ISAS
from wanc.cli import main
from wanc.digest import of_bytes
from wanc.errors import BundleError, RequestError
from wanc.run.check import VariantCheck, check_bundle
from wanc.run.load import load
from wanc.run.memory import memory_requirement, weight_bytes, work_bytes
from wanc.runtime.requirement import Requirement, refuse, required, worst
from wanc.runtime.runtime import TARGETS, runtime_of
from wanc.spec.target import GIB
from wanc.weights.needs import schedule_needs

REQUIRES = {
    "target": "cpu",
    "jaxlib": "0.10.2",
    "isa": "x86-64-v3",
    "features": sorted(ISAS["x86-64-v3"]),
}
ON_ANY = ["stage", "target", "world size"]
ON_CPU = [*ON_ANY, "executables", "jaxlib", "instruction set", "cores", "memory"]


def runnable(made: Made, described: bytes | None = None, **requires) -> Made:
    """A variant with containers of XLA:CPU for executables, and with all that it requires."""
    blobs, records = dict(made.blobs), []
    for record in made.config.programs:
        data = container([record.program.name.encode()], described)
        blobs[of_bytes(data)] = data
        blob = Blob(digest=of_bytes(data), size_bytes=len(data))
        records.append(replace(record, executable=blob))
    stated = {k: v for k, v in (REQUIRES | requires).items() if v is not None}
    config = replace(made.config, programs=tuple(records), requires=stated)
    return changed(replace(made, blobs=blobs), config)


def changed(made: Made, config=None, **fields) -> Made:
    """The variant with another config, or other fields of it."""
    new = replace(config or made.config, **fields)
    return replace(made, new=replace(made.new, config=new))


@dataclass(frozen=True)
class Checked:
    """A bundle of one variant, held against a machine."""

    bundle: Bundle
    check: VariantCheck

    def __getitem__(self, what: str) -> Requirement:
        (found,) = [each for each in self.check.requirements if each.what == what]
        return found

    @property
    def unmet(self) -> list[str]:
        return [each.what for each in self.check.requirements if each.verdict != "ok"]


@pytest.fixture
def bench(tmp_path, monkeypatch) -> Bench:
    """A machine that lacks nothing; its flags are also what executables are held against."""
    monkeypatch.setattr("wanc.bundle.xla_cpu.machine_flags", lambda: V3_FLAGS)
    root = tmp_path / "machine"
    root.mkdir()
    return Bench(root)


@pytest.fixture
def checked(tmp_path, bench):
    """checked(variant, weights, cores=1)."""

    def check(made: Made, weights: Path | None = None, **machine) -> Checked:
        bundle = write(made, tmp_path / "b")
        found = check_bundle(bundle, weights, machine=replace(bench.machine, **machine))
        return Checked(bundle, found[0])

    return check


def write(made: Made, path: Path) -> Bundle:
    write_bundle(path, [made.new], made.blobs.__getitem__)
    return open_bundle(path)


@pytest.fixture(scope="module")
def tp2(made) -> Made:
    return runnable(made(topology="tp2"))


def test_machine_that_has_everything(checked, tp2):
    found = checked(tp2)
    assert [each.what for each in found.check.requirements] == ON_CPU
    assert found.check.verdict == "ok"
    assert not found.unmet
    assert (found["jaxlib"].needed, found["jaxlib"].found) == ("0.10.2", "0.10.2")
    assert found["world size"].found == "2 in mesh and programs"
    assert not any(each.remedy for each in found.check.requirements)


@pytest.mark.parametrize(
    ("requires", "found"), [("0.10.1", "0.10.2"), ("0.10", "0.10.2"), ("0.10.20", "0.10.2")]
)
def test_another_jaxlib_is_incompatible(checked, made, requires, found):
    result = checked(runnable(made(), jaxlib=requires))
    assert result.unmet == ["jaxlib"]
    assert (result["jaxlib"].verdict, result["jaxlib"].found) == ("incompatible", found)
    assert f"pip install jaxlib=={requires}" in result["jaxlib"].remedy


def test_no_jaxlib(checked, tp2, bench):
    bench.remove("jaxlib")
    assert checked(tp2)["jaxlib"].found == "not installed"


@pytest.mark.parametrize(
    ("cores", "limit", "found", "verdict"),
    [
        (2, None, "2", "ok"),
        (1, None, "1", "degraded"),
        (8, "150000 100000", "1.5", "degraded"),
        (8, "400000 100000", "4", "ok"),
    ],
)
def test_ranks_that_share_cores_are_degraded(checked, tp2, bench, cores, limit, found, verdict):
    if limit:
        bench.write("sys/fs/cgroup/cpu.max", limit)
    result = checked(tp2, cores=cores)
    assert (result["cores"].found, result["cores"].verdict) == (found, verdict)
    assert result.check.verdict == verdict


def test_older_cpu_is_incompatible_and_says_what_it_lacks(checked, tp2, bench):
    bench.write("proc/cpuinfo", f"flags : {V2}\n")
    result = checked(tp2)
    assert result.unmet == ["instruction set"]
    assert "avx2" in result["instruction set"].found
    assert "sse3" not in result["instruction set"].found


def test_machine_without_x86_is_incompatible(checked, tp2, bench):
    bench.write("proc/cpuinfo", "Features : asimd\n")
    assert "x86-64 Linux" in checked(tp2)["instruction set"].found


@pytest.mark.parametrize("described", [target("+avx512f"), target(triple="aarch64-unknown-linux")])
def test_executables_for_another_cpu_are_found_one_by_one(checked, made, described):
    result = checked(runnable(made(), described))
    assert result.unmet == ["executables"]
    first, *each = result["executables"].found.splitlines()
    assert first == "0 sound"
    assert len(each) == len(result.check.config.programs)
    assert all("program" in line for line in each)


def test_words_in_place_of_an_executable(checked, made, tp2):
    words = made(topology="tp2").config.programs
    result = checked(replace(changed(tp2, programs=words), blobs=made(topology="tp2").blobs))
    assert result["executables"].verdict == "incompatible"


@pytest.mark.parametrize("damage", ["missing", "flipped", "short", "link"])
def test_damaged_executable_is_named(tmp_path, bench, tp2, damage):
    bundle = write(tp2, tmp_path / "b")
    blob = tp2.config.programs[2].executable
    file = tmp_path / "b/blobs/sha256" / blob.digest[7:]
    data = file.read_bytes()
    file.unlink()
    if damage == "link":
        file.symlink_to("/etc/passwd")
    elif damage != "missing":
        file.write_bytes(data[:-1] + (b"" if damage == "short" else b"\0"))
    (check,) = check_bundle(bundle, machine=bench.machine)
    result = Checked(bundle, check)
    assert result.unmet == ["executables"]
    assert blob.digest in result["executables"].found
    assert result["executables"].found.startswith(f"{len(tp2.config.programs) - 1} sound\n")


@pytest.mark.parametrize("key", ["jaxlib", "isa", "features"])
@pytest.mark.parametrize("value", [None, 7, {"a": [1]}, [1, 2]])
def test_damaged_requires_is_a_finding_and_what_load_refuses(checked, made, key, value):
    result = checked(runnable(made(), **{key: value}))
    assert result.unmet == ["requires"]
    assert key in result["requires"].found
    with pytest.raises(BundleError, match="requires is damaged"):
        load(result.bundle, result.check.config, Path("nowhere"))


def lowered(made: Made) -> Made:
    records = tuple(replace(each, executable=None) for each in made.config.programs)
    return changed(made, programs=records, requires={"target": "cpu"})


def planned(made: Made) -> Made:
    records = tuple(replace(each, executable=None, stablehlo=None) for each in made.config.programs)
    return changed(made, programs=records, requires={"target": "cpu"})


@pytest.mark.parametrize(("stop", "said"), [(lowered, "--from"), (planned, "--stop-after")])
def test_incomplete_variant_says_what_would_complete_it(checked, tp2, stop, said):
    result = checked(stop(tp2))
    assert [each.what for each in result.check.requirements] == [*ON_ANY, "memory"]
    assert result.unmet == ["stage"]
    assert said in result["stage"].remedy
    assert "--target" not in result["stage"].remedy
    with pytest.raises(BundleError, match="need stage compile"):
        load(result.bundle, result.check.config, Path("nowhere"))


def test_some_executables_are_checked_though_others_are_not_there_yet(checked, tp2):
    records = (*tp2.config.programs[:2], *lowered(tp2).config.programs[2:])
    assert checked(changed(tp2, programs=records))["executables"].found == "2 sound"


def test_target_of_another_version_is_held_against_no_machine(checked, tp2):
    variant = replace(tp2.config.variant, target="trn9")
    result = checked(changed(tp2, variant=variant, requires={"target": "trn9", "lnc": 2}))
    assert [each.what for each in result.check.requirements] == [*ON_ANY, "executables"]
    assert result.unmet == ["target"]
    assert (result["target"].needed, result["target"].found) == ("trn9", ", ".join(TARGETS))
    assert result["target"].remedy == f"`wanc compile --from {result.bundle.path} --target cpu`"
    with pytest.raises(BundleError, match="need target trn9, found cpu"):
        load(result.bundle, result.check.config, Path("nowhere"))
    with pytest.raises(BundleError, match="trn9"):
        runtime_of("trn9")


def test_accelerator_that_is_not_here_asks_nothing_of_host_memory(checked, tp2):
    requires = {
        "target": "trn2",
        "compiler": {"name": "neuronx-cc", "version": "2.28.1"},
        "lnc": 2,
        "scratchpad_page_size_mb": 2048,
    }
    variant = replace(tp2.config.variant, target="trn2")
    result = checked(changed(tp2, variant=variant, requires=requires))
    assert result.check.verdict == "incompatible"
    assert "Neuron cores" in result.unmet
    assert "executables" in result.unmet  # they are no NEFFs
    assert "memory" not in [each.what for each in result.check.requirements]


def test_world_of_another_size_than_the_programs(checked, made, tp2):
    variant = replace(tp2.config.variant, topology=made(topology="tp4").config.variant.topology)
    result = checked(changed(tp2, variant=variant))
    assert result.unmet == ["world size"]
    assert "dit_blocks is for 2" in result["world size"].found
    assert "the mesh is for 2" in result["world size"].found


@pytest.mark.parametrize(
    ("free", "verdict"),
    [(200 * GIB, "ok"), (64 << 20, "degraded"), (1 << 20, "incompatible"), (None, "ok")],
)
def test_memory_holds_weights_and_had_better_hold_the_work(checked, tp2, bench, free, verdict):
    config = tp2.config
    assert (
        1 << 20
        < weight_bytes(config, 2)
        < 64 << 20
        < weight_bytes(config, 2) + 2 * (work_bytes(config) or 0)
    )
    bench.write("proc/meminfo", f"MemAvailable: {free // 1024} kB\n" if free else "")
    memory = checked(tp2)["memory"]
    assert memory.verdict == verdict
    assert ("bf16" in memory.remedy) is (verdict != "ok")


def test_limit_of_a_control_group_is_told(checked, tp2, bench):
    bench.write("sys/fs/cgroup/memory.max", str(4 * GIB))
    assert checked(tp2)["memory"].found == "4.0 GiB, by its limit"


@pytest.mark.parametrize("topology", ["tp1", "cp2", "tp2-cp2-cfg2", "tp4"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_memory_of_one_rank_is_what_plan_says_and_of_all_each_tensor_once(
    plan, made, topology, precision
):
    config = made(topology=topology, precision=precision).config
    one, all_ranks = weight_bytes(config, 1), weight_bytes(config, config.variant.topology.ranks)
    work = work_bytes(config)
    assert work
    assert one + work == plan(topology=topology, precision=precision).memory_bytes
    programs = {record.program.name: record.program for record in config.programs}
    assert all_ranks == sum(need.bytes for need in schedule_needs(config.schedule, programs))
    assert (one < all_ranks) is ("tp" in topology and topology != "tp1")


def test_share_of_the_ranks_needs_a_share_of_the_memory(made, bench):
    config = made(topology="tp4").config
    shares = [weight_bytes(config, ranks) for ranks in range(1, 5)]
    assert shares == sorted(set(shares))
    bench.write("proc/meminfo", f"MemAvailable: {shares[1] // 1024} kB\n")
    verdicts = [memory_requirement(config, bench.machine, hosted=n).verdict for n in (1, 4)]
    assert verdicts == ["degraded", "incompatible"]
    assert memory_requirement(config, bench.machine).verdict == "incompatible"


DEFINITIONS = [
    {},
    {"heads": "a", "chunk_tokens": 10**15},
    {"heads": [1, 2], "chunk_tokens": 10**15, "attention": 3},
    {"heads": None},
]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=range(len(DEFINITIONS)))
def test_definitions_that_plan_does_not_know_leave_the_weights(checked, tp2, definition):
    """They are free of form, and no bundle is refused for them: only the estimate is lost."""
    records = tuple(
        replace(each, program=replace(each.program, definition=definition))
        for each in tp2.config.programs
    )
    result = checked(changed(tp2, programs=records))
    assert work_bytes(result.check.config) is None
    assert result.check.verdict == "ok"


@pytest.mark.parametrize("shape", [(), (10**300,) * 9, (-5, 2)])
def test_shapes_of_no_sense_are_no_crash(checked, tp2, shape):
    records = tuple(
        replace(
            each,
            program=replace(
                each.program,
                weights=tuple(
                    replace(weight, stored_shape=shape, shape=shape)
                    for weight in each.program.weights
                ),
                inputs=tuple(replace(tensor, shape=shape) for tensor in each.program.inputs),
            ),
        )
        for each in tp2.config.programs
    )
    assert checked(changed(tp2, programs=records))["memory"].needed


def test_checkpoint_that_fits(checked, tp2, tiny_checkpoint):
    result = checked(tp2, tiny_checkpoint)
    assert [each.what for each in result.check.requirements] == [*ON_CPU, "networks", "tensors"]
    assert result.check.verdict == "ok"


@pytest.mark.parametrize("there", [False, True])
def test_checkpoint_that_is_none(checked, tp2, tmp_path, there):
    folder = tmp_path / "none"
    if there:
        folder.mkdir()
        (folder / "transformer").write_text("no folder")
    result = checked(tp2, folder)
    assert result.unmet == ["networks", "tensors"]
    assert all(str(folder) in result[what].found for what in result.unmet)


def test_variant_of_another_target_has_its_weights_checked_too(checked, tp2, tmp_path):
    variant = replace(tp2.config.variant, target="trn9")
    result = checked(changed(tp2, variant=variant), tmp_path / "none")
    assert result.unmet == ["target", "networks", "tensors"]


def test_schedule_without_a_text_encoder_is_no_crash(checked, tp2, tiny_checkpoint):
    stages = tuple(each for each in tp2.config.schedule.stages if each.name != "encode_text")
    schedule = replace(tp2.config.schedule, stages=stages)
    result = checked(changed(tp2, schedule=schedule), tiny_checkpoint)
    assert result["tensors"].verdict == "incompatible"
    assert "text_encoder/" in result["tensors"].found


def test_worst_of_verdicts():
    ok, degraded, bad = (
        Requirement(what="a", needed="1", found="2", verdict=verdict)
        for verdict in ("ok", "degraded", "incompatible")
    )
    assert worst([]) == worst([ok, ok]) == "ok"
    assert worst([degraded, ok]) == "degraded"
    assert worst([degraded, bad, ok]) == "incompatible"


def test_refusal_names_every_requirement_that_is_not_met():
    wanting = [
        required("jaxlib", "0.10.2", "0.9", met=False, remedy="install it"),
        required("cores", "8", "8", met=True, remedy="more"),
        Requirement(what="memory", needed="4 GiB", found="3 GiB", verdict="degraded"),
        required("devices", "2", "1", met=False, remedy=""),
    ]
    with pytest.raises(BundleError) as caught:
        refuse(wanting)
    assert str(caught.value).splitlines() == [
        "the variant cannot run here:",
        "  need jaxlib 0.10.2, found 0.9: install it",
        "  need devices 2, found 1",
    ]
    refuse(wanting[1:3])


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path, bench, made, tp2, monkeypatch) -> Path:
    """A bundle of a variant that can run here and of one that cannot."""
    monkeypatch.setattr("wanc.run.check.this_machine", lambda: bench.machine)
    variants = [tp2, lowered(made("432x240x33"))]
    blobs = {digest: data for each in variants for digest, data in each.blobs.items()}
    write_bundle(tmp_path / "two", [each.new for each in variants], blobs.__getitem__)
    return tmp_path / "two"


def run(*arguments) -> int:
    with pytest.raises(SystemExit) as end:
        main(["check", *map(str, arguments)])
    return int(end.value.code or 0)


def test_command_succeeds_where_one_variant_can_run(two, capsys):
    assert run(two) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(len(line) for line in lines[1:] if "wanc compile" not in line) <= 80
    assert any(line.endswith("t2v 208x128x5 tp2 fp32 cpu, model tiny: ok") for line in lines)
    assert lines[-1] == "1 of 2 variants can run here"
    assert "stage:" in lines


def test_command_fails_where_none_can(two, capsys):
    assert run(two, "--shape", "432x240x33") == 5
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == "0 of 1 variant can run here"
    assert captured.err == ""


def test_command_for_programs(two, capsys):
    assert run(two, "--json", "--weights", two) == 5
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"bundle", "digest", "variants"}
    assert [each["number"] for each in told["variants"]] == [1, 2]
    for each in told["variants"]:
        assert each["verdict"] == "incompatible"
        for requirement in each["requirements"]:
            assert requirement.keys() == Requirement.__dataclass_fields__.keys()


@pytest.mark.parametrize(
    ("options", "numbers"),
    [(["--topology", "tp2"], 1), (["--precision", "fp32"], 2), (["--shape", "432x240x33"], 1)],
)
def test_command_looks_at_the_variants_that_are_asked_for(two, capsys, options, numbers):
    run(two, "--json", *options)
    assert len(json.loads(capsys.readouterr().out)["variants"]) == numbers


def test_command_names_what_the_bundle_has_not(two, capsys):
    assert run(two, "--topology", "tp8", "--precision", "bf16") == 2
    assert "no variant of topology tp8 precision bf16" in capsys.readouterr().err
    with pytest.raises(RequestError, match="is not WIDTH"):
        check_bundle(open_bundle(two), shape="big")


def test_remedy_that_several_requirements_share_is_told_once(tmp_path, bench, tp2, capsys):
    variant = replace(tp2.config.variant, target="trn9")
    write(changed(lowered(tp2), variant=variant), tmp_path / "b")
    assert run(tmp_path / "b") == 5
    assert "stage, target:\n" in capsys.readouterr().out


def test_report_fits_80_columns_whatever_is_found(tmp_path, bench, made, capsys, monkeypatch):
    bench.write("proc/cpuinfo", "flags : none\n")
    bench.write("proc/meminfo", "MemAvailable: 1 kB\n")
    bench.remove("jaxlib")
    machine = replace(bench.machine, cores=1)
    monkeypatch.setattr("wanc.run.check.this_machine", lambda: machine)
    write(runnable(made(topology="tp2-cp2-cfg2")), tmp_path / "b")
    assert run(tmp_path / "b") == 5
    listed = capsys.readouterr().out.partition("\n\n")[2].partition("\n\n")[0]
    assert all(len(line.rstrip()) <= 80 for line in listed.splitlines())
    assert all(what in listed for what in ("jaxlib", "cores", "memory", "degraded"))
