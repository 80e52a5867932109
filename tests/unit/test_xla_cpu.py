"""The reader of XLA:CPU's container, on a small container made here."""

import itertools
import random
from pathlib import Path

import pytest

from wanc.bundle import xla_cpu
from wanc.bundle.x86 import ISAS, machine_flags, missing_features
from wanc.bundle.xla_cpu import (
    TRIPLE,
    canonical,
    check_features,
    object_files,
    target_of,
    with_features,
)
from wanc.errors import BundleError

HEADER = b"\x08\x03\x12\x09pjrt_ifrt"
ELFS = [b"\x7fELF-one", b"\x7fELF-two-longer", b"\x7fELF-0"]
FEATURES = "+64bit,+avx2,+fma,-avx512f"
FLAGS = (
    "lm cmov cx8 fxsr mmx sse sse2 cx16 popcnt lahf_lm pni sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2"
    " f16c fma abm movbe xsave"
)
V3_FLAGS = frozenset(FLAGS.split())


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def number(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def target(features: str = FEATURES, triple: str = TRIPLE) -> bytes:
    return message(
        9, message(1, triple.encode()) + message(2, b"haswell") + message(3, features.encode())
    )


OPTIONS = message(2, b"options")


def container(elfs: list[bytes] = ELFS, described: bytes | None = None) -> bytes:
    objects = [message(8, message(1, elf) + message(2, b"name")) for elf in elfs]
    result = [
        message(1, b"hlo module" * 30),
        number(5, 2),
        *objects[:1],
        message(7, number(1, 1) + message(2, b"symbol")),
        *objects[1:],
        target() if described is None else described,
        varint(11 << 3 | 1) + b"8 bytes.",
        varint(12 << 3 | 5) + b"four",
    ]
    return varint(len(HEADER)) + HEADER + message(1, b"".join(result)) + OPTIONS


def test_target_is_read():
    read = target_of(container())
    assert (read.triple, read.cpu) == (TRIPLE, "haswell")
    assert read.features == {"64bit", "avx2", "fma"}


def test_object_files_are_read_in_order():
    assert object_files(container()) == ELFS


def test_canonical_is_one_for_all_orders_of_objects():
    forms = {canonical(container(list(order))) for order in itertools.permutations(ELFS)}
    assert len(forms) == 1
    (form,) = forms
    assert canonical(form) == form
    assert sorted(object_files(form)) == sorted(ELFS)
    assert len(form) == len(container())


def test_canonical_changes_nothing_else():
    form = canonical(container())
    assert container(object_files(form)) == form


def test_features_are_replaced():
    changed = with_features(container(), frozenset({"fma", "avx"}))
    assert target_of(changed).features == {"avx", "fma"}
    assert target_of(changed).cpu == "haswell"
    assert changed == container(described=target("+avx,+fma"))


def test_cut_off_container_is_refused():
    whole = container()
    for size_bytes in range(len(whole)):
        with pytest.raises(BundleError, match="not an executable of XLA:CPU"):
            target_of(whole[:size_bytes])


def test_damage_never_raises_anything_else():
    chance = random.Random(7)
    for _ in range(3000):
        data = bytearray(container())
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        for read in (target_of, object_files, canonical):
            try:
                read(bytes(data))
            except BundleError:
                continue


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "header ends beyond its 0 bytes"),
        (b"\xff" * 30, "does not end"),
        (varint(1 << 60) + b"x", "header"),
        (varint(0) + OPTIONS, "0 fields 1 where one belongs"),
        (varint(0) + message(1, target()), "0 fields 2 where one belongs"),
        (varint(0) + 2 * message(1, target()) + OPTIONS, "2 fields 1 where one belongs"),
        (varint(0) + number(1, 7) + OPTIONS, "no message"),
        (varint(0) + message(1, b"\x0b") + OPTIONS, "wire type 3"),
        (varint(0) + message(1, b"\x00\x01") + OPTIONS, "field 0"),
        (varint(0) + message(1, varint(9 << 3 | 2) + varint(1 << 62)) + OPTIONS, "field 9"),
        (container(described=b""), "0 fields 9"),
        (container(described=number(9, 4)), "field 9 is no message"),
        (container(described=target() * 2), "2 fields 9"),
        (container(described=target("avx2")), "features"),
        (container(described=message(9, message(3, b"\xff\xfe"))), "field 3"),
        (container(described=message(9, number(1, 3))), "no text"),
    ],
)
def test_malformed_container_is_refused(data: bytes, cause: str):
    with pytest.raises(BundleError, match=cause):
        target_of(data)


def test_isas_are_levels():
    assert not missing_features(ISAS["x86-64-v3"], V3_FLAGS)
    assert missing_features(ISAS["x86-64-v4"], V3_FLAGS) == (
        *("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"),
    )
    assert missing_features(ISAS["x86-64-v3"], V3_FLAGS - {"abm", "sse4_2"}) == (
        *("crc32", "lzcnt", "sse4.2"),
    )


@pytest.mark.parametrize(
    ("feature", "flag"),
    [
        ("avx512bf16", "avx512_bf16"),
        ("avx512vbmi", "avx512vbmi"),
        ("avx512vbmi2", "avx512_vbmi2"),
        ("avxvnni", "avx_vnni"),
        ("amx-int8", "amx_int8"),
        ("pclmul", "pclmulqdq"),
        ("sha", "sha_ni"),
        ("gfni", "gfni"),
    ],
)
def test_features_go_by_other_names_in_linux(feature: str, flag: str):
    assert not missing_features([feature], frozenset({flag}))
    assert missing_features([feature], frozenset()) == (feature,)


def test_hints_ask_nothing_and_unknown_features_count_as_missing():
    hints = ["prefer-256-bit", "prefer-no-gather", "fast-variable-perlane-shuffle", "evex512"]
    assert missing_features([*hints, "avx999"], V3_FLAGS) == ("avx999",)


def test_machine_has_what_every_cpu_has(tmp_path: Path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx avx2\n\nflags\t\t: fpu avx\n")
    assert machine_flags(cpuinfo) == {"fpu", "avx"}
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    with pytest.raises(BundleError, match="lists no flags"):
        machine_flags(cpuinfo)
    with pytest.raises(BundleError, match="need x86-64 Linux"):
        machine_flags(tmp_path / "none")


def test_check_names_what_the_machine_lacks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(xla_cpu, "machine_flags", lambda: V3_FLAGS)
    check_features(container(), "dit_blocks")
    wider = container(described=target("+avx2,+avx512f,+amx-int8"))
    with pytest.raises(BundleError, match=r"dit_blocks needs .* lacks: amx-int8, avx512f;"):
        check_features(wider, "dit_blocks")
    foreign = container(described=target(triple="aarch64-unknown-linux-gnu"))
    with pytest.raises(BundleError, match="dit_blocks is compiled for aarch64"):
        check_features(foreign, "dit_blocks")
