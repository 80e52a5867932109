"""wanc diff: every kind of difference planted by itself, what is compiled again, how it is told."""

import copy
import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.conftest import variant_of
from wanc.bundle.config import Blob, VariantConfig
from wanc.bundle.lock import lock_of, variant_key, write_lock
from wanc.bundle.oci import Descriptor
from wanc.bundle.store import Bundle, BundleVariant, NewVariant, write_bundle
from wanc.cli import main
from wanc.diff.again import Place
from wanc.diff.changes import changes, words_changed
from wanc.diff.compare import KINDS, Compared, Difference, compare
from wanc.diff.side import Side, side_of, side_of_bundle
from wanc.errors import BundleError

DIGEST = "sha256:" + "5" * 64
FLAGS = ["--framework", "XLA", "--lnc", "2", "-O1"]
KEY = {
    "key_version": 1,
    "target": "cpu",
    "compiler": {"name": "neuronx-cc", "version": "2.22"},
    "isa": "x86-64-v3",
    "flags": FLAGS,
    "sources": {"targets/a.py": DIGEST, "targets/b.py": DIGEST},
}


def keyed(config: VariantConfig, **entries: Any) -> VariantConfig:
    """The config with compile keys as targets write them."""
    records = []
    for record in config.programs:
        assert record.stablehlo
        key = {**copy.deepcopy(KEY), "stablehlo": record.stablehlo.digest, **entries}
        records.append(replace(record, compile_key=key))
    return replace(config, programs=tuple(records))


CONFIG, WIDE = (keyed(variant_of(topology=topology).config) for topology in ("tp1", "tp2-cp2"))
NAMES = [record.program.name for record in CONFIG.programs]
TP1, TP2 = (variant_key(config.model, config.variant) for config in (CONFIG, WIDE))


def side(*configs: VariantConfig) -> Side:
    manifest = Descriptor(media_type="", digest=DIGEST, size=0)
    entries = tuple(BundleVariant(manifest=manifest, config=config) for config in configs)
    return side_of_bundle("b", Bundle(path=Path("b"), entry=manifest, variants=entries))


def locked(**variants: dict[str, str]) -> Side:
    return Side(text="lock", digests=variants, configs={})


def with_record(config: VariantConfig, name: str, /, **fields: Any) -> VariantConfig:
    """The config with other fields of one program's record."""
    return replace(
        config,
        programs=tuple(
            replace(record, **fields) if record.program.name == name else record
            for record in config.programs
        ),
    )


def with_program(config: VariantConfig, name: str, /, **fields: Any) -> VariantConfig:
    return with_record(config, name, program=replace(config.program(name).program, **fields))


def with_key(name: str, **entries: Any) -> VariantConfig:
    return with_record(CONFIG, name, compile_key={**CONFIG.program(name).compile_key, **entries})


def blob(text: str) -> Blob:
    return Blob(digest="sha256:" + text * 64, size_bytes=9)


