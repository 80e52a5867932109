"""What is stated of a bundle: field by field, the same each time, and nothing of who or where."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from cyclonedx.model.bom import Bom
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

import wanc
from tests.sound import edit, write_sound
from wanc import __version__
from wanc.bundle.reports import Attached
from wanc.bundle.store import open_bundle
from wanc.digest import of_bytes, of_file, of_json
from wanc.errors import BundleError, RequestError
from wanc.signing.provenance import UNSTATED_BUILDER, About, provenance_of
from wanc.signing.results import program_names, result_of
from wanc.signing.sbom import write_sbom
from wanc.signing.source import Source, source_of
from wanc.signing.statement import STATEMENT, read_statement, write_statement
from wanc.signing.toolchain import Package, packages_of, sources_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROOT = Path(wanc.__file__).parent


@pytest.fixture(scope="module")
def bundle(tmp_path_factory, made):
    path = tmp_path_factory.mktemp("stated") / "bundle"
    return open_bundle(write_sound(path, made().config, made(topology="tp2-cp2").config))


def with_keys(config, requires=None, **key):
    """The config with another compile key of every program, and other requirements."""
    programs = tuple(replace(record, compile_key=key) for record in config.programs)
    return replace(config, programs=programs, requires=requires or {"target": "cpu"})


def stated(bundle, **about) -> dict:
    return json.loads(provenance_of(bundle, About(**about), write_sbom(bundle)))


# --- provenance -----------------------------------------------------------------------------------


def test_a_statement_is_about_the_bundle_s_digest(bundle):
    statement = stated(bundle)
    assert set(statement) == {"_type", "subject", "predicateType", "predicate"}
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    digest = {"sha256": bundle.digest.removeprefix("sha256:")}
    assert statement["subject"] == [{"name": "wanc bundle", "digest": digest}]
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert set(statement["predicate"]) == {"buildDefinition", "runDetails", "wanc_variants"}


def test_what_was_asked_is_external(bundle):
    definition = stated(bundle)["predicate"]["buildDefinition"]
    assert set(definition) == {
        *("buildType", "externalParameters", "internalParameters", "resolvedDependencies")
    }
    assert definition["buildType"] == "urn:x-wanc:build:v1"
    assert definition["internalParameters"] == {"formatVersion": 4}
    first, second = definition["externalParameters"]["variants"]
    assert first == {
        "model": "tiny",
        "task": "t2v",
        "shape": "208x128x5",
        "topology": "tp1",
        "placement": "linear",
        "precision": "fp32",
        "target": "cpu",
        "stage": "compile",
        "attention": "ring",
        "blocksPerProgram": None,
        "vaeTiles": "even",
        "isa": "x86-64-v3",
    }
    assert second == {**first, "topology": "tp2-cp2"}


def test_flags_are_told_by_program(bundle, made):
    config = with_keys(made().config, flags=["-O1", "--x=y"], lnc=2, input_form="hlo")
    first = bundle.variants[0]
    changed = replace(bundle, variants=(replace(first, config=config),))
    definition = stated(changed)["predicate"]["buildDefinition"]
    (variant,) = definition["externalParameters"]["variants"]
    names = [record.program.name for record in config.programs]
    assert variant["flags"] == {name: ["-O1", "--x=y"] for name in names}
    assert (variant["lnc"], variant["input_form"]) == (2, "hlo")


def test_every_program_is_told_by_its_digests(bundle):
    told = stated(bundle)["predicate"]["wanc_variants"]
    assert [each["manifest"] for each in told] == [v.manifest.digest for v in bundle.variants]
    for each, variant in zip(told, bundle.variants, strict=True):
        assert each["programs"] == [
            {
                "name": record.program.name,
                "stablehlo": record.stablehlo.digest,
                "executable": record.executable.digest,
                "compileKey": of_json(record.compile_key),
            }
            for record in variant.config.programs
        ]


def test_programs_that_are_not_there_yet(bundle, made):
    config = made().config
    bare = [replace(r, stablehlo=None, executable=None, compile_key={}) for r in config.programs]
    variant = replace(bundle.variants[0], config=replace(config, programs=tuple(bare)))
    predicate = stated(replace(bundle, variants=(variant,)))["predicate"]
    first = predicate["wanc_variants"][0]["programs"][0]
    assert {first[key] for key in ("stablehlo", "executable", "compileKey")} == {None}
    (asked,) = predicate["buildDefinition"]["externalParameters"]["variants"]
    assert asked["stage"] == "plan"


def test_nothing_is_stated_of_the_run_but_what_is_given(bundle):
    details = stated(bundle)["predicate"]["runDetails"]
    assert details == {
        "builder": {"id": UNSTATED_BUILDER, "version": {"wanc": __version__}},
        "byproducts": [
            {
                "name": "sbom",
                "mediaType": "application/vnd.cyclonedx+json",
                "digest": {"sha256": of_bytes(write_sbom(bundle)).removeprefix("sha256:")},
            }
        ],
    }
    given = stated(
        bundle,
        builder_id="https://ci.example/wanc",
        invocation_id="run 7",
        started_on="2026-11-30T09:29:00Z",
        finished_on="2026-11-30T09:35:59Z",
    )["predicate"]["runDetails"]
    assert given["builder"]["id"] == "https://ci.example/wanc"
    assert given["metadata"] == {
        "invocationId": "run 7",
        "startedOn": "2026-11-30T09:29:00Z",
        "finishedOn": "2026-11-30T09:35:59Z",
    }


def test_the_same_bundle_and_values_give_the_same_bytes(bundle, tmp_path, made):
    """Wherever it lies, and whoever looks."""
    elsewhere = tmp_path / "other" / "name"
    write_sound(elsewhere, made(topology="tp2-cp2").config, made().config)
    sbom = write_sbom(bundle)
    again = open_bundle(elsewhere)
    assert again.digest == bundle.digest
    assert write_sbom(again) == sbom
    assert provenance_of(again, About(), sbom) == provenance_of(bundle, About(), sbom)


@pytest.mark.parametrize(
    "wrong",
    [
        {"builder_id": ""},
        {"builder_id": "ci.example/wanc"},
        {"builder_id": "https://ci.example/a b"},
        {"builder_id": "https://ci.example/\n"},
        {"builder_id": "https://" + "a" * 3000},
        {"invocation_id": "a\nb"},
        {"invocation_id": "\ud800"},
        {"started_on": "2026-11-30"},
        {"started_on": "2026-11-30T09:29:00+01:00"},
        {"started_on": "2026-11-31T09:29:00Z"},
        {"finished_on": "2026-11-30T9:29:00Z"},
    ],
)
def test_values_that_say_nothing_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(RequestError, match=f"--{name.replace('_', '-')}"):
        About(**wrong)


# --- the source -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("digest", "algorithm"),
    [
        (COMMIT, "gitCommit"),
        (f"gitCommit:{COMMIT}", "gitCommit"),
        ("gitCommit:" + "a" * 64, "gitCommit"),
        (f"sha1:{COMMIT}", "sha1"),
        ("sha256:" + "a" * 64, "sha256"),
    ],
)
def test_a_source_by_its_digest(bundle, digest, algorithm):
    source = source_of("git+https://example.com/wanc@refs/heads/main", digest, None)
    first, *_ = stated(bundle, source=source)["predicate"]["buildDefinition"][
        "resolvedDependencies"
    ]
    assert first == {
        "name": "source",
        "uri": "git+https://example.com/wanc@refs/heads/main",
        "digest": {algorithm: digest.rpartition(":")[2]},
    }


def test_a_source_without_a_uri_or_none():
    assert source_of(None, COMMIT, None).descriptor() == {
        "name": "source",
        "digest": {"gitCommit": COMMIT},
    }
    assert source_of(None, None, None) is None


@pytest.mark.parametrize(
    "digest", ["", COMMIT[:-1], COMMIT.upper(), f"md5:{COMMIT}", "sha256:" + COMMIT, f"{COMMIT}\n"]
)
def test_no_digest(digest):
    with pytest.raises(RequestError, match="--source-digest"):
        source_of(None, digest, None)


def test_a_uri_alone_names_no_revision(tmp_path):
    with pytest.raises(RequestError, match="names no revision"):
        source_of("git+https://example.com/wanc", None, None)
    with pytest.raises(RequestError, match="--source-uri 'wanc': needs a URI"):
        source_of("wanc", COMMIT, None)
    with pytest.raises(RequestError, match="give one of"):
        source_of(None, COMMIT, tmp_path)


def git(folder, *words):
    who = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
    done = subprocess.run(["git", "-C", folder, *who, *words], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_a_work_tree_s_commit(tmp_path):
    with pytest.raises(RequestError, match=r"--source .*: fatal: not a git repository"):
        source_of(None, None, tmp_path)
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-qm", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert source_of(None, None, tmp_path) == Source(uri=None, algorithm="gitCommit", value=head)
    (tmp_path / "file").write_text("2")
    with pytest.raises(RequestError, match="has changes that no commit has, as ' M file'"):
        source_of(None, None, tmp_path)


# --- what made it ---------------------------------------------------------------------------------

NEURON = {"name": "neuronx-cc", "version": "2.21.18209.0+043b1bf7"}


def packages(*configs):
    return [(p.name, p.version, p.runs) for p in packages_of(configs)]


def test_packages_are_what_keys_and_requirements_state(made):
    config = made().config
    cpu = with_keys(config, {"target": "cpu", "jaxlib": "0.10.2"}, jaxlib="0.10.2")
    trn = with_keys(config, {"target": "trn2", "compiler": NEURON}, compiler=NEURON, jaxlib="0.9")
    older = with_keys(config, {"target": "cpu", "jaxlib": "0.10.2"}, jaxlib="0.9.1", torch="2.13.0")
    assert packages(cpu) == [("jaxlib", "0.10.2", True), ("wanc", "", True)]
    assert packages(trn, cpu) == [
        ("jaxlib", "0.10.2", True),
        ("jaxlib", "0.9", False),
        ("neuronx-cc", "2.21.18209.0+043b1bf7", False),
        ("wanc", "", True),
    ]
    assert ("jaxlib", "0.9.1", False) in packages(older)
    assert ("torch", "2.13.0", False) in packages(older)


def test_what_is_stated_otherwise_is_no_package(made):
    for stated_as in (None, 3, [], {"name": "x"}, {"version": "1"}, {"name": 1, "version": "1"}):
        config = with_keys(made().config, jaxlib=[], compiler=stated_as)
        assert packages(config) == [("wanc", "", True)]


def test_wanc_s_version_is_told_where_its_sources_compiled(made):
    name = "targets/cpu.py"
    config = made().config
    own = {name: of_file(ROOT / name)}
    assert packages(with_keys(config, sources=own)) == [("wanc", __version__, True)]
    for other in ({name: of_bytes(b"")}, {**own, "targets/gone.py": of_bytes(b"")}, {}):
        assert packages(with_keys(config, sources=other)) == [("wanc", "", True)]
    assert sources_of([with_keys(config, sources=own)]) == ((name, own[name]),)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/../b.py", "", "a.so"])
def test_sources_are_no_paths_out_of_wanc(made, name, monkeypatch):
    monkeypatch.setattr("wanc.signing.toolchain.of_file", lambda _: pytest.fail("was opened"))
    config = with_keys(made().config, sources={name: of_bytes(b"")})
    assert sources_of([config]) == ()
    assert packages(config) == [("wanc", "", True)]


@pytest.mark.parametrize(
    ("package", "needed"),
    [
        (Package(name="jaxlib", version="0.10.2", runs=True), "pkg:pypi/jaxlib@0.10.2"),
        (
            Package(name="neuronx-cc", version="2.21+04", runs=False),
            "pkg:pypi/neuronx-cc@2.21%2B04?repository_url=https://pip.repos.neuron.amazonaws.com",
        ),
        (Package(name="wanc", version="0.1.0", runs=True), "pkg:generic/wanc@0.1.0"),
        (Package(name="wanc", version="", runs=True), "pkg:generic/wanc"),
        (Package(name="a/b ü", version="1@2", runs=True), "pkg:pypi/a%2Fb%20%C3%BC@1%402"),
    ],
)
def test_package_urls(package, needed):
    assert package.purl == needed
    read = PackageURL.from_string(package.purl)
    assert (read.name, read.version or "") == (package.name, package.version)


def test_dependencies_are_packages_and_sources_with_digests(bundle, made):
    sources = {"targets/cpu.py": of_bytes(b"1"), "bundle/x86.py": of_bytes(b"2")}
    config = with_keys(made().config, {"jaxlib": "0.10.2"}, sources=sources)
    changed = replace(bundle, variants=(replace(bundle.variants[0], config=config),))
    told = stated(changed)["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert told == [
        {"name": "jaxlib", "uri": "pkg:pypi/jaxlib@0.10.2"},
        {"name": "wanc", "uri": "pkg:generic/wanc"},
        *(
            {"name": f"wanc/{name}", "digest": {"sha256": digest.removeprefix("sha256:")}}
            for name, digest in sorted(sources.items())
        ),
    ]


# --- the bill of materials ------------------------------------------------------------------------


def test_the_bill_is_cyclonedx(bundle, made):
    neuron = with_keys(made().config, {"target": "trn2"}, compiler=NEURON, jaxlib="0.10.2")
    changed = replace(
        bundle, variants=(*bundle.variants, replace(bundle.variants[0], config=neuron))
    )
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    for each in (bundle, changed):
        bill = write_sbom(each).decode()
        assert validator.validate_str(bill) is None
        assert validator.validate_str(bill.replace('"library"', '"lib"')) is not None
    read = Bom.from_json(json.loads(write_sbom(changed)))
    assert [(c.name, c.version, str(c.purl)) for c in read.components] == [
        ("jaxlib", "0", "pkg:pypi/jaxlib@0"),
        ("jaxlib", "0.10.2", "pkg:pypi/jaxlib@0.10.2"),
        (
            "neuronx-cc",
            NEURON["version"],
            "pkg:pypi/neuronx-cc@2.21.18209.0%2B043b1bf7"
            "?repository_url=https://pip.repos.neuron.amazonaws.com",
        ),
        ("wanc", None, "pkg:generic/wanc"),
    ]
    scopes = {c.name: c.scope.value for c in read.components if c.version != "0.10.2"}
    assert scopes == {"jaxlib": "required", "neuronx-cc": "excluded", "wanc": "required"}
    assert read.metadata.component.version == bundle.digest
    assert read.serial_number.version == 5


def test_another_bundle_has_another_bill(bundle, tmp_path, made):
    other = open_bundle(write_sound(tmp_path / "other", made(topology="cp2").config))
    serials = {json.loads(write_sbom(each))["serialNumber"] for each in (bundle, other)}
    assert len(serials) == 2


# --- results of reports ---------------------------------------------------------------------------


def report(bundle, value) -> Attached:
    data = json.dumps(value).encode()
    covers = tuple(sorted(program_names(bundle)))[:2]
    return Attached(digest=of_bytes(data), covers=covers, data=data)


CRITERIA = [
    {"stage": "text", "step": 0, "measure": "max_abs", "seen": 1e-6, "limit": 1e-4},
    {"stage": "latents", "step": 4, "measure": "rms", "seen": 1.0, "limit": 0.5},
]


@pytest.mark.parametrize(
    ("passes", "result"), [(True, "PASSED"), (False, "FAILED"), (None, "WARNED"), (1, "WARNED")]
)
def test_a_report_s_result(bundle, passes, result):
    told = report(bundle, {"passes": passes, "criteria": CRITERIA})
    names = program_names(bundle)
    statement = json.loads(result_of(told, names))
    assert statement["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    assert statement["predicate"] == {
        "result": result,
        "configuration": [
            {
                "name": "report",
                "mediaType": "application/vnd.wanc.report.v1+json",
                "digest": {"sha256": told.digest.removeprefix("sha256:")},
            }
        ],
        "passedTests": ["text 0 max_abs"],
        "failedTests": ["latents 4 rms"],
    }
    assert statement["subject"] == [
        {"name": f"{names[d]} {d[7:19]}", "digest": {"sha256": d[7:]}} for d in told.covers
    ]


def test_a_program_that_was_replaced_has_no_name(bundle):
    told = replace(report(bundle, {}), covers=(of_bytes(b"gone"),))
    (subject,) = json.loads(result_of(told, program_names(bundle)))["subject"]
    assert subject["name"] == f"_ {of_bytes(b'gone')[7:19]}"


@pytest.mark.parametrize("criteria", [None, 3, "text", [None], [3, {}], {"a": 1}])
def test_criteria_that_are_none(bundle, criteria):
    predicate = json.loads(result_of(report(bundle, {"criteria": criteria}), {}))["predicate"]
    assert predicate["passedTests"] == []
    assert predicate["result"] == "WARNED"


def test_letters_that_utf_8_lacks_are_refused(bundle):
    told = report(bundle, {"criteria": [{"stage": "\ud800"}]})
    with pytest.raises(BundleError, match="cannot be stated"):
        result_of(told, {})


# --- statements -----------------------------------------------------------------------------------

GOOD = {
    "_type": STATEMENT,
    "subject": [{"name": "a", "digest": {"sha256": "1" * 64}}],
    "predicateType": "https://example.com/p",
    "predicate": {"a": {"b": "text", "c": [{"d": 1}, 3]}},
}


def test_what_is_written_is_read():
    digest = of_bytes(b"x")
    written = write_statement([("a", digest)], "https://example.com/p", {"ü": 1})
    statement = read_statement(written, "it")
    assert statement.subjects == {digest}
    assert statement.predicate_type == "https://example.com/p"
    assert statement.predicate == {"ü": 1}


def test_predicates_are_looked_into_whatever_they_are():
    statement = read_statement(json.dumps(GOOD).encode(), "it")
    assert statement.text("a", "b") == "text"
    assert statement.text("a", "b", "c") == statement.text("a") == statement.text("x", "y") == ""
    assert statement.records("a", "c") == [{"d": 1}]
    assert statement.records("a", "b") == statement.records("x") == []


@pytest.mark.parametrize(
    "change",
    [
        {"_type": "https://in-toto.io/Statement/v0.1"},
        {"_type": None},
        {"subject": []},
        {"subject": None},
        {"subject": {"digest": {"sha256": "1"}}},
        {"predicateType": 3},
        {"predicate": None},
        {"predicate": []},
    ],
)
def test_what_is_no_statement(change):
    with pytest.raises(BundleError, match=r"^it: "):
        read_statement(json.dumps({**GOOD, **change}).encode(), "it")


@pytest.mark.parametrize(
    "subject",
    [None, 3, {}, {"digest": None}, {"digest": {"sha512": "1"}}, {"digest": {"sha256": 1}}],
)
def test_subjects_without_a_sha256_are_about_nothing_that_is_known(subject):
    statement = read_statement(json.dumps({**GOOD, "subject": [subject]}).encode(), "it")
    assert statement.subjects == frozenset()


def test_a_statement_has_no_key_twice():
    text = json.dumps(GOOD)[:-1] + ',"subject":[]}'
    with pytest.raises(BundleError, match="stands twice in one object"):
        read_statement(text.encode(), "it")


def test_configs_of_others_are_stated_too(tmp_path, made):
    """Values of compile keys are whatever a bundle has; what cannot be stated raises no other."""
    path = write_sound(tmp_path / "b", made().config)
    strange = {"compiler": {"name": "ü\u2028", "version": "1 ' \" 2"}, "isa": [1, {"a": None}]}
    edit(path, lambda e: [p.update(compile_key=strange) for p in e.config["programs"]])
    opened = open_bundle(path)
    bill = write_sbom(opened)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill.decode()) is None
    assert read_statement(provenance_of(opened, About(), bill), "it").subjects == {opened.digest}
