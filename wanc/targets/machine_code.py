"""Which CPU features x86-64 object code uses beyond an ISA, read from the code itself.

Knows no compiler. XLA:CPU names every feature of the machine that compiled as needed, whatever ISA
was asked for, and LLVM may use any of them: only its instructions tell what a machine must have.
Lengths and opcodes are those of Intel's Software Developer's Manual, volume 2 (chapter 2 and
appendix A), and of AMD's Architecture Programmer's Manual, volume 3.
"""

import itertools
import struct
from collections.abc import Iterator, Set

from wanc.errors import ToolchainError

_IDLE = (
    # what a program must ask for by name, as StableHLO cannot
    "adx aes avx512vp2intersect cldemote clflushopt clwb clzero enqcmd fsgsbase hreset invpcid kl"
    " lwp movdir64b movdiri mwaitx pclmul pconfig pku prefetchi prfchw ptwrite rdpid rdpru rdrnd"
    " rdseed rtm serialize sgx sha sha512 shstk sm3 sm4 tsxldtrk uintr usermsr vaes vpclmulqdq"
    " waitpkg wbnoinvd widekl xsavec xsaveopt xsaves"
    # hints
    " prefer-no-gather prefer-no-scatter"
)
"""Features that LLVM does not use on its own; their instructions are not looked for."""


def _codes(ranges: str) -> frozenset[int]:
    """Opcodes from text such as ``c0-c1 d9``."""
    ends = [[int(end, 16) for end in part.split("-")] for part in ranges.split()]
    return frozenset(code for end in ends for code in range(end[0], end[-1] + 1))


# Opcode maps: 0 one byte, 1 after 0F, 2 after 0F38, 3 after 0F3A, 5 and 6 only with EVEX.
_NO_MODRM = {
    0: _codes(
        "04-05 0c-0d 14-15 1c-1d 24-25 2c-2d 34-35 3c-3d 50-5f 68 6a 6c-7f 90-9f a0-bf"
        " c2-c3 c8-cf e0-f5 f8-fd"
    ),
    1: _codes("05-09 0b 0e 30-37 77 80-8f a0-a2 a8-aa c8-cf"),
}
_THEN_BYTE = {
    0: _codes("04 0c 14 1c 24 2c 34 3c 6a-6b 70-7f 80 83 a8 b0-b7 c0-c1 c6 cd e0-e7 eb"),
    1: _codes("0f 70-73 a4 ac ba c2 c4-c6"),
    3: _codes("00-ff"),
}
_THEN_WORD = {
    0: _codes("05 0d 15 1d 25 2d 35 3d 68-69 81 a9 b8-bf c7 e8-e9"),
    1: _codes("80-8f"),
}
_THEN_OTHER = {0xC2: 2, 0xC8: 3, 0xCA: 2, **dict.fromkeys(range(0xA0, 0xA4), 8)}
_PREFIXES = _codes("26 2e 36 3e 64-67 f0 f2-f3")

_LEGACY, _VEX, _EVEX = range(3)
_EVEX_FEATURES = {
    "avx10.1",
    "avx10.2",
    "ccmp",
    "cf",
    "egpr",
    "jmpabs",
    "ndd",
    "nf",
    "ppx",
    "push2pop2",
    "zu",
}
"""What any EVEX instruction, or a REX2 prefix, may be one of."""
_SIGNS: dict[tuple[int, int, int], tuple[str, ...]] = {}
"""Features by encoding, map and opcode."""
for _feature, _encodings, _map, _opcodes in (
    ("avx512bitalg", (_EVEX,), 2, "54 8f"),
    ("avx512fp16", (_EVEX,), 5, "00-ff"),
    ("avx512fp16", (_EVEX,), 6, "00-ff"),
    ("avx512ifma", (_EVEX,), 2, "b4-b5"),
    ("avx512vbmi", (_EVEX,), 2, "75 7d 83 8d"),  # three with W are avx512bw's
    ("avx512vbmi2", (_EVEX,), 2, "62-63 70-73"),
    ("avx512vbmi2", (_EVEX,), 3, "70-73"),
    ("avx512vpopcntdq", (_EVEX,), 2, "55"),
    ("avxifma", (_VEX,), 2, "b4-b5"),
    ("avxneconvert", (_VEX,), 2, "72 b0-b1"),
    ("avxvnni", (_VEX,), 2, "50-53"),
    ("avxvnniint16", (_VEX,), 2, "d2-d3"),
    ("avxvnniint8", (_VEX,), 2, "50-51"),
    ("cmpccxadd", (_VEX,), 2, "e0-ef"),
    ("fma4", (_VEX,), 3, "5c-5f 68-6f 78-7f"),
    ("gfni", (_LEGACY, _VEX, _EVEX), 2, "cf"),
    ("gfni", (_LEGACY, _VEX, _EVEX), 3, "ce-cf"),
    ("raoint", (_LEGACY,), 2, "fc"),
    ("sse4a", (_LEGACY,), 1, "78-79"),  # and 2b with a prefix
):
    for _key in itertools.product(_encodings, (_map,), _codes(_opcodes)):
        _SIGNS[_key] = (*_SIGNS.get(_key, ()), _feature)

