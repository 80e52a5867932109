"""Reports that lie beside a bundle's index: kept by every write, and read with nothing trusted."""

import json
import threading

import pytest

from tests.unit.test_bundle_store import blob_file, files, put, read_all, write
from wanc.bundle import oci, store
from wanc.bundle.reports import COVERS_ANNOTATION, REPORT_TYPE, attach_report, read_reports
from wanc.bundle.store import open_bundle
from wanc.cli import main
from wanc.digest import of_bytes
from wanc.errors import BundleError, RunError

DATA = b'{"passes":true}'
OTHER = b'{"passes":false}'
STRANGE = of_bytes(b"a program of no bundle")


@pytest.fixture
def bundle(tmp_path, made):
    """A bundle of one variant."""
    path = tmp_path / "bundle"
    write(path, made())
    return path


@pytest.fixture
def reported(bundle):
    """That bundle with a report of all its programs."""
    attach_report(bundle, DATA, programs(bundle))
    return bundle


def programs(path) -> tuple[str, ...]:
    """Digests of the StableHLO programs of a bundle's first variant, in order."""
    config = open_bundle(path).variants[0].config
    return tuple(sorted({record.stablehlo.digest for record in config.programs}))


def told(path) -> list[bytes]:
    return [report.data for report in read_reports(open_bundle(path))]


def entries(path) -> list[dict]:
    return json.loads((path / "index.json").read_bytes())["manifests"]


def set_entries(path, listed: list[dict]) -> None:
    index = json.loads((path / "index.json").read_bytes())
    (path / "index.json").write_text(json.dumps({**index, "manifests": listed}))


def report_entry(path) -> dict:
    (entry,) = (e for e in entries(path) if COVERS_ANNOTATION in e.get("annotations", {}))
    return entry


def manifest(path) -> dict:
    return json.loads(blob_file(path, report_entry(path)["digest"]).read_bytes())


def edit_entry(path, **changed) -> None:
    """Change a report's entry in the bundle's index.json."""
    edited = {**report_entry(path), **changed}
    set_entries(path, [*(e for e in entries(path) if e != report_entry(path)), edited])


def set_manifest(path, data: bytes) -> None:
    """Make some bytes the report's manifest, with digests that agree."""
    edit_entry(path, digest=put(path, data), size=len(data))


def edit_manifest(path, **changed) -> None:
    set_manifest(path, json.dumps({**manifest(path), **changed}).encode())


def refusal(path) -> str:
    opened = open_bundle(path)  # the bundle itself is not hurt
    with pytest.raises(BundleError) as caught:
        read_reports(opened)
    return str(caught.value)


# --- attaching ----------------------------------------------------------------------------


def test_a_report_is_read_back_and_the_bundle_stays_what_it_is(bundle):
    before, covers = open_bundle(bundle), programs(bundle)
    digest = attach_report(bundle, DATA, covers)
    assert open_bundle(bundle) == before
    read_all(bundle)
    (report,) = read_reports(before)
    assert digest == report.digest == of_bytes(DATA)
    assert (report.data, report.covers) == (DATA, covers)


def test_a_bundle_without_reports_has_none(bundle):
    assert read_reports(open_bundle(bundle)) == ()


def test_a_report_is_an_artifact_of_oci(reported):
    entry, value = report_entry(reported), manifest(reported)
    assert entry["mediaType"] == value["mediaType"] == oci.MANIFEST
    assert value["artifactType"] == REPORT_TYPE
    assert [layer["mediaType"] for layer in value["layers"]] == [REPORT_TYPE]
    assert value["config"]["mediaType"] == oci.EMPTY
    assert blob_file(reported, value["config"]["digest"]).read_bytes() == b"{}"
    assert entry["annotations"] == value["annotations"]
    for file in reported.rglob("*"):
        assert not file.name.startswith(".")


def test_covers_are_sorted_and_each_there_once(bundle):
    first, second = programs(bundle)[:2]
    attach_report(bundle, DATA, (second, first, second))
    assert read_reports(open_bundle(bundle))[0].covers == (first, second)


def test_a_report_may_cover_programs_of_several_variants(bundle, made):
    one = programs(bundle)
    write(bundle, made("320x320x9", "tp2"))
    both = {r.stablehlo.digest for v in open_bundle(bundle).variants for r in v.config.programs}
    assert len(both) > len(one)
    attach_report(bundle, DATA, tuple(both))
    assert set(read_reports(open_bundle(bundle))[0].covers) == both


def test_the_same_report_is_there_once_and_in_its_place(reported):
    attach_report(reported, OTHER, programs(reported))
    before = files(reported)
    attach_report(reported, DATA, programs(reported)[::-1])
    assert files(reported) == before
    assert told(reported) == [DATA, OTHER]


