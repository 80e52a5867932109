"""Recordings compared, the verdict on bundles, and how both are shown."""

import json
import sys
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from wanc.compare.metrics import FrameLikeness
from wanc.compare.plot import draw_frames, draw_steps, write_plot
from wanc.compare.report import (
    COLUMNS,
    FRAME_COLUMNS,
    Subject,
    ThreeWay,
    compare,
    frame_rows,
    table_rows,
    three_way,
    versions,
)
from wanc.compare.trace import Recording
from wanc.errors import RequestError, RunError

STEPS = 3
SHAPES = {
    ("text", 0): (2, 8, 4),
    ("condition", 0): (1, 4, 2, 2, 2),
    **{("latents", step): (1, 4, 2, 2, 2) for step in range(1, STEPS + 1)},
    ("pixels", 0): (1, 3, 5, 16, 16),
}
LAST = ("latents", STEPS)


def recording(off=None, *, rms=None, without=()):
    """A run that is off the exact one by constants, or by noise of some root mean square."""
    made = Recording()
    for at, shape in SHAPES.items():
        if at in without:
            continue
        exact = np.random.default_rng(1).uniform(-0.9, 0.9, shape)
        error = np.full(shape, (off or {}).get(at, 0.0))
        if rms and at[0] != "condition":
            error = np.random.default_rng(2).standard_normal(shape)
            error *= rms / np.sqrt(np.square(error).mean())
        made.observe(*at, exact + error)
    return made


def subject(precision):
    variant = {
        "task": "i2v",
        "shape": "16x16x5",
        "topology": "tp2-cp2-cfg2",
        "placement": "linear",
        "precision": precision,
        "target": "cpu",
    }
    return Subject(
        bundle="sha256:12",
        variant=variant,
        model="tiny-i2v",
        sampling={"steps": STEPS, "boundary": None, "flow_shift": 5.0},
        experts=("high_noise", "low_noise", "low_noise"),
        prompt="a lighthouse",
        negative_prompt="色调艳丽",
        seed=7,
        images=("sha256:34",),
        versions=versions(),
        covers=("sha256:56", "sha256:78"),
    )


def judged(off=None, *, precision="fp32", rms=None, bf16_rms=1e-2):
    bf16 = recording(rms=bf16_rms) if bf16_rms else None
    return three_way(recording(), bf16, recording(off, rms=rms), subject(precision))


# --- recordings -----------------------------------------------------------------------------------


def test_a_recording_keeps_a_copy_in_fp32():
    made, values = Recording(), np.ones((2, 2), ml_dtypes.bfloat16)
    made.observe("text", 0, values)
    values[:] = 0
    kept = made.values["text", 0]
    assert kept.dtype == np.float32
    assert kept.tolist() == [[1, 1], [1, 1]]


def test_moments_are_in_the_order_of_a_run():
    made = Recording()
    for at in [("pixels", 0), ("latents", 10), ("latents", 2), ("condition", 0), ("text", 0)]:
        made.observe(*at, np.zeros(1))
    assert made.moments == (
        *(("text", 0), ("condition", 0)),
        *(("latents", 2), ("latents", 10), ("pixels", 0)),
    )


def test_a_run_that_is_repeated_is_recorded_as_it_was_last():
    made = Recording()
    made.observe("text", 0, np.zeros(1))
    made.observe("text", 0, np.ones(1))
    assert made.values["text", 0] == 1


# --- reports --------------------------------------------------------------------------------------


def test_a_report_has_a_row_for_each_stage_and_step():
    found = compare(recording({("latents", 2): 0.5, LAST: 0.25}), recording())
    assert [(row.stage, row.step) for row in found.rows] == list(SHAPES)
    assert found.at("latents", 1).max_abs == 0
    assert found.at("latents", 2).max_abs == pytest.approx(0.5, abs=1e-6)
    assert found.at(*LAST).rms == pytest.approx(0.25, abs=1e-6)
    assert found.worst_step == 2


def test_the_worst_frame_is_the_one_of_least_psnr():
    ours = recording()
    ours.values["pixels", 0][:, :, 3] += np.float32(0.02)
    ours.values["pixels", 0][:, :, 1] += np.float32(0.01)
    found = compare(ours, recording())
    assert len(found.frames) == 5
    assert found.worst_frame == 4
    assert found.frames[3].psnr_db == pytest.approx(40, abs=1e-2)


def test_runs_may_end_before_pixels():
    part = {("pixels", 0)}
    found = compare(recording(without=part), recording(without=part))
    assert (found.frames, found.worst_frame) == ((), None)


