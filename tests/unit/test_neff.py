"""The NEFF reader, on files typed by hand from AWS's page "Work with NEFF Files"."""

import gzip
import io
import json
import random
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wanc.bundle import neff, neff_archive
from wanc.bundle.neff import Neff, check_abi, neff_from, read_neff
from wanc.cli import main
from wanc.errors import BundleError
from wanc.plan.abi import Program, Tensor, Weight

VARIABLES = {
    "input0": {"type": "input", "var_id": 1, "size": 24},
    "input1": {"type": "input", "var_id": 2, "size": 8},
    "output0": {"type": "output", "var_id": 3, "size": 24},
    "sb": {"type": "state-buffer", "var_id": 4, "size": 4096},
    "spill": {"type": "virtual", "var_id": 5, "size": 512, "backing_variable_off": 0, "ops": []},
    "weights": {"type": "file", "var_id": 6, "size": 64, "file_name": "weights.npy"},
    "table": {"type": "dge-table", "var_id": 7, "size": 16, "list": [1, 2]},
}
PROGRAM = Program(
    name="toy",
    ranks="one",
    replica_count=1,
    kind="toy",
    definition={},
    groups={},
    weights=(Weight(name="w", tensor="w", stored_shape=(2, 3), shape=(2, 3), dtype="float32"),),
    inputs=(Tensor(name="x", shape=(4,), dtype="bfloat16"),),
    outputs=(Tensor(name="y", shape=(2, 3), dtype="float32"),),
    donated={},
)


def definition(variables: Any = VARIABLES) -> bytes:
    return json.dumps({"name": "sg00", "var": variables, "dma_queue": {}}).encode()


def tar(files: dict[str, bytes], how: Any = tarfile.USTAR_FORMAT) -> bytes:
    room = io.BytesIO()
    with tarfile.open(fileobj=room, mode="w", format=how) as archive:
        folder = tarfile.TarInfo("sg00")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return room.getvalue()


FILES = {"neff.json": b"{}", "sg00/def.json": definition(), "sg00/pe.bin": bytes(700)}


def file_of(archive: bytes, lnc: int = 2) -> bytes:
    """A NEFF: each field of neff_header_t at its offset in C."""
    header = bytearray(1024)
    header[0:8] = (2).to_bytes(8, "little")  # pkg_version
    header[8:16] = (1024).to_bytes(8, "little")  # header_size
    header[16:24] = len(archive).to_bytes(8, "little")  # data_size
    header[24:32] = (2).to_bytes(8, "little")  # neff_version_major
    header[32:40] = (5).to_bytes(8, "little")  # neff_version_minor
    header[40:168] = b"2.28.7011.0+a1b2".ljust(128, b"\0")  # neff_build_version
    header[168:172] = (4).to_bytes(4, "little")  # num_tpb
    header[172:204] = bytes(range(32))  # hash
    header[204:220] = bytes(range(100, 116))  # uuid
    header[220:476] = b"toy".ljust(256, b"\0")  # name
    header[476:480] = (3).to_bytes(4, "little")  # requested_tpb_count
    header[480:544] = bytes(64)  # tpb_per_node
    header[544:552] = (0x101).to_bytes(8, "little")  # feature_bits
    header[552:556] = lnc.to_bytes(4, "little")  # lnc_size
    header[556:1024] = bytes(468)  # pad
    return bytes(header) + archive


WHOLE = file_of(gzip.compress(tar(FILES), mtime=0))


def read(archive: bytes) -> Neff:
    return read_neff(file_of(archive), "toy.neff")


def test_offsets_are_those_of_the_c_struct():
    """With the alignment of C the documented fields are 1024 bytes, without a gap."""
    fields = "QQQQQ128sI32s16s256sI64sQI468s"
    assert struct.calcsize(f"@{fields}") == struct.calcsize(f"<{fields}") == 1024


def test_header_is_read():
    header = read_neff(WHOLE, "toy.neff").header
    assert (header.package_version, header.version) == (2, (2, 5))
    assert (header.build, header.name) == ("2.28.7011.0+a1b2", "toy")
    assert (header.tpb_count, header.requested_tpb_count) == (4, 3)
    assert (header.feature_bits, header.lnc) == (0x101, 2)
    assert header.hash == bytes(range(32)).hex()
    assert header.uuid == "6465666768696a6b6c6d6e6f70717273"