def test_attaching_again_mends_a_damaged_report(reported):
    before = files(reported)
    blob_file(reported, of_bytes(DATA)).write_bytes(b"damaged")
    blob_file(reported, report_entry(reported)["digest"]).unlink()
    attach_report(reported, DATA, programs(reported))
    assert files(reported) == before


def test_one_text_of_other_programs_is_another_report(reported):
    covers = programs(reported)[:1]
    attach_report(reported, DATA, covers)
    found = read_reports(open_bundle(reported))
    assert [report.covers for report in found] == [programs(reported), covers]
    assert [report.digest for report in found] == 2 * [of_bytes(DATA)]


@pytest.mark.parametrize("topology", ["tp1", "tp2"])
def test_reports_stay_where_a_variant_is_added_or_replaced(reported, made, topology):
    attach_report(reported, OTHER, programs(reported)[:1])
    before = read_reports(open_bundle(reported))
    write(reported, made(topology=topology, executables="a later executable"))
    assert len(open_bundle(reported).variants) == {"tp1": 1, "tp2": 2}[topology]
    assert read_reports(open_bundle(reported)) == before
    assert told(reported) == [DATA, OTHER]


def executable(path) -> str:
    return open_bundle(path).variants[0].config.programs[0].executable.digest


@pytest.mark.parametrize(
    ("covers", "said"),
    [
        (lambda path: (), "no program"),
        (lambda path: (STRANGE,), STRANGE),
        (lambda path: (*programs(path), STRANGE), STRANGE),
        (lambda path: (executable(path),), "and no others"),
        (lambda path: (open_bundle(path).digest,), "and no others"),
        (lambda path: (",".join(programs(path)[:2]),), "and no others"),
        (lambda path: (programs(path)[0].upper(),), "and no others"),
    ],
)
def test_what_is_no_program_of_the_bundle_is_not_covered(bundle, covers, said):
    before = files(bundle)
    with pytest.raises(BundleError, match=said):
        attach_report(bundle, DATA, covers(bundle))
    assert files(bundle) == before


def test_a_report_that_could_not_be_read_is_not_attached(bundle, monkeypatch):
    monkeypatch.setattr("wanc.bundle.reports.MAX_JSON_BYTES", len(DATA) - 1)
    before = files(bundle)
    with pytest.raises(BundleError, match=f"{len(DATA)} bytes.*at most {len(DATA) - 1}"):
        attach_report(bundle, DATA, programs(bundle))
    assert files(bundle) == before


@pytest.mark.parametrize("name", ["index.json", "oci-layout"])
def test_nothing_is_attached_to_what_is_no_bundle(bundle, name):
    covers = programs(bundle)
    (bundle / name).unlink()
    before = files(bundle)
    with pytest.raises(BundleError, match="not a bundle"):
        attach_report(bundle, DATA, covers)
    assert files(bundle) == before


def test_reports_and_variants_that_are_added_at_once_are_all_kept(bundle, made):
    texts, covers = [b'{"number":%d}' % n for n in range(6)], programs(bundle)
    work = [lambda text=text: attach_report(bundle, text, covers) for text in texts]
    work += [lambda shape=shape: write(bundle, made(shape)) for shape in ("16x16x1", "32x32x1")]
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told(bundle)) == texts
    assert len(open_bundle(bundle).variants) == 3


# --- what others put beside the bundle ----------------------------------------------------


@pytest.fixture
def foreign(bundle):
    """An entry of index.json that wanc did not write, and whose blob is not there."""
    entry = {
        "mediaType": oci.MANIFEST,
        "digest": STRANGE,
        "size": 7,
        "annotations": {oci.REF_NAME: "signature"},
    }
    set_entries(bundle, [entry, *entries(bundle)])
    return entry


def test_foreign_entries_are_kept_by_every_write_and_are_no_reports(bundle, foreign, made):
    before = open_bundle(bundle)
    attach_report(bundle, DATA, programs(bundle))
    assert foreign in entries(bundle)
    assert open_bundle(bundle) == before
    write(bundle, made("320x320x9"))
    assert foreign in entries(bundle)
    assert len(entries(bundle)) == len(["bundle", "foreign", "report"])
    assert told(bundle) == [DATA]


# --- interrupted writing ------------------------------------------------------------------


class Killed(BaseException):
    """Stands for whatever ends a process."""


def fail_at(monkeypatch, step: int, error):
    """Let the step-th file that the store writes fail; returns the list of written names."""
    written, write_whole = [], store.write_whole

    def counted(path, data):
        written.append(path.name)
        if len(written) == step:
            raise error
        write_whole(path, data)

    monkeypatch.setattr(store, "write_whole", counted)
    return written