_KNOWN = {"tbm", "xop", *_EVEX_FEATURES, *itertools.chain(*_SIGNS.values())}


def used_features(elf: bytes, suspects: Set[str]) -> set[str]:
    """Those of the suspects, LLVM's names of features, that the code of an object file uses.

    A suspect of which nothing is known here counts as used. Raises ToolchainError for code that
    cannot be read.
    """
    found = set(suspects) - _KNOWN - set(_IDLE.split())
    if sought := suspects & _KNOWN:
        for code in _code_sections(elf):
            found |= sought & _features(code)
    return found


def _code_sections(elf: bytes) -> Iterator[bytes]:
    """Contents of the executable sections of an ELF64 file."""
    executable = 4  # SHF_EXECINSTR
    try:
        (table,) = struct.unpack_from("<Q", elf, 0x28)
        entry_bytes, count = struct.unpack_from("<HH", elf, 0x3A)
        for entry in range(table, table + count * entry_bytes, entry_bytes):
            flags, _, start, size_bytes = struct.unpack_from("<QQQQ", elf, entry + 8)
            if flags & executable:
                yield elf[start : start + size_bytes]
    except struct.error as error:
        raise ToolchainError(f"an object file of XLA:CPU is no ELF64 file: {error}") from error


def _features(code: bytes) -> set[str]:
    """All features of _KNOWN that the code uses."""
    found: set[str] = set()
    at = 0
    try:
        while at < len(code):
            at = _step(code, at, found)
    except IndexError:
        raise ToolchainError(f"an object file of XLA:CPU ends amid code, at {at}") from None
    return found


def _step(code: bytes, at: int, found: set[str]) -> int:
    """Note the features of the instruction at a place; where the next one is."""
    narrow = repeat = wide = False
    while code[at] in _PREFIXES:
        narrow |= code[at] == 0x66
        repeat |= code[at] in (0xF2, 0xF3)
        at += 1
    if code[at] & 0xF0 == 0x40:  # REX
        wide = bool(code[at] & 8)
        at += 1
    first = code[at]
    encoding, space = _LEGACY, 0
    if first == 0xC5:
        encoding, space, at = _VEX, 1, at + 2
    elif first == 0xC4:
        encoding, space, at = _VEX, code[at + 1] & 31, at + 3
    elif first == 0x62:
        encoding, space, wide, at = _EVEX, code[at + 1] & 7, bool(code[at + 2] & 0x80), at + 4
        found |= _EVEX_FEATURES
    elif first == 0xD5 or (first == 0x8F and code[at + 1] & 31 >= 8):  # REX2, XOP
        found |= _EVEX_FEATURES if first == 0xD5 else {"tbm", "xop"}
        return len(code)
    elif first == 0x0F:
        space, at = {0x38: (2, at + 2), 0x3A: (3, at + 2)}.get(code[at + 1], (1, at + 1))
    opcode = code[at]
    for feature in _SIGNS.get((encoding, space, opcode), ()):
        if feature != "avx512vbmi" or not wide or opcode == 0x83:
            found.add(feature)
    if encoding == _LEGACY and space == 1 and opcode == 0x2B and repeat:
        found.add("sse4a")
    return _end(code, at, encoding, space, narrow, wide)


def _end(code: bytes, at: int, encoding: int, space: int, narrow: bool, wide: bool) -> int:
    """Where an instruction ends whose opcode is at a place."""
    opcode = code[at]
    at += 1
    follow = 0
    if opcode in _THEN_BYTE.get(space, ()):
        follow = 1
    elif encoding == _LEGACY and opcode in _THEN_WORD.get(space, ()):
        follow = 8 if wide and space == 0 and opcode >= 0xB8 and opcode <= 0xBF else 4
        follow = 2 if narrow and space == 0 and opcode not in (0xE8, 0xE9) else follow
    elif space == 0:
        follow = _THEN_OTHER.get(opcode, 0)
    elif encoding == _LEGACY and space == 1 and opcode == 0x78:
        follow = 2
    plain = opcode == 0x77 if encoding != _LEGACY else opcode in _NO_MODRM.get(space, ())
    if not plain or (encoding != _LEGACY and space != 1):
        modrm = code[at]
        if space == 0 and opcode in (0xF6, 0xF7) and modrm & 0x38 <= 0x08:
            follow = 1 if opcode == 0xF6 else 2 if narrow else 4
        at = _operand_end(code, at)
    if at + follow > len(code):
        raise IndexError
    return at + follow


def _operand_end(code: bytes, at: int) -> int:
    """Where the ModRM byte at a place ends, with its SIB byte and displacement."""
    mode, base = code[at] >> 6, code[at] & 7
    at += 1
    if mode == 3:
        return at
    if base == 4:
        base = code[at] & 7
        at += 1
        if mode == 0 and base == 5:
            return at + 4
    elif mode == 0 and base == 5:
        return at + 4
    return at + (0, 1, 4)[mode]
