"""The pages say what the code has and prints: commands, options, samples, media types, fields,
layers and links.
"""

import dataclasses
import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer

from tests.sound import write_sound
from tests.unit.test_layers import LAYERS
from wanc.bundle import attached, oci
from wanc.bundle.config import FORMAT_VERSION, VariantConfig
from wanc.bundle.store import FORMAT_ANNOTATION, open_bundle
from wanc.cli import main
from wanc.cli.app import COMMANDS as NAMES
from wanc.cli.app import app_of
from wanc.cli.request import plans_of
from wanc.errors import WancError
from wanc.run.record import RunRecord
from wanc.signing import provenance, results
from wanc.signing.envelope import MOST_SIGNATURES, PAYLOAD_TYPE
from wanc.signing.provenance import About, provenance_of
from wanc.signing.statement import STATEMENT
from wanc.spec.sets import Request
from wanc.targets.cpu import CpuTarget

ROOT = Path(__file__).parents[2]
TIME = "2026-11-30T09:29:00Z"
DESCRIPTOR = ("name", "uri", "digest", "sha256", "mediaType")
"""Fields that in-toto gives every resource."""
PAGES = sorted(
    page for part in (".", "docs", "docs/ci", "bundles") for page in (ROOT / part).glob("*.md")
)
SETS = sorted((ROOT / "shapes").glob("*.yaml"))
WANC: Any = typer.main.get_command(app_of(NAMES))
COMMANDS: dict[str, Any] = WANC.commands


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


CLI, FORMAT, ARCHITECTURE = map(page, ("docs/cli.md", "bundles/FORMAT.md", "docs/architecture.md"))


