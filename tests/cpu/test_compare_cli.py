"""wanc compare as a user has it: a verdict, a table, JSON, a picture, a report in the bundle."""

import io
import json
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import wanc.compare.bundle as story
from tests.cpu.conftest import PROMPT, SEED
from tests.cpu.test_parity import BF16_FACTOR, LATENT_TOLERANCE, PIXEL_TOLERANCE, WHOLE
from tests.unit.conftest import variant_of
from wanc.bundle.store import open_bundle, write_bundle
from wanc.cli import main
from wanc.compare.bundle import Compared
from wanc.compare.softmax_bound import UNDERFLOW
from wanc.spec.presets import NEGATIVE_PROMPT

pytestmark = pytest.mark.xdist_group("compare")

STEPS = 2
"""Both are the high-noise expert's."""


def line(wanc: Any, bundle: Path, *more: str) -> list[str]:
    values = {"--bundle": bundle, "--weights": wanc.checkpoint, "--prompt": PROMPT}
    values |= {"--steps": STEPS, "--seed": SEED}
    return ["compare", *(str(part) for pair in values.items() for part in pair), *more]


def exit_code(arguments: list[str]) -> Any:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def fails(arguments: list[str], code: int, capsys: Any, *said: str) -> None:
    """Before anything runs, and in one line of words."""
    assert exit_code(arguments) == code
    captured = capsys.readouterr()
    assert all(words in captured.err for words in said), captured.err
    assert captured.out == ""


def stablehlo(bundle: Path) -> list[str]:
    (variant,) = open_bundle(bundle).variants
    return sorted({record.stablehlo.digest for record in variant.config.programs})


def rows_of(table: str) -> dict[tuple[str, str], list[str]]:
    """Cells after the second of each row, by stage and step, which is empty but for latents."""
    split = [row.split() for row in table.splitlines() if row]
    found = {}
    for cells in split:
        has_step = cells[0] == "latents"
        found[cells[0], cells[1] if has_step else ""] = cells[1 + has_step :]
    return found


@pytest.fixture
def unrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be loaded: what is wrong is known before."""
    monkeypatch.setattr(story, "load_variant", lambda *_: pytest.fail("work was begun"))
    monkeypatch.setattr(story, "load_pipeline", lambda *_, **__: pytest.fail("work was begun"))


@dataclass(frozen=True)
class Shown:
    """One comparison with all that can be asked of it."""

    bundle: Path
    before: str
    """The bundle's digest before."""
    value: dict[str, Any]
    """Of stdout."""
    plot: Path
    report: Path
    compared: Compared