WRITES = 4
"""The report, its empty config, its manifest, index.json."""


def test_attaching_commits_by_the_index(bundle, monkeypatch):
    written = fail_at(monkeypatch, 0, None)
    attach_report(bundle, DATA, programs(bundle))
    assert len(written) == WRITES
    assert written[0] == of_bytes(DATA).removeprefix("sha256:")
    assert written[-1] == "index.json"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Killed()])
@pytest.mark.parametrize("step", range(1, WRITES + 1))
def test_an_interrupted_attach_leaves_the_bundle_as_it_was(bundle, made, monkeypatch, error, step):
    """And attaching, or adding a variant, goes on from there."""
    attach_report(bundle, OTHER, programs(bundle))
    blob_file(bundle, of_bytes(oci.EMPTY_BYTES)).unlink()  # else one write less
    before, covers = open_bundle(bundle), programs(bundle)
    with monkeypatch.context() as patched:
        fail_at(patched, step, error)
        expected = Killed if isinstance(error, Killed) else RunError
        with pytest.raises(expected) as caught:
            attach_report(bundle, DATA, covers)
    if expected is RunError:
        assert f"cannot write the bundle {bundle}" in str(caught.value)
        assert "No space left" in str(caught.value)
    assert open_bundle(bundle) == before
    read_all(bundle)
    assert told(bundle) == [OTHER]
    attach_report(bundle, DATA, covers)
    write(bundle, made("320x320x9"))
    assert told(bundle) == [OTHER, DATA]


@pytest.mark.parametrize("step", range(1, 8))
def test_an_interrupted_write_keeps_the_report(reported, made, monkeypatch, step):
    """Of a variant whose blobs are there already: what is left is manifests and the index."""
    two = made("320x320x9")
    for data in two.blobs.values():
        put(reported, data)
    before = open_bundle(reported)
    with monkeypatch.context() as patched:
        written = fail_at(patched, step, OSError(5, "Input/output error"))
        try:
            write(reported, two)
        except RunError:
            assert open_bundle(reported) == before
        else:
            assert len(written) < step
    assert told(reported) == [DATA]


# --- hostile reports ----------------------------------------------------------------------


BLOBS = {
    "report": lambda path: of_bytes(DATA),
    "manifest": lambda path: report_entry(path)["digest"],
}
EACH_BLOB = pytest.mark.parametrize("digest", BLOBS.values(), ids=BLOBS)


@EACH_BLOB
@pytest.mark.parametrize("place", [0, 7, -1])
def test_flipped_byte_is_found(reported, digest, place):
    file = blob_file(reported, digest(reported))
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    assert f"sha256:{file.name} is damaged" in refusal(reported)


@EACH_BLOB
def test_missing_blob_is_named(reported, digest):
    blob_file(reported, digest(reported)).unlink()
    assert f"blob {digest(reported)} is missing" in refusal(reported)


@EACH_BLOB
def test_link_is_refused_though_its_bytes_are_right(reported, digest, tmp_path):
    file = blob_file(reported, digest(reported))
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert "is not a file but a link" in refusal(reported)


@EACH_BLOB
def test_folder_is_refused(reported, digest):
    file = blob_file(reported, digest(reported))
    file.unlink()
    file.mkdir()
    assert "is not a file" in refusal(reported)


GOOD = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    "covers",
    [
        "",
        " ",
        "all",
        f"{GOOD},",
        f",{GOOD}",
        f"{GOOD};{GOOD}",
        f"{GOOD}, {GOOD}",
        f"{GOOD}\n",
        f"{GOOD},{'sha256:' + 'A' * 64}",
        GOOD[:-1],
        f"{GOOD},../../etc/passwd",
        f'["{GOOD}"]',
        GOOD.replace("256", "512"),
    ],
)
def test_covers_that_are_no_list_of_digests(reported, covers):
    edit_entry(reported, annotations={COVERS_ANNOTATION: covers})
    assert "is no report of wanc's, or a damaged one" in refusal(reported)


@pytest.mark.parametrize("covers", [[GOOD], {"0": GOOD}, None, 1])
def test_covers_that_are_no_text(reported, covers):
    """Then the bundle cannot be opened either: its index.json is damaged."""
    edit_entry(reported, annotations={COVERS_ANNOTATION: covers})
    with pytest.raises(BundleError, match=r"index\.json: a descriptor is damaged"):
        open_bundle(reported)


def test_entry_that_is_the_bundle_s_own_is_no_report(bundle):
    (entry,) = entries(bundle)
    set_entries(bundle, [{**entry, "annotations": {COVERS_ANNOTATION: GOOD}}])
    assert "no list of layers" in refusal(bundle)