@pytest.mark.parametrize("how", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_contents_are_read(how: Any, pack: Callable[[bytes], bytes]):
    long_name = "sg00/" + "deep/" * 60 + "file"
    neff = read(pack(tar({"./" + name: data for name, data in FILES.items()}, how)))
    assert [(m.name, m.size_bytes) for m in neff.members] == [
        (name, len(data)) for name, data in FILES.items()
    ]
    assert [(t.name, t.size_bytes) for t in neff.inputs] == [("input0", 24), ("input1", 8)]
    assert [(t.name, t.size_bytes) for t in neff.outputs] == [("output0", 24)]
    assert {v.kind for v in neff.variables} == {each["type"] for each in VARIABLES.values()}
    if how != tarfile.USTAR_FORMAT:
        neff = read(pack(tar({long_name: b"1", **FILES, long_name + "2": b""}, how)))
        assert [m.name for m in neff.members] == [long_name, *FILES, long_name + "2"]


def test_subgraphs_of_a_logical_core_share_their_interface():
    neff = read(tar({**FILES, "sg01/def.json": definition()}))
    assert {v.subgraph for v in neff.variables} == {"sg00", "sg01"}
    assert len(neff.inputs) == 2
    check_abi(neff, PROGRAM, lnc=2, where="toy.neff")


def test_tensors_go_by_their_number():
    names = [f"input{i}" for i in (10, 9, 2, 0, 1)]
    neff = read(tar({"sg00/def.json": definition(dict.fromkeys(names, VARIABLES["input0"]))}))
    assert [tensor.name for tensor in neff.inputs] == sorted(names, key=lambda n: int(n[5:]))


# --- against the program --------------------------------------------------------------------------


def with_variables(**changes: dict[str, Any] | None) -> Neff:
    variables = {**VARIABLES, **changes}
    left = {name: fields for name, fields in variables.items() if fields}
    return read(tar({"sg00/def.json": definition(left)}))


def test_its_own_interface_passes():
    check_abi(read_neff(WHOLE, "toy.neff"), PROGRAM, lnc=2, where="toy.neff")


def test_every_difference_is_told():
    neff = with_variables(
        input1={"type": "input", "var_id": 2, "size": 16},
        output0=None,
        input7={"type": "input", "var_id": 9, "size": 4},
    )
    with pytest.raises(BundleError) as caught:
        check_abi(neff, PROGRAM, lnc=1, where="toy.neff")
    assert str(caught.value).splitlines() == [
        "toy.neff: its interface is not that of program toy:",
        "  LNC 2; needed is 1",
        "  3 inputs; needed are 2",
        "  input1 (x): 16 bytes; needed are 8, bfloat16 4",
        "  'input7': input of 4 bytes; needed is none",
        "  0 outputs; needed are 1",
        "  output0 (y): absent; needed are 24, float32 2x3",
    ]


def test_subgraphs_that_differ_are_told():
    other = {**VARIABLES, "input0": {"type": "input", "var_id": 1, "size": 12}}
    neff = read(tar({**FILES, "sg01/def.json": definition(other)}))
    with pytest.raises(BundleError, match=r"input0 \(w\): 12 bytes and 24 bytes; needed are 24"):
        check_abi(neff, PROGRAM, lnc=2, where="toy.neff")


def test_aliasing_is_compared_where_a_name_shows_it():
    aliased = with_variables(
        input0=None, **{"input0.must_alias_input": {"type": "input", "var_id": 1, "size": 24}}
    )
    assert aliased.inputs[0].name == "input0.must_alias_input"
    with pytest.raises(BundleError, match=r"input0\.must_alias_input: an output takes its buffer"):
        check_abi(aliased, PROGRAM, lnc=2, where="toy.neff")
    donating = Program(
        **{name: getattr(PROGRAM, name) for name in PROGRAM.__slots__ if name != "donated"},
        donated={"w": "y"},
    )
    check_abi(aliased, donating, lnc=2, where="toy.neff")
    check_abi(read_neff(WHOLE, "toy.neff"), donating, lnc=2, where="toy.neff")


# --- damage ---------------------------------------------------------------------------------------

REPEATED = gzip.compress(bytes(1 << 20)) * 64


def tar_header(name: bytes, size_field: bytes, kind: bytes = b"0") -> bytes:
    header = bytearray(512)
    header[: len(name)] = name
    header[124 : 124 + len(size_field)] = size_field
    header[156:157] = kind
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "0 bytes, where a header of 1024 belongs"),
        (b"NEFF" * 300, "calls itself"),
        (WHOLE[:-1], "bytes after the header, which states"),
        (file_of(b""), "its tar is cut off"),
        (file_of(b"\x1f\x8b" + bytes(600)), "gzip stream is damaged"),
        (file_of(gzip.compress(tar(FILES))[:-20]), "gzip stream is damaged|cut off"),
        (file_of(tar(FILES)[:700]), "its tar is cut off"),
        (file_of(bytes(1024)), "no sg00/def.json among 0 members"),
        (file_of(tar({"neff.json": b"{}"})), "no sg00/def.json among 1 members"),
        (file_of(tar({"sg00/def.json/x": b"{}"})), "no sg00/def.json"),
        (file_of(tar(FILES).replace(b"neff.json", b"neff.jsoN")), "another checksum"),
        (file_of(tar({"sg00/def.json": b"{"})), "is not JSON"),
        (file_of(tar({"sg00/def.json": b"[" * 200_000})), "is not JSON"),
        (file_of(tar({"sg00/def.json": b'{"var": ' + b"9" * 9000 + b"}"})), "is not JSON"),
        (file_of(tar({"sg00/def.json": b"\xff\xfe\xfd"})), "is not JSON"),
        (file_of(tar({"sg00/def.json": b"[]"})), "has no object var"),
        (file_of(tar({"sg00/def.json": b'{"var": 3}'})), "has no object var"),
        (file_of(tar({"sg00/def.json": definition({"a": 3})})), "'a' of sg00 has no type"),
        (file_of(tar({"sg00/def.json": definition({"a": {"type": 3}})})), "has no type"),
        (file_of(tar({"sg00/def.json": definition({"a": {"type": "input"}})})), "has no size"),
        (
            file_of(tar({"sg00/def.json": definition({"a": {"type": "input", "size": True}})})),
            "has no size",
        ),
        (
            file_of(tar({"sg00/def.json": definition({"a": {"type": "file", "size": -1}})})),
            "has no size",
        ),
        (file_of(tar({**FILES, "./sg00/def.json": definition()})), "two members sg00/def.json"),
        (file_of(tar_header(b"a", b"-7")), "where a number belongs"),
        (file_of(tar_header(b"a", b"\xff" * 12)), "where a number belongs"),
        (file_of(tar_header(b"a", b"\x80" + b"\xff" * 11) + bytes(512)), "its tar is cut off"),
        (file_of(tar_header(b"a", b"77777777777", b"x") + bytes(512)), "extension header of"),
    ],
)
def test_damage_is_told(data: bytes, cause: str):
    with pytest.raises(BundleError, match=rf"^toy.neff: not a NEFF, or a damaged one: .*({cause})"):
        read_neff(data, "toy.neff")