@pytest.fixture(scope="module")
def shown(wanc: Any, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """A bundle in fp32 of eight ranks beside diffusers."""
    folder, kept = tmp_path_factory.mktemp("compare"), []
    bundle = shutil.copytree(wanc.bundle(WHOLE, "tp2-cp2-cfg2"), folder / "bundle")
    before, plot, report = open_bundle(bundle).digest, folder / "plot.png", folder / "report.json"
    wanted = ["--json", "--plot", str(plot), "--report", str(report), "--attach"]
    compare = story.compare_with_diffusers

    def keeping(*args: Any, **how: Any) -> Compared:
        kept.append(compare(*args, **how))
        return kept[0]

    with pytest.MonkeyPatch.context() as patched, redirect_stdout(io.StringIO()) as out:
        patched.setattr(story, "compare_with_diffusers", keeping)
        code = exit_code(line(wanc, bundle, *wanted, "--softmax-bound"))
    assert code == 0
    return Shown(bundle, before, json.loads(out.getvalue()), plot, report, kept[0])


def again(monkeypatch: pytest.MonkeyPatch, compared: Compared) -> None:
    """Have the next comparison find what another found."""
    monkeypatch.setattr(story, "compare_with_diffusers", lambda *_, **__: compared)


# --- a bundle in fp32 -----------------------------------------------------------------------------


def test_a_bundle_in_fp32_passes_by_the_bars_of_parity(shown: Shown) -> None:
    value = shown.value
    assert value["passes"] is True
    assert value["failures"] == []
    assert value["bf16"] is None
    criteria = {(c["stage"], c["step"]): c for c in value["criteria"]}
    assert set(criteria) == {("text", 0), ("latents", STEPS), ("pixels", 0)}
    assert criteria["latents", STEPS]["limit"] == LATENT_TOLERANCE
    assert criteria["pixels", 0]["limit"] == PIXEL_TOLERANCE
    for criterion in criteria.values():
        assert criterion["measure"] == "max_abs"
        assert 0 < criterion["seen"] < criterion["limit"] / 10  # rounding, and two runs that differ
    assert [(row["stage"], row["step"]) for row in value["bundle"]["rows"]] == [
        ("text", 0),
        *(("latents", step) for step in range(1, STEPS + 1)),
        ("pixels", 0),
    ]
    assert len(value["bundle"]["frames"]) == 5


def test_the_json_says_what_was_compared(shown: Shown) -> None:
    subject = shown.value["subject"]
    assert subject["bundle"] == shown.before
    assert subject["covers"] == stablehlo(shown.bundle)
    variant = open_bundle(shown.bundle).variants[0].config.variant
    assert subject["variant"] == variant.texts()
    assert (subject["prompt"], subject["negative_prompt"]) == (PROMPT, NEGATIVE_PROMPT)
    assert (subject["seed"], subject["sampling"]["steps"]) == (SEED, STEPS)
    assert subject["experts"] == STEPS * ["high_noise"]
    assert subject["images"] == []


def test_the_report_is_the_json(shown: Shown) -> None:
    assert json.loads(shown.report.read_bytes()) == shown.value


def test_the_plot_is_a_picture(shown: Shown) -> None:
    with Image.open(shown.plot) as picture:
        picture.load()
        assert picture.format == "PNG"
        assert min(picture.size) > 300
        assert len(picture.convert("RGB").getcolors(1 << 20) or []) > 5


def test_the_report_is_in_the_bundle_which_stays_what_it_is(shown: Shown, capsys: Any) -> None:
    assert exit_code(["inspect", str(shown.bundle), "--json"]) == 0
    inspected = json.loads(capsys.readouterr().out)
    assert inspected["digest"] == shown.before
    (report,) = inspected["reports"]
    assert report["covers"] == shown.value["subject"]["covers"]
    blob = shown.bundle / "blobs" / "sha256" / report["digest"].removeprefix("sha256:")
    assert blob.read_bytes() == shown.report.read_bytes()


def test_rows_of_a_static_bound(shown: Shown) -> None:
    bounds = shown.value["softmax_bound"]
    assert [(bound["step"], bound["expert"]) for bound in bounds] == [
        (step, "high_noise") for step in range(1, STEPS + 1)
    ]
    model, tokens = open_bundle(shown.bundle).variants[0].config.model.transformer, 208
    for bound in bounds:
        assert bound["rows"] == 2 * model.layers * model.heads * tokens  # 2 branches of guidance
        assert bound["lost_rows"] == 0
        assert 0 < bound["largest_excess"] < UNDERFLOW
        assert 0 <= bound["layer"] < model.layers


def test_tables_for_people_fit_80_columns(
    wanc: Any, shown: Shown, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    again(monkeypatch, shown.compared)
    assert exit_code(line(wanc, shown.bundle)) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    stages, frames, bounds, verdict = out.strip().split("\n\n")
    assert stages.startswith(f"t2v {WHOLE} tp2-cp2-cfg2 fp32")
    rows = rows_of(stages)
    assert rows["text", ""][-1] == rows["latents", "2"][-1] == rows["pixels", ""][-1] == "passes"
    assert rows["latents", "1"][-1] != "passes"  # judged after the last step
    worst = next(c["seen"] for c in shown.value["criteria"] if c["stage"] == "latents")
    assert rows["latents", "2"][0] == f"{worst:.1e}"
    assert "PSNR" in frames
    assert "SSIM" in frames
    assert bounds.startswith("Static bound over row maxima")
    assert bounds.count("high_noise") == STEPS
    assert verdict == f"passes; {len(stablehlo(shown.bundle))} programs covered"


# --- other bundles --------------------------------------------------------------------------------


def test_a_video_from_an_image_has_its_condition_judged(
    of_task: Any, pictures: Callable[[str], tuple[Path, Path]], capsys: Any
) -> None:
    wanc, _ = of_task("i2v")
    bundle, (image, _) = wanc.bundle(WHOLE, "tp1"), pictures(WHOLE)
    assert exit_code(line(wanc, bundle, "--image", str(image), "--json")) == 0
    value = json.loads(capsys.readouterr().out)
    assert [row["stage"] for row in value["bundle"]["rows"]][:2] == ["text", "condition"]
    (condition,) = (c for c in value["criteria"] if c["stage"] == "condition")
    assert (condition["measure"], condition["limit"]) == ("max_abs", 1e-4)
    assert 0 < condition["seen"] < condition["limit"] / 10
    assert len(value["subject"]["images"]) == 1


def test_a_bundle_in_bf16_is_judged_by_diffusers_bf16(wanc: Any, capsys: Any) -> None:
    assert exit_code(line(wanc, wanc.bundle(WHOLE, "tp1", "bf16"), "--json")) == 0
    value = json.loads(capsys.readouterr().out)
    own = {(row["stage"], row["step"]): row["distance"] for row in value["bf16"]["rows"]}
    ours = {(row["stage"], row["step"]): row["distance"] for row in value["bundle"]["rows"]}
    assert set(own) == set(ours)
    for criterion in value["criteria"]:
        at = criterion["stage"], criterion["step"]
        assert criterion["measure"] == "rms"
        assert criterion["seen"] == ours[at]["rms"] > 1e-4  # fp32 rounds to less
        assert criterion["limit"] == pytest.approx(BF16_FACTOR * own[at]["rms"])
    assert len(value["bf16"]["frames"]) == len(value["bundle"]["frames"]) == 5


def test_two_topologies_are_one(wanc: Any, capsys: Any) -> None:
    one, many = wanc.bundle(WHOLE, "tp1"), wanc.bundle(WHOLE, "tp2-cp2-cfg2")
    assert exit_code(line(wanc, one, "--with", str(many), "--json")) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["passes"] is True
    assert value["subject"]["variant"]["topology"] == "tp1"
    assert value["subject"]["versions"]["beside"] == open_bundle(many).digest
    seen = {c["stage"]: c["seen"] for c in value["criteria"]}
    assert 0 < seen["latents"] < LATENT_TOLERANCE / 10
    assert "softmax_bound" not in value


# --- a bundle that is wrong -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def wrong(wanc: Any) -> Compared:
    """A bundle whose run guides by a hundredth more than it was asked to."""
    import wanc.run.pipeline as run

    kept, guide, compare = [], run.guide, story.compare_with_diffusers

    def keeping(*args: Any, **how: Any) -> Compared:
        kept.append(compare(*args, **how))
        return kept[0]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "guide", lambda noise, scale: guide(noise, 1.01 * scale))
        patched.setattr(story, "compare_with_diffusers", keeping)
        assert exit_code(line(wanc, wanc.bundle(WHOLE, "tp1"))) == 6
    return kept[0]


def test_a_fault_ends_in_6_and_names_the_stage(
    wanc: Any, wrong: Compared, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    again(monkeypatch, wrong)
    assert exit_code(line(wanc, wanc.bundle(WHOLE, "tp1"))) == 6
    captured = capsys.readouterr()
    rows = rows_of(captured.out.split("\n\n")[0])
    assert [rows[at][-1] for at in (("text", ""), ("latents", "2"), ("pixels", ""))] == [
        *("passes", "FAILS", "FAILS"),
    ]
    assert captured.out.strip().endswith("fails")
    said = captured.err[captured.err.index("wanc: less exact than it must be:") :].splitlines()[1:]
    assert [words.split(":")[0].strip() for words in said] == ["latents after step 2", "pixels"]
    assert "max abs" in said[0]
    assert f"at most {LATENT_TOLERANCE:.2e} passes" in said[0]


def test_a_fault_is_one_json_document(
    wanc: Any, wrong: Compared, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    again(monkeypatch, wrong)
    assert exit_code(line(wanc, wanc.bundle(WHOLE, "tp1"), "--json")) == 6
    captured = capsys.readouterr()
    value = json.loads(captured.out)
    assert value["passes"] is False
    assert value["failures"][0].startswith("latents after step 2: ")
    assert value["failures"][0] in captured.err


def test_a_fault_is_attached_as_what_it_is(
    wanc: Any, wrong: Compared, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again(monkeypatch, wrong)
    bundle = shutil.copytree(wanc.bundle(WHOLE, "tp1"), tmp_path / "bundle")
    assert exit_code(line(wanc, bundle, "--attach", "--json")) == 6
    capsys.readouterr()
    assert exit_code(["inspect", str(bundle), "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    blob = bundle / "blobs" / "sha256" / report["digest"].removeprefix("sha256:")
    assert json.loads(blob.read_bytes())["passes"] is False


# --- what is refused before anything runs ---------------------------------------------------------


@pytest.mark.usefixtures("unrun")
@pytest.mark.parametrize("flag", ["--attach", "--softmax-bound"])
def test_what_is_of_diffusers_is_refused_with_another_bundle(
    wanc: Any, capsys: Any, flag: str
) -> None:
    bundle = wanc.bundle(WHOLE, "tp1")
    fails(line(wanc, bundle, "--with", str(bundle), flag), 2, capsys, "with diffusers", flag)


@pytest.mark.usefixtures("unrun")
@pytest.mark.parametrize(
    ("package", "more"), [("skimage", []), ("accelerate", []), ("matplotlib", ["--plot", "p.png"])]
)
def test_a_missing_extra_is_named(
    wanc: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch, package: str, more: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    bundle = wanc.bundle(WHOLE, "tp1")
    fails(line(wanc, bundle, *more), 2, capsys, "pip install 'wanc[compare]'", package)


@pytest.mark.usefixtures("unrun")
@pytest.mark.parametrize("flag", ["--plot", "--report"])
@pytest.mark.parametrize("name", ["missing/file", "folder"])
def test_a_file_that_cannot_be_written_is_named(
    wanc: Any, tmp_path: Path, capsys: Any, flag: str, name: str
) -> None:
    (tmp_path / "folder").mkdir()
    output = str(tmp_path / name)
    fails(line(wanc, wanc.bundle(WHOLE, "tp1"), flag, output), 6, capsys, output)
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


@pytest.mark.usefixtures("unrun")
def test_plot_and_report_need_two_names(wanc: Any, tmp_path: Path, capsys: Any) -> None:
    named = ["--plot", str(tmp_path / "a"), "--report", str(tmp_path / "b" / ".." / "a")]
    fails(line(wanc, wanc.bundle(WHOLE, "tp1"), *named), 2, capsys, "a name each")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("unrun")
@pytest.mark.parametrize("flag", ["--bundle", "--with"])
def test_a_bundle_that_is_none_is_named(wanc: Any, tmp_path: Path, capsys: Any, flag: str) -> None:
    none = str(tmp_path / "none")
    fails(line(wanc, wanc.bundle(WHOLE, "tp1"), flag, none), 5, capsys, none, "no such bundle")


@pytest.mark.usefixtures("unrun")
def test_a_bundle_of_another_shape_cannot_be_compared_with(
    wanc: Any, tmp_path: Path, capsys: Any
) -> None:
    other, made = tmp_path / "other", variant_of("80x48x9")
    write_bundle(other, [made.new], made.blobs.__getitem__)
    arguments = line(wanc, wanc.bundle(WHOLE, "tp1"), "--with", str(other))
    fails(arguments, 2, capsys, f"no variant of shape {WHOLE}", "80x48x9")


@pytest.mark.usefixtures("unrun")
def test_a_bundle_that_takes_no_report_is_named(
    wanc: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    bundle = wanc.bundle(WHOLE, "tp1")
    fails(line(wanc, bundle, "--attach"), 6, capsys, f"cannot write the bundle {bundle}")