def section(title: str) -> str:
    """What stands below a heading of docs/cli.md, up to the next of its level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", CLI, re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no heading: ## {title}"
    return found[1]


def options(command: Any) -> list[str]:
    """Of a command, and of those that stand below it."""
    inner = [o for each in getattr(command, "commands", {}).values() for o in options(each)]
    return inner + [o for p in command.params if p.param_type_name == "option" for o in p.opts]


def names(text: str) -> set[str]:
    """Everything that stands in backticks, word by word."""
    return {w for code in re.findall(r"`([^`\n]+)`", text) for w in re.split(r"[^\w.-]+", code)}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_a_page(name):
    command = COMMANDS[name]
    assert command.help
    assert section(f"wanc {name}").strip()
    bare = [p.name for p in command.params if not getattr(p, "help", None)]
    assert not bare, f"without help: {bare}"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_on_its_command_s_page(name):
    told = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", section(f"wanc {name}")))
    assert set(options(COMMANDS[name])) <= told


def test_pages_tell_of_no_other_command_or_option():
    every = [WANC, *COMMANDS.values()]
    known = {o for command in every for o in options(command)} | {"-h", "--help"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", CLI)) <= known
    assert set(re.findall(r"^## wanc (\S+)", CLI, re.MULTILINE)) == set(COMMANDS)


def test_exit_codes_have_a_row():
    for kind in WancError.__subclasses__():
        assert re.search(rf"^\| {kind.exit_code} \|.*`{kind.__name__}`", CLI, re.MULTILINE)


def test_keys_of_shape_sets_and_fields_of_records_are_told():
    assert set(Request.__dataclass_fields__) <= names(section("wanc plan"))
    assert set(RunRecord.__dataclass_fields__) <= names(section("wanc run"))


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_every_shape_set_plans(path):
    _, plans = plans_of(path, Request(), None)
    assert plans


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_relative_link_resolves(path):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_format_names_its_version_with_a_dated_line():
    assert f"The current format version is {FORMAT_VERSION}." in FORMAT
    dated = rf"^\| [0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}} \| {FORMAT_VERSION} \|"
    assert re.search(dated, FORMAT, re.MULTILINE)


def test_format_names_every_media_type_and_annotation():
    types = [v for v in vars(oci).values() if isinstance(v, str) and v.startswith("application/")]
    assert len(types) >= 6
    needed = [*types, CpuTarget().executable_type, oci.REF_NAME, FORMAT_ANNOTATION]
    needed += [*attached.TYPES, attached.KEYID_ANNOTATION, attached.REPORT_ANNOTATION]
    assert not [text for text in needed if text not in FORMAT]
    assert oci.LAYOUT.decode() in FORMAT


def records(kind: Any) -> Iterator[type]:
    """A record and every record in its fields."""
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        yield kind
        for inner in get_type_hints(kind).values():
            yield from records(inner)
    for inner in get_args(kind):
        yield from records(inner)


def test_format_has_every_field_of_the_config():
    assert {field.name for field in dataclasses.fields(VariantConfig)} <= set(
        re.findall(r"^\| `(\w+)` \|", FORMAT, re.MULTILINE)
    )
    told = names(FORMAT)
    missing = {
        f"{record.__name__}.{field.name}"
        for record in records(VariantConfig)
        for field in dataclasses.fields(record)
        if field.name not in told
    }
    assert not missing


def test_trust_names_types_algorithms_and_every_field_of_a_provenance(tmp_path, made):
    bundle = open_bundle(write_sound(tmp_path / "bundle", made().config))
    keys = {"isa": "x", "lnc": 2, "input_form": "hlo", "flags": ["-O1"]}
    first = bundle.variants[0].config
    changed = replace(
        first, programs=tuple(replace(record, compile_key=keys) for record in first.programs)
    )
    bundle = replace(bundle, variants=(replace(bundle.variants[0], config=changed),))
    about = About(invocation_id="1", started_on=TIME, finished_on=TIME)
    statement = json.loads(provenance_of(bundle, about, b""))
    trust = page("docs/trust.md")
    types = (STATEMENT, provenance.PREDICATE_TYPE, provenance.BUILD_TYPE, results.PREDICATE_TYPE)
    needed = [*types, provenance.UNSTATED_BUILDER, PAYLOAD_TYPE, str(MOST_SIGNATURES)]
    assert not [text for text in needed if text not in trust]
    programs = {record.program.name for record in first.programs}
    assert fields(statement["predicate"]) - programs <= {*re.findall(r"\w+", trust), *DESCRIPTOR}


def fields(value: Any) -> set[str]:
    """Every key of a JSON value."""
    if isinstance(value, list):
        return {name for each in value for name in fields(each)}
    if isinstance(value, dict):
        return {*value} | {name for each in value.values() for name in fields(each)}
    return set()


def test_format_has_what_the_cpu_target_requires():
    assert set(CpuTarget().requires()) <= names(FORMAT)


def test_architecture_draws_the_layers_that_hold():
    drawn = re.search(r"^```\n(errors .*?)```", ARCHITECTURE, re.MULTILINE | re.DOTALL)
    assert drawn
    assert [set(line.split()) for line in drawn[1].splitlines()] == LAYERS[:-1]  # no __main__


def samples() -> list[tuple[str, str]]:
    """Commands of docs/cli.md that need no bundle and no checkpoint, and what is shown of each."""
    text = section("Exit codes") + section("wanc plan")
    blocks = re.findall(r"^```\n(\$ .*?)^```", text, re.MULTILINE | re.DOTALL)
    found = [s for block in blocks for s in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(command, shown) for command, _, shown in (s.partition("\n") for s in found)]


def files() -> dict[str, str]:
    """Shape sets that docs/cli.md shows after their names, as files by name."""
    found = re.findall(r"`([\w-]+\.yaml)`:\n\n```yaml\n(.*?)^```", CLI, re.MULTILINE | re.DOTALL)
    return dict(found)


def test_some_samples_can_be_rerun():
    assert len(samples()) >= 5
    assert set(files()) == {"bad.yaml", "set.yaml"}


@pytest.mark.parametrize(("command", "shown"), samples(), ids=range(len(samples())))
def test_sample_shows_what_is_printed(command, shown, tmp_path, monkeypatch, capsys):
    for name, text in files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("wanc.spec.resolve.neuron_compiler_found", lambda: False)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # main would keep SIGTERM for itself
    with redirect_stderr(sys.stdout), pytest.raises(SystemExit):
        main(shlex.split(command)[1:])
    printed = [line.rstrip() for line in capsys.readouterr().out.rstrip().splitlines()]
    lines = shown.splitlines()
    if lines[-1] == "...":
        lines, printed = lines[:-1], printed[: len(lines) - 1]
    assert printed == lines