def test_runs_that_show_other_stages_cannot_be_compared():
    with pytest.raises(RunError, match=r"one shows text, latents after step 1.*the other .*condi"):
        compare(recording(without={("condition", 0)}), recording())
    with pytest.raises(RunError, match="one shows nothing; the other nothing"):
        compare(Recording(), Recording())


# --- the verdict ----------------------------------------------------------------------------------


def test_an_exact_bundle_passes():
    found = judged()
    assert found.passes
    assert found.failures == ()
    assert {(c.stage, c.step) for c in found.criteria} == {*SHAPES} - {
        ("latents", 1),
        ("latents", 2),
    }


@pytest.mark.parametrize(
    ("at", "tolerance"),
    [(("text", 0), 1e-4), (("condition", 0), 1e-4), (LAST, 1e-3), (("pixels", 0), 1e-3)],
)
def test_fp32_is_judged_by_the_largest_difference(at, tolerance):
    assert judged({at: 0.9 * tolerance}).passes
    found = judged({at: 1.1 * tolerance})
    assert not found.passes
    named = f"{at[0]} after step {at[1]}" if at[1] else at[0]
    (failure,) = found.failures
    assert failure.startswith(f"{named}: max abs {1.1 * tolerance:.2e}")
    assert failure.endswith(f"at most {tolerance:.2e} passes")


def test_one_value_that_is_off_fails_fp32_and_not_bf16():
    def run(precision):
        bundle = recording()
        bundle.values[LAST].flat[0] += 0.05
        return three_way(recording(), recording(rms=1e-2), bundle, subject(precision))

    assert not run("fp32").passes
    assert run("bf16").passes


def test_latents_are_judged_after_the_last_step_alone():
    assert judged({("latents", 1): 1.0, ("latents", 2): 1.0}).passes


def test_every_failure_is_named():
    assert len(judged(dict.fromkeys(SHAPES, 1.0)).failures) == 4


@pytest.mark.parametrize(("times", "passes"), [(0.5, True), (1.49, True), (1.51, False)])
def test_bf16_is_judged_by_diffusers_own_in_root_mean_square(times, passes):
    found = judged(precision="bf16", rms=times * 1e-2, bf16_rms=1e-2)
    assert found.passes is passes
    assert {c.measure for c in found.criteria if c.stage != "condition"} == {"rms"}
    if not passes:
        assert len(found.failures) == 3
        assert found.failures[0].startswith("text: rms 1.51e-02, and at most 1.50e-02")


def test_the_condition_is_fp32_in_bf16_too():
    """The VAE's precision does not follow the bundle's."""
    assert judged({("condition", 0): 0.9e-4}, precision="bf16").passes
    found = judged({("condition", 0): 1.1e-4}, precision="bf16")
    assert found.failures[0].startswith("condition: max abs")


def test_fp32_is_judged_without_bf16_as_well():
    found = judged({LAST: 0.5}, bf16_rms=None)
    assert found.bf16 is None
    assert len(found.failures) == 1


# --- JSON -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bf16_rms", [None, 1e-2])
def test_json_gives_back_what_it_was_made_of(bf16_rms):
    found = judged({LAST: 0.5}, bf16_rms=bf16_rms)
    text = json.dumps(found.to_json(), allow_nan=False)
    assert ThreeWay.from_json(json.loads(text)) == found


def test_json_says_what_was_compared_and_the_verdict():
    value = json.loads(json.dumps(judged({LAST: 0.5}).to_json()))
    assert value["passes"] is False
    assert value["failures"] == list(judged({LAST: 0.5}).failures)
    assert value["subject"]["bundle"] == "sha256:12"
    assert value["subject"]["covers"] == ["sha256:56", "sha256:78"]
    assert value["subject"]["seed"] == 7
    assert {*value["subject"]["versions"]} == {"wanc", "torch", "diffusers"}


def test_a_verdict_is_not_taken_from_json():
    value = judged({LAST: 0.5}).to_json()
    assert not ThreeWay.from_json({**value, "passes": True, "failures": []}).passes


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": 2}, "format 2; this wanc reads 1"),
        ({"criteria": [{"stage": "text"}]}, "missing required field"),
        ({"bundle": None}, r"Expected `object`, got `null` - at `\$.bundle`"),
    ],
)
def test_json_of_another_kind_is_refused(change, told):
    with pytest.raises(RunError, match=told):
        ThreeWay.from_json({**judged().to_json(), **change})
    with pytest.raises(RunError, match="format None"):
        ThreeWay.from_json([])