def test_bombs_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(neff_archive, "MOST_CONTENT_BYTES", 16 << 20)
    large = tar_header(b"a", b"\x80" + (1 << 30).to_bytes(11, "big"))
    with pytest.raises(BundleError, match="unpacks to more than"):
        read(gzip.compress(large) + REPEATED)
    monkeypatch.setattr(neff_archive, "MOST_KEPT_BYTES", 1 << 16)
    with pytest.raises(BundleError, match="more than 65536 bytes of JSON"):
        read(gzip.compress(tar({"sg00/def.json": definition() + b" " * (1 << 16)})))
    long_names = {f"{number}/{'deep/' * 4000}": b"" for number in range(5)}
    with pytest.raises(BundleError, match="more than 65536 bytes of JSON and names"):
        read(gzip.compress(tar({**long_names, **FILES}, tarfile.GNU_FORMAT)))
    monkeypatch.setattr(neff_archive, "MOST_MEMBERS", 2)
    with pytest.raises(BundleError, match="more than 2 members"):
        read(gzip.compress(tar(FILES)))
    many = definition().replace(b'"sg00"', b"[" + b"[]," * 100 + b"1]")
    monkeypatch.setattr(neff, "MOST_VALUES", 200)
    with pytest.raises(BundleError, match=r"sg00/def\.json: more than 200 values of JSON"):
        read(tar({"sg00/def.json": many}))