HEAD, BLOCKS = CONFIG.program("dit_head"), CONFIG.program("dit_blocks")
TENSOR = HEAD.program.inputs[0]
WEIGHT = HEAD.program.weights[0]
Planted = tuple[VariantConfig, str, tuple[str, ...], Any, Any, str | None]
PLANTED: dict[str, Planted] = {
    "other bytes of the same key": (
        with_record(CONFIG, "dit_head", executable=blob("a")),
        *("not_reproducible", (), HEAD.executable.digest, blob("a").digest, "dit_head"),  # type: ignore[union-attr]
    ),
    "compiler": (
        with_key("dit_head", compiler={"name": "neuronx-cc", "version": "2.23"}),
        *("compile_key", ("compiler", "version"), "2.22", "2.23", "dit_head"),
    ),
    "flags": (
        with_key("dit_head", flags=[*FLAGS, "-x"]),
        *("compile_key", ("flags",), FLAGS, [*FLAGS, "-x"], "dit_head"),
    ),
    "ISA": (
        with_key("dit_head", isa="x86-64-v4"),
        *("compile_key", ("isa",), "x86-64-v3", "x86-64-v4", "dit_head"),
    ),
    "source file": (
        with_key("dit_head", sources={**KEY["sources"], "targets/b.py": blob("a").digest}),  # type: ignore[dict-item]
        *("compile_key", ("sources", "targets/b.py"), DIGEST, blob("a").digest, "dit_head"),
    ),
    "key version, a number that is another type": (
        with_key("dit_head", key_version=True),
        *("compile_key", ("key_version",), 1, True, "dit_head"),
    ),
    "entry that nobody knows": (
        with_key("dit_head", kernels={"nki": {"ring.py": 3}}),
        *("compile_key", ("kernels",), None, {"nki": {"ring.py": 3}}, "dit_head"),
    ),
    "StableHLO": (
        with_record(
            CONFIG,
            "dit_head",
            stablehlo=blob("a"),
            compile_key={**HEAD.compile_key, "stablehlo": blob("a").digest},
        ),
        *("stablehlo", (), HEAD.stablehlo.digest, blob("a").digest, "dit_head"),  # type: ignore[union-attr]
    ),
    "StableHLO of a key that is not the record's": (
        with_key("dit_head", stablehlo=DIGEST),
        *("compile_key", ("stablehlo",), HEAD.stablehlo.digest, DIGEST, "dit_head"),  # type: ignore[union-attr]
    ),
    "no executable": (
        with_record(CONFIG, "dit_head", executable=None, compile_key={}),
        *("stage", (), "compile", "lower", "dit_head"),
    ),
    "program removed": (
        replace(CONFIG, programs=CONFIG.programs[1:]),
        *("program_removed", (), CONFIG.programs[0].stablehlo.digest, None, NAMES[0]),  # type: ignore[union-attr]
    ),
    "shape of an input": (
        with_program(
            CONFIG, "dit_head", inputs=(replace(TENSOR, shape=(1, 2)), *HEAD.program.inputs[1:])
        ),
        *("abi", ("inputs", TENSOR.name, "shape"), [*TENSOR.shape], [1, 2], "dit_head"),
    ),
    "weight": (
        with_program(CONFIG, "dit_head", weights=HEAD.program.weights[1:]),
        *("abi", ("weights", WEIGHT.name), msgspec.to_builtins(WEIGHT), None, "dit_head"),
    ),
    "order of weights": (
        with_program(CONFIG, "dit_head", weights=HEAD.program.weights[::-1]),
        *("abi", ("weights", "order"), [w.name for w in HEAD.program.weights]),
        *([w.name for w in HEAD.program.weights[::-1]], "dit_head"),
    ),
    "donation": (
        with_program(CONFIG, "dit_head", donated={"hidden": "noise"}),
        *("abi", ("donated", "hidden"), None, "noise", "dit_head"),
    ),
    "replicas": (
        with_program(CONFIG, "dit_head", replica_count=2),
        *("abi", ("replica_count",), 1, 2, "dit_head"),
    ),
    "what a program is": (
        with_program(CONFIG, "dit_head", definition={**HEAD.program.definition, "window": 1}),
        *("graph", ("definition", "window"), None, 1, "dit_head"),
    ),
    "collectives": (
        with_record(CONFIG, "dit_head", collectives={"all_reduce": 3}),
        *("collectives", ("all_reduce",), 1, 3, "dit_head"),
    ),
    "options": (
        replace(CONFIG, options=replace(CONFIG.options, attention="allgather")),
        *("options", ("attention",), "ring", "allgather", None),
    ),
    "requires": (
        replace(CONFIG, requires={**CONFIG.requires, "jaxlib": "1"}),
        *("requires", ("jaxlib",), "0", "1", None),
    ),
    "sampling": (
        replace(
            CONFIG,
            model=replace(CONFIG.model, sampling=replace(CONFIG.model.sampling, flow_shift=99.0)),
        ),
        *("model", ("sampling", "flow_shift"), CONFIG.model.sampling.flow_shift, 99.0, None),
    ),
    "cores": (
        replace(CONFIG, mesh=replace(CONFIG.mesh, cores=(7,))),
        *("mesh", ("cores",), [0], [7], None),
    ),
    "tokens": (
        replace(CONFIG, tokens=replace(CONFIG.tokens, masked=True)),
        *("tokens", ("masked",), False, True, None),
    ),
    "schedule": (
        replace(
            CONFIG,
            schedule=replace(
                CONFIG.schedule,
                stages=tuple(
                    replace(stage, calls=stage.calls[:-1])
                    if stage.name == "step.low_noise"
                    else stage
                    for stage in CONFIG.schedule.stages
                ),
            ),
        ),
        *("schedule", ("stages", "step.low_noise", "calls", "4")),
        msgspec.json.decode(
            msgspec.json.encode(
                next(s for s in CONFIG.schedule.stages if s.name == "step.low_noise").calls[-1]
            )
        ),
        *(None, None),
    ),
}


def plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_all_that_is_found(name: str):
    changed, kind, path, before, after, program = PLANTED[name]
    (found,) = compare(side(CONFIG, WIDE), side(changed, WIDE)).differences
    assert (found.kind, found.path) == (kind, path)
    assert repr([found.before, found.after]) == repr([plain(before), plain(after)])
    assert found.places == (Place(variant=TP1, program=program),)


def test_nothing_differs_from_itself():
    compared = compare(side(CONFIG, WIDE), side(WIDE, CONFIG))
    assert not compared.differs
    assert compared == Compared(
        added=(),
        removed=(),
        differences=(),
        again=(),
        shared=compared.shared,
        not_lowered=0,
    )
    assert sum(len(each.places) for each in compared.shared) == 2 * len(NAMES)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, each in entries:
        is_leaf = not isinstance(each, dict | list) or not each
        found += [(*path, key)] if is_leaf else leaves(each, (*path, key))
    return found


def other(value: Any) -> Any:
    """Another value of its type."""
    if isinstance(value, str) and value.startswith("sha256:"):
        return blob("c").digest
    if isinstance(value, bool) or value is None:
        return not value
    return value + (1 if isinstance(value, int | float) else "?") if value != {} else {"x": 1}


def test_no_field_of_a_config_changes_unseen():
    raw = plain(CONFIG)
    places, seen = leaves(raw), set()
    random.Random(0).shuffle(places)
    fields = {tuple(key for key in path if isinstance(key, str)): path for path in places}
    for path in fields.values():
        changed = copy.deepcopy(raw)
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        try:
            inner[path[-1]] = other(inner[path[-1]])
            config = msgspec.convert(changed, VariantConfig)
        except (msgspec.ValidationError, TypeError):
            continue
        if path == ("format_version",):  # another one is not read at all
            continue
        seen.add(path[0])
        assert compare(side(CONFIG), side(config)).differs, path
    assert seen >= {*raw} - {"format_version", "options"}  # whose values are few words


def test_every_field_of_a_config_has_a_kind():
    elsewhere = {"format_version", "variant", "programs"}
    assert set(VariantConfig.__dataclass_fields__) - elsewhere <= set(KINDS)


def test_variants_are_added_and_removed():
    compared = compare(side(CONFIG), side(WIDE))
    assert (compared.added, compared.removed) == ((TP2,), (TP1,))
    assert compared.differs
    assert compared.differences == ()
    assert {each.why for each in compared.again} == {("new variant",)}


def test_a_cause_of_many_programs_is_one_difference():
    new = {"name": "neuronx-cc", "version": "2.23"}
    (found,) = compare(
        side(CONFIG, WIDE), side(keyed(CONFIG, compiler=new), keyed(WIDE, compiler=new))
    ).differences
    assert found.path == ("compiler", "version")
    assert len(found.places) == 2 * len(NAMES)


# --- what is compiled again -----------------------------------------------------------------------


def test_what_is_compiled_again_counts_once_and_says_why():
    """Two variants of the same programs, as two placements have, and one flag more for one."""
    twin = replace(CONFIG, variant=replace(CONFIG.variant, placement="tp-cfg-cp"))
    flagged = with_key("dit_head", flags=[*FLAGS, "-x"])
    other_twin = replace(flagged, variant=twin.variant)
    compared = compare(side(CONFIG, twin), side(flagged, other_twin))
    (again,) = compared.again
    assert again.why == ("flags",)
    assert [place.program for place in again.places] == ["dit_head"] * 2
    assert again.bytes == HEAD.executable.size_bytes  # type: ignore[union-attr]
    assert len(compared.shared) == len(NAMES) - 1
    assert all(each.why == () and len(each.places) == 2 for each in compared.shared)