@pytest.mark.parametrize("count", [0, 2])
def test_a_report_has_one_layer(reported, count):
    edit_manifest(reported, layers=count * manifest(reported)["layers"])
    assert "is no report of wanc's" in refusal(reported)


@pytest.mark.parametrize("kind", [None, oci.VARIANT_TYPE, REPORT_TYPE.upper(), [REPORT_TYPE], {}])
def test_another_artifact_type_is_no_report(reported, kind):
    edit_manifest(reported, artifactType=kind)
    assert "is no report of wanc's" in refusal(reported)


def test_a_variant_s_manifest_is_no_report(reported):
    variant = open_bundle(reported).variants[0].manifest
    edit_entry(reported, digest=variant.digest, size=variant.size)
    assert "is no report of wanc's" in refusal(reported)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("size", store.MAX_JSON_BYTES + 1, "bytes of JSON"),
        ("size", 10**18, "bytes of JSON"),
        ("size", store.MAX_JSON_BYTES, f"{len(DATA)} bytes; needs {store.MAX_JSON_BYTES}"),
        ("size", 0, "bytes; needs 0"),
        ("size", -1, "a descriptor is damaged"),
        ("size", str(len(DATA)), "a descriptor is damaged"),
        ("digest", "sha256:../../../../etc/passwd", "a descriptor is damaged"),
        ("digest", "../index.json", "a descriptor is damaged"),
        ("digest", "/etc/passwd", "a descriptor is damaged"),
        ("digest", GOOD, "is missing"),
        ("digest", None, "a descriptor is damaged"),
    ],
)
def test_layer_that_is_not_what_it_says(reported, key, value, said):
    (layer,) = manifest(reported)["layers"]
    edit_manifest(reported, layers=[{**layer, key: value}])
    assert said in refusal(reported)


def test_manifest_that_says_too_many_bytes_is_not_read(reported):
    edit_entry(reported, size=store.MAX_JSON_BYTES + 1)
    assert "bytes of JSON" in refusal(reported)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"artifactType":',
        b"[" * 100_000,
        b'{"layers":' + b"[" * 100_000,
        b'{"layers":' + b"9" * 5000 + b"}",
        b'{"layers":{}}',
        b'{"layers":[null]}',
    ],
    ids=lambda data: repr(data[:20]),
)
def test_manifest_of_another_kind(reported, data):
    set_manifest(reported, data)
    assert f"{reported}: report sha256:" in refusal(reported)


def test_json_of_any_depth_is_refused_by_a_clear_error(reported):
    """What can just be read must not be too deep to be told of."""
    opened, said = open_bundle(reported), set()
    for depth in range(800, 1010):
        data = b'{"layers":[' + b"[" * depth + b"]" * depth + b"]}"
        set_manifest(reported, data)
        with pytest.raises(BundleError) as caught:
            read_reports(opened)
        said |= {text for text in ("not JSON", "is damaged") if text in str(caught.value)}
    assert said == {"not JSON", "is damaged"}


# --- wanc inspect -------------------------------------------------------------------------


def shown(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["inspect", *map(str, arguments)])
    captured = capsys.readouterr()
    assert ended.value.code == 0, captured.err
    return captured.out


def test_inspect_shows_reports(reported, capsys):
    attach_report(reported, OTHER, programs(reported)[:1])
    found = [line for line in shown(capsys, reported).splitlines() if line.startswith("report")]
    assert found == [
        f"report {of_bytes(DATA)} of {len(programs(reported))} programs",
        f"report {of_bytes(OTHER)} of 1 program",
    ]


def test_inspect_lists_reports_for_programs(reported, capsys):
    value = json.loads(shown(capsys, reported, "--json"))
    assert value["digest"] == open_bundle(reported).digest
    assert value["reports"] == [{"digest": of_bytes(DATA), "covers": list(programs(reported))}]


def test_inspect_of_a_bundle_without_reports(bundle, capsys):
    assert json.loads(shown(capsys, bundle, "--json"))["reports"] == []
    assert "report" not in shown(capsys, bundle)


def test_inspect_of_a_damaged_report(reported, capsys):
    blob_file(reported, of_bytes(DATA)).write_bytes(b"x" * len(DATA))
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(reported), "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert ended.value.code == error["exit_code"] == BundleError.exit_code
    assert f"{of_bytes(DATA)} is damaged" in error["message"]


def test_a_bundle_elsewhere_has_its_reports(reported, tmp_path):
    """They name nothing outside it."""
    before = read_reports(open_bundle(reported))
    moved = reported.rename(tmp_path / "moved")
    assert read_reports(open_bundle(moved)) == before