def test_streams_that_follow_each_other_are_one_file():
    """As gzip reads them: cut anywhere, zeros in between; a few, for each costs some work."""
    archive, cut = tar(FILES), 700
    parts = [gzip.compress(archive[:cut]), gzip.compress(archive[cut:])]
    whole = read(gzip.compress(archive))
    for between in (b"", bytes(3), bytes(600_000)):
        assert read(parts[0] + between + parts[1] + between).members == whole.members
    with pytest.raises(BundleError, match="gzip stream is damaged"):
        read(parts[0] + parts[1] + b"no stream")
    with pytest.raises(BundleError, match="more than 1000 gzip streams"):
        read(gzip.compress(b"") * 1001)


@pytest.mark.parametrize("piece_bytes", [1, 7, 511, 4096])
@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_pieces_may_be_of_any_size(pack: Callable[[bytes], bytes], piece_bytes: int):
    data = file_of(pack(tar(FILES, tarfile.PAX_FORMAT)))
    view = memoryview(data)
    pieces = [view[at : at + piece_bytes] for at in range(0, len(data), piece_bytes)]
    assert neff_from(pieces, len(data), "here") == read_neff(data, "here")
    for count in (0, len(pieces) // 2):  # a file that shrinks while it is read
        with pytest.raises(BundleError, match="not a NEFF, or a damaged one"):
            neff_from(pieces[:count], len(data), "here")


def test_links_and_paths_lead_nowhere(tmp_path: Path):
    room = io.BytesIO()
    with tarfile.open(fileobj=room, mode="w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            link = tarfile.TarInfo("sg00/def.json")
            link.type, link.linkname = kind, str(tmp_path)
            archive.addfile(link)
    with pytest.raises(BundleError, match=r"no sg00/def\.json among 0 members"):
        read(room.getvalue())
    assert read(tar({"../../etc/passwd": b"x", **FILES})).members[0].name == "../../etc/passwd"


def test_cut_off_files_are_refused():
    plain = file_of(tar(FILES))
    for whole in (WHOLE, plain):
        for size_bytes in {*range(0, len(whole), 37), 1023, 1024, 1025, len(whole) - 1}:
            with pytest.raises(BundleError):
                read_neff(whole[:size_bytes], "toy.neff")


@pytest.mark.soak
def test_damage_never_raises_anything_else(repetitions: Callable[[int, int], int]):
    chance = random.Random(7)
    plain = file_of(tar(FILES, tarfile.PAX_FORMAT))
    for number in range(repetitions(600, 100_000)):
        data = bytearray((WHOLE, plain)[number % 2])
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            check_abi(read_neff(bytes(data), "toy.neff"), PROGRAM, lnc=2, where="toy.neff")
        except BundleError:
            continue


# --- wanc inspect ---------------------------------------------------------------------------------


def test_inspect_shows_any_neff(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "toy.neff"
    odd = {**VARIABLES, "a\x1b[2Jb": {"type": "input", "var_id": 8, "size": 1}}
    path.write_bytes(file_of(gzip.compress(tar({**FILES, "sg01/def.json": definition(odd)}))))
    with pytest.raises(SystemExit) as end:
        main(["inspect", str(path)])
    shown = capsys.readouterr().out
    assert not end.value.code
    assert max(map(len, shown.splitlines())) <= 80 + len(str(path))
    assert "\x1b[2J" not in shown
    for text in ("2.28.7011.0+a1b2", "0x101", "dge-table", "sg00/pe.bin", "4 files"):
        assert text in shown
    with pytest.raises(SystemExit):
        main(["inspect", str(path), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["header"]["lnc"] == 2
    assert told["outputs"] == [{"name": "output0", "size_bytes": 24}]


def test_inspect_shows_names_that_no_encoding_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "toy.neff"
    odd = {**VARIABLES, "a\udc80": {"type": "input", "size": 1}}
    path.write_bytes(file_of(tar({"sg00/def.json": definition(odd)})))
    for more in ([], ["--json"]):
        with pytest.raises(SystemExit) as end:
            main(["inspect", str(path), *more])
        assert not end.value.code
        shown = capsys.readouterr().out
        assert "a\\udc80" in shown
    names = [each["name"] for each in json.loads(shown)["inputs"]]
    assert "a\udc80" in names


def test_inspect_refuses_another_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "video.mp4"
    path.write_bytes(bytes(2000))
    with pytest.raises(SystemExit) as end:
        main(["inspect", str(path)])
    assert end.value.code == 5
    assert f"{path}: not a NEFF, or a damaged one" in capsys.readouterr().err