def test_a_program_that_another_variant_has_is_not_compiled_again():
    renamed = replace(HEAD, program=replace(HEAD.program, name="head"))
    moved = replace(WIDE, programs=(*WIDE.programs[1:], renamed))
    compared = compare(side(CONFIG), side(CONFIG, moved))
    assert HEAD.stablehlo
    assert HEAD.stablehlo.digest in {each.stablehlo for each in compared.shared}
    assert len(compared.again) == len(WIDE.programs) - 1


def lowered(config: VariantConfig, target: str = "cpu") -> VariantConfig:
    records = [replace(record, executable=None, compile_key={}) for record in config.programs]
    return replace(config, programs=tuple(records), variant=replace(config.variant, target=target))


@pytest.mark.parametrize(
    ("a", "b", "again"),
    [
        (CONFIG, lowered(CONFIG), 0),
        (lowered(CONFIG), CONFIG, 0),
        (lowered(CONFIG), lowered(CONFIG), 0),
        (lowered(CONFIG, "trn2"), CONFIG, len(NAMES)),
        (CONFIG, lowered(CONFIG, "trn2"), len(NAMES)),
        (lowered(CONFIG), with_record(CONFIG, "dit_head", stablehlo=blob("a")), 1),
    ],
    ids=["to lowered", "from lowered", "both", "other target", "to another", "changed"],
)
def test_what_is_not_compiled_yet_goes_by_target_and_stablehlo(a, b, again):
    assert len(compare(side(a), side(b)).again) == again


def test_what_is_not_lowered_is_counted():
    records = [replace(r, stablehlo=None, executable=None, compile_key={}) for r in CONFIG.programs]
    compared = compare(side(CONFIG), side(replace(CONFIG, programs=tuple(records))))
    assert compared.not_lowered == len(NAMES)
    assert [(d.kind, d.before, d.after) for d in compared.differences] == [
        ("stage", "compile", "plan")
    ]


# --- locks ----------------------------------------------------------------------------------------


def told(differences: tuple[Difference, ...]) -> list[tuple[Any, ...]]:
    return [
        (d.kind, d.places[0].variant, d.places[0].program, d.before, d.after) for d in differences
    ]


def test_locks_differ_in_variants_programs_and_stablehlo():
    before = locked(a={"text": "1", "blocks": "2"}, gone={"text": "1"})
    after = locked(a={"text": "1", "blocks": "3", "new": "4"}, b={"text": "1"})
    compared = compare(before, after)
    assert (compared.added, compared.removed) == (("b",), ("gone",))
    assert told(compared.differences) == [
        ("program_added", "a", "new", None, "4"),
        ("stablehlo", "a", "blocks", "2", "3"),
    ]
    assert [(each.stablehlo, each.why) for each in compared.again] == [
        ("3", ("StableHLO",)),
        ("4", ("new program",)),
    ]
    assert [each.stablehlo for each in compared.shared] == ["1"]


def test_a_bundle_beside_a_lock_is_as_much_as_its_lock(tmp_path: Path):
    write_lock(tmp_path / "x.lock.json", lock_of([CONFIG, WIDE]))
    lock = side_of(str(tmp_path / "x.lock.json"))
    other_key = keyed(CONFIG, flags=[])
    for pair in ((lock, side(other_key, WIDE)), (side(other_key, WIDE), lock)):
        compared = compare(*pair)
        assert not compared.differs
        assert compared.again == ()
    changed = with_record(CONFIG, "dit_head", stablehlo=blob("a"))
    assert told(compare(lock, side(changed, WIDE)).differences) == [
        ("stablehlo", TP1, "dit_head", HEAD.stablehlo.digest, blob("a").digest)  # type: ignore[union-attr]
    ]
    planned = with_record(CONFIG, "dit_head", stablehlo=None, executable=None)
    compared = compare(lock, side(planned, WIDE))
    assert told(compared.differences) == [("stage", TP1, "dit_head", "lower", "plan")]
    assert compared.not_lowered == 1


# --- values ---------------------------------------------------------------------------------------


