"""Instructions are told apart, on encodings from the manuals."""

import struct

import pytest

from wanc.errors import ToolchainError
from wanc.targets.machine_code import used_features


def elf(code: bytes) -> bytes:
    """An object file with one executable section, and one of data that looks like code."""
    data = bytes.fromhex("c4e3fdcec105")  # vgf2p8affineqb
    start = 64 + len(code)
    sections = struct.pack("<IIQQQQIIQQ", 0, 1, 6, 0, 64, len(code), 0, 0, 1, 0)
    sections += struct.pack("<IIQQQQIIQQ", 0, 1, 2, 0, start, len(data), 0, 0, 1, 0)
    header = bytearray(64)
    header[:4] = b"\x7fELF"
    struct.pack_into("<Q", header, 0x28, start + len(data))
    struct.pack_into("<HH", header, 0x3A, 64, 2)
    return bytes(header) + code + data + sections


NAMES = "avx512ifma avx512vbmi avx512vbmi2 avxneconvert avxvnni fma4 gfni rdseed sse4a xop"
SUSPECTS = frozenset(NAMES.split())

PLAIN = [
    "c5fc5804 8b",  # vaddps (%rbx,%rcx,4)
    "c4e27db8 8510000000",  # vfmadd231ps 0x10(%rbp)
    "62f17c48 58c1",  # vaddps zmm
    "62f2fd48 8dc1",  # vpermw zmm: avx512bw
    "f30fb8c1",  # popcnt
    "48b8 0102030405060708",  # movabs
    "66b80102",  # mov $imm16, %ax
    "f6c101",  # test $1, %cl
    "f7d8",  # neg %eax
    "66f7c1 0102",  # test $imm16, %cx
    "0f1f8400 00000000",  # nopl
    "e8 00000000",  # call
    "488d05 01020304",  # lea rip
    "c5f877",  # vzeroupper
    "c3",
]


@pytest.mark.parametrize(
    ("code", "feature"),
    [
        ("c4e3f9cec105", "gfni"),  # vgf2p8affineqb xmm
        ("62f3fd48cec105", "gfni"),  # the same on zmm
        ("660f3acec105", "gfni"),  # gf2p8affineqb
        ("62d2c548b4cd", "avx512ifma"),  # vpmadd52luq
        ("62f27d488dc1", "avx512vbmi"),  # vpermb
        ("62f27d4863c1", "avx512vbmi2"),  # vpcompressb
        ("c4e27d50c1", "avxvnni"),  # vpdpbusd
        ("c4e27e72c1", "avxneconvert"),  # vcvtneps2bf16
        ("f20f79c1", "sse4a"),  # insertq
        ("660f78c10203", "sse4a"),  # extrq
        ("f20f2b00", "sse4a"),  # movntsd
        ("c4e3f968c120", "fma4"),  # vfmaddps of four operands
        ("8fe97881c1", "xop"),  # vfrczpd
    ],
)
def test_instruction_is_found_amid_others(code: str, feature: str):
    before, after = bytes.fromhex("".join(PLAIN)), bytes.fromhex("".join(PLAIN))
    found = used_features(elf(before + bytes.fromhex(code) + after), SUSPECTS)
    assert found == {feature}


def test_nothing_is_found_in_plain_code_or_in_data():
    code = bytes.fromhex("".join(PLAIN))
    assert used_features(elf(code), SUSPECTS) == set()


@pytest.mark.parametrize("code", ["62f17c4858c1", "d51801c1"])  # vaddps zmm, add with REX2
def test_evex_and_rex2_may_be_apx(code: str):
    assert used_features(elf(bytes.fromhex(code)), {"egpr", "gfni"}) == {"egpr"}


def test_only_suspects_count():
    code = elf(bytes.fromhex("c4e3f9cec105"))
    assert used_features(code, {"avxvnni"}) == set()


def test_what_is_not_known_counts_as_used():
    assert used_features(elf(b"\xc3"), {"avx999", "gfni"}) == {"avx999"}


@pytest.mark.parametrize("code", ["e8 0000", "48", "c4e2", "0f38"])
def test_code_that_ends_early_is_refused(code: str):
    with pytest.raises(ToolchainError, match="ends amid code"):
        used_features(elf(bytes.fromhex("c3" + code)), {"gfni"})


def test_what_is_no_elf_is_refused():
    with pytest.raises(ToolchainError, match="no ELF64"):
        used_features(b"\x7fELF", {"gfni"})