# --- what people see ------------------------------------------------------------------------------


def width(heads, rows):
    """Of a table whose columns are two spaces apart."""
    cells = zip([head.rstrip(">") for head in heads], *rows, strict=True)
    return sum(max(map(len, column)) + 2 for column in cells) - 2


def test_tables_fit_80_columns():
    found = judged(dict.fromkeys(SHAPES, 12345.678))
    rows = [*found.bundle.rows, replace(found.bundle.rows[2], step=1000)]
    bf16 = replace(found.bf16, rows=(*found.bf16.rows, replace(rows[2], step=1000)))
    found = replace(found, bundle=replace(found.bundle, rows=tuple(rows)), bf16=bf16)
    assert len(table_rows(found)) == len(SHAPES) + 1
    assert width(COLUMNS, table_rows(found)) <= 80
    assert width(FRAME_COLUMNS, frame_rows(found)) <= 80


def test_a_table_has_the_numbers_and_the_verdict():
    rows = {row[:2]: row[2:] for row in table_rows(judged({LAST: 0.5, ("text", 0): 0.00005}))}
    assert rows["text", ""][0] == "5.0e-05"
    assert rows["text", ""][-1] == "passes"
    assert rows["latents", "2"][-1] == ""
    assert rows["latents", "3"][:2] == ("5.0e-01", "5.0e-01")
    assert rows["latents", "3"][-2:] == ("1.0e-02", "FAILS")


def test_frames_are_summed_up_by_least_and_mean():
    found = judged(bf16_rms=None)
    frames = tuple(FrameLikeness(psnr_db=p, ssim=s) for p, s in ((40, 1), (30, 0.5), (50, 0.9)))
    found = replace(found, bundle=replace(found.bundle, frames=frames))
    assert frame_rows(found) == [
        ("PSNR", "30.0 dB", "2", "40.0 dB"),
        ("SSIM", "0.50000", "2", "0.80000"),
    ]


def axes(draw, found):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure()
    FigureCanvasAgg(figure)
    made = figure.subplots()
    draw(made, found)
    return made


def test_a_plot_shows_errors_the_change_of_expert_and_what_passes():
    shown = axes(draw_steps, judged({("latents", 2): 0.5, LAST: 0.25}))
    lines = {line.get_label(): line for line in shown.lines}
    errors = lines["max abs, bundle"].get_ydata()
    assert np.isnan(errors[0])  # an error of 0 has no place on this scale
    assert errors[1:] == pytest.approx([0.5, 0.25], abs=1e-6)
    assert set(lines["high_noise | low_noise"].get_xdata()) == {1.5}
    assert set(lines["most max abs that passes, last step"].get_ydata()) == {1e-3}
    assert "relative L2, diffusers' bf16" in lines
    assert shown.get_yscale() == "log"


def test_a_plot_of_bf16_shows_what_it_is_judged_by():
    shown = axes(draw_steps, judged(precision="bf16", rms=1e-2))
    lines = {line.get_label(): line for line in shown.lines}
    limit = lines["most rms that passes, last step"].get_ydata()[0]
    assert limit == pytest.approx(1.5e-2, rel=1e-3)
    assert lines["rms, bundle"].get_ydata() == pytest.approx([1e-2] * STEPS, rel=1e-3)


def test_a_plot_shows_every_frame():
    shown = axes(draw_frames, judged({("pixels", 0): 0.02}))
    psnr = next(line for line in shown.lines if line.get_label() == "PSNR, bundle")
    assert list(psnr.get_xdata()) == [1, 2, 3, 4, 5]
    assert psnr.get_ydata() == pytest.approx([40] * 5, abs=1e-2)


@pytest.mark.parametrize("without", [(), {("pixels", 0), ("condition", 0)}])
def test_a_plot_is_a_png(tmp_path, without):
    runs = [recording(without=without) for _ in range(2)]
    write_plot(tmp_path / "plot", three_way(runs[0], None, runs[1], subject("fp32")))
    assert (tmp_path / "plot").read_bytes().startswith(b"\x89PNG\r\n")
    assert [path.name for path in tmp_path.iterdir()] == ["plot"]


def test_a_plot_says_why_it_is_not_written(tmp_path, monkeypatch):
    with pytest.raises(RunError, match=r"plot .*/no/plot.png cannot be written: No such file"):
        write_plot(tmp_path / "no" / "plot.png", judged())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RequestError, match=r"a plot needs wanc\[compare\]"):
        write_plot(tmp_path / "plot.png", judged())