def test_records_without_names_are_aligned():
    before = [{"p": "a"}, {"p": "b"}, {"p": "c"}]
    after = [{"p": "a"}, {"p": "new"}, {"p": "b"}, {"p": "c"}]
    assert [(c.path, c.before, c.after) for c in changes(before, after)] == [
        (("1",), None, {"p": "new"})
    ]
    assert [c.path for c in changes(before, [*before[:2], {"p": "d"}])] == [("2", "p")]
    assert [(c.path, c.after) for c in changes([{"p": 1}] * 2, [{"p": 1}])] == [(("1",), None)]


def test_json_tells_numbers_apart():
    assert [c.path for c in changes({"x": 1, "y": 1}, {"x": 1.0, "y": True})] == [("x",), ("y",)]
    assert [(c.before, c.after) for c in changes({"x": None}, {})] == [(None, None)]


def test_flags_are_compared_with_their_values():
    assert words_changed(FLAGS, ["--lnc", "1", "--framework", "XLA", "-O1", "-x=1"]) == (
        ["--lnc 1", "-x=1"],
        ["--lnc 2"],
    )
    assert words_changed(["aes", "avx"], ["avx", "aes"]) == ([], [])
    assert words_changed([1], [2]) is None


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a bundle; its programs are empty."""

    def write(name: str, *configs: VariantConfig) -> Path:
        new = [NewVariant(config=config, executable_type="test/executable") for config in configs]
        write_bundle(tmp_path / name, new, lambda digest: b"")
        return tmp_path / name

    return write


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main(["diff", *map(str, arguments)])
    return int(end.value.code or 0)


def test_exit_codes(write, tmp_path: Path, capsys):
    a, b = write("a", CONFIG), write("b", with_key("dit_head", isa="x86-64-v4"))
    write_lock(tmp_path / "lock", lock_of([CONFIG]))
    assert run(a, b) == 0
    assert run(a, a, "--exit-code") == 0
    assert run(a, b, "--exit-code") == 1
    assert run(a, b, "--exit-code", "--json") == 1
    assert run(tmp_path / "lock", b, "--exit-code") == 0
    assert "compared as far as locks go" in capsys.readouterr().out
    assert run(a, tmp_path / "none") == 5
    assert run(a, tmp_path / "lock", "--text") == 2
    assert "a lock has digests and no programs" in capsys.readouterr().err
    assert run(a, b, "--program", "dit_head") == 2
    assert run(a, b, "--text", "--program", "nobody") == 2
    assert "neither has it; they have dit_blocks, dit_context" in capsys.readouterr().err


def test_a_cause_is_told_once_with_all_that_it_touches(write, capsys):
    a = write("a", CONFIG, WIDE)
    new = {"compiler": {"name": "neuronx-cc", "version": "2.23"}, "flags": [*FLAGS[:-1], "-O2"]}
    assert run(a, write("b", keyed(CONFIG, **new), keyed(WIDE, **new))) == 0
    out = capsys.readouterr().out
    wrapped = re.sub(r"\s+", " ", out)
    assert f"compiler.version: 2.22 -> 2.23 {', '.join(NAMES)} in 1-2 " in wrapped
    assert f"flags: added -O2; removed -O1 {', '.join(NAMES)} in 1-2 " in wrapped
    assert out.count("2.23") == out.count("-O2") == 1
    assert f"compiled again: {2 * len(NAMES)} programs, 582 B\nshared with A:  0 programs" in out


def test_files_are_named_together(write, capsys):
    sources = {"targets/a.py": blob("a").digest, "targets/c.py": DIGEST}
    run(write("a", CONFIG), write("b", with_key("dit_head", sources=sources)))
    out = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert (
        "sources: changed targets/a.py; added targets/c.py; removed targets/b.py dit_head in 1"
        in out
    )


def test_digests_of_one_program_are_told_together(write, capsys):
    twin = replace(WIDE, variant=replace(WIDE.variant, placement="tp-cfg-cp"))
    changed = [
        with_record(config, "dit_head", stablehlo=blob(letter))
        for config, letter in ((CONFIG, "a"), (WIDE, "b"), (twin, "b"))
    ]
    run(write("a", CONFIG, WIDE, twin), write("b", *changed))
    out = capsys.readouterr().out
    assert re.search(r"  [0-9a-f]{12} -> aaaaaaaaaaaa, and 1 more\n    dit_head in 1-3\n", out)


def test_what_follows_from_a_key_is_not_told(write, capsys):
    changed = with_record(
        with_key("dit_head", isa="x86-64-v4"),
        "dit_head",
        executable=blob("a"),
        compile_key={**HEAD.compile_key, "isa": "x86-64-v4"},
    )
    run(write("a", CONFIG), write("b", changed))
    assert "reproducible" not in capsys.readouterr().out
    run(write("c", CONFIG), write("d", with_record(CONFIG, "dit_head", executable=blob("a"))))
    out = capsys.readouterr().out
    assert "not reproducible: the compile key is the same, the executable is not" in out


def test_json_has_all(write, capsys):
    a, b = write("a", CONFIG), write("b", with_key("dit_head", flags=["-x"]), WIDE)
    assert run(a, b, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert set(said) == {
        *("a", "b", "differs", "added", "removed", "differences", "again", "shared"),
        "not_lowered",
    }
    assert said["a"]["name"] == str(a)
    assert said["a"]["digest"].startswith("sha256:")
    assert said["b"]["variants"] == 2
    assert said["added"] == [TP2]
    assert said["differences"] == [
        {
            "kind": "compile_key",
            "path": ["flags"],
            "before": FLAGS,
            "after": ["-x"],
            "places": [{"variant": TP1, "program": "dit_head"}],
            "added": ["-x"],
            "removed": ["--framework XLA", "--lnc 2", "-O1"],
        }
    ]
    (again,) = [each for each in said["again"] if each["why"] == ["flags"]]
    assert again["stablehlo"] == HEAD.stablehlo.digest  # type: ignore[union-attr]
    assert again["bytes"] == HEAD.executable.size_bytes  # type: ignore[union-attr]
    assert again["places"] == [{"variant": TP1, "program": "dit_head"}]
    assert (len(said["again"]), len(said["shared"])) == (len(NAMES) + 1, len(NAMES) - 1)


def test_all_fits_80_columns(write, capsys):
    long = {f"entry-{i}-{'x' * 70}": "y" * 500 for i in range(40)}
    weights = tuple(replace(w, shape=(*w.shape, 1)) for w in BLOCKS.program.weights)
    changed = with_program(with_key("dit_head", **long), "dit_blocks", weights=weights)
    changed = replace(changed, schedule=WIDE.schedule, mesh=WIDE.mesh, tiles=WIDE.tiles)
    run(write("a", CONFIG), write("b", changed, WIDE))
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if "/" not in line]  # paths are as long as they are
    assert max(map(len, lines)) <= 80
    assert "and 15 more\n    dit_head in 1" in out
    assert f"and {len(weights) - 25} more, which --json names" in out


HOSTILE = "\x1b[2J\x9b"


def test_nothing_of_a_bundle_commands_the_terminal(write, capsys):
    changed = with_key("dit_head", **{HOSTILE: HOSTILE, "flags": [HOSTILE]})
    renamed = replace(HEAD, program=replace(HEAD.program, name=HOSTILE))
    changed = replace(changed, programs=(*changed.programs, renamed))
    strange = replace(WIDE, model=replace(WIDE.model, name=HOSTILE))
    run(write("a", CONFIG), write("b", changed, strange))
    out = capsys.readouterr().out
    assert "\ufffd[2J" in out
    assert all(line.isprintable() for line in out.splitlines())


def test_a_name_that_stands_twice_is_refused():
    twice = replace(CONFIG, programs=(*CONFIG.programs, HEAD))
    with pytest.raises(BundleError, match="has 'dit_head' twice"):
        side(twice)
    with pytest.raises(BundleError, match=f"b: has '{TP1}' twice"):
        side(CONFIG, CONFIG)


@pytest.mark.parametrize("how", [[], ["--json"]])
def test_a_key_that_nests_deep_is_refused_or_told(write, how, capsys):
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    code = run(write("a", CONFIG), write("b", with_key("dit_head", deep={"x": deep})), *how)
    assert code in (0, 5)
    assert "Traceback" not in capsys.readouterr().err


def test_the_page_names_every_kind():
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    told = re.findall(r"`(\w+)`", page.partition("## wanc diff")[2].partition("\n## ")[0])
    assert set(KINDS) <= set(told)
