"""A comparison as a picture: error over steps, and how like the frames are.

Figures are drawn on a canvas of their own: nothing of matplotlib's global state is touched.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from wanc.compare.metrics import check_installed
from wanc.compare.report import Report, ThreeWay
from wanc.errors import RunError
from wanc.files import Reserved
from wanc.run.observe import LATENTS

_SIZE_INCHES = (9.0, 7.0)
_DPI = 120
_NAMES = {"max_abs": "max abs", "relative_l2": "relative L2", "rms": "rms"}
_COLORS = {"max_abs": "C0", "relative_l2": "C1", "rms": "C2", "psnr_db": "C0", "ssim": "C1"}
_GREY = "0.45"


_VERDICTS = {True: "passes", False: "FAILS", None: "not judged"}


def write_plot(path: Path, found: ThreeWay) -> None:
    """Write a PNG of a comparison; raises RequestError without matplotlib, RunError."""
    check_installed("a plot", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    figure.suptitle(_title(found), fontsize="medium")
    over_steps, over_frames = figure.subplots(2, 1)
    draw_steps(over_steps, found)
    draw_frames(over_frames, found)
    try:
        with Reserved(path) as file:
            file.fill(lambda temporary: canvas.print_figure(temporary, format="png"))
            file.commit()
    except OSError as error:
        raise RunError(f"plot {path} cannot be written: {error.strerror or error}") from error


def _title(found: ThreeWay) -> str:
    subject, verdict = found.subject, _VERDICTS[found.passes]
    variant = " ".join(
        subject.variant[name] for name in ("task", "shape", "topology", "precision", "target")
    )
    other = subject.versions.get("beside")
    beside = f"bundle {other[7:19]}" if other else "diffusers in fp32"
    return f"{subject.model}: {variant}, against {beside}: {verdict}"


def _reports(found: ThreeWay) -> Iterator[tuple[str, Report, dict[str, Any]]]:
    """Of the bundle and of diffusers' own bf16: a name, a report, a style of lines."""
    yield "bundle", found.bundle, {"linestyle": "-", "marker": "o", "markersize": 3}
    if found.bf16:
        yield "diffusers' bf16", found.bf16, {"linestyle": ":", "alpha": 0.7}


def draw_steps(axes: Any, found: ThreeWay) -> None:
    """Latents' errors on a logarithmic scale, the change of expert, and what passes at the end."""
    judged = [criterion for criterion in found.criteria if criterion.stage == LATENTS]
    measures = dict.fromkeys(["max_abs", "relative_l2", *(c.measure for c in judged)])
    for name, report, style in _reports(found):
        rows = [row for row in report.rows if row.stage == LATENTS]
        steps = [row.step for row in rows]
        for measure in measures:
            errors = [getattr(row.distance, measure) or float("nan") for row in rows]
            label = f"{_NAMES[measure]}, {name}"
            axes.plot(steps, errors, color=_COLORS[measure], label=label, **style)
    for limit in judged:
        label = f"most {_NAMES[limit.measure]} that passes, last step"
        axes.axhline(limit.limit, color=_COLORS[limit.measure], linestyle="--", label=label)
    for step, old, new in _changes(found.subject.experts):
        axes.axvline(step + 0.5, color=_GREY, linewidth=1, label=f"{old} | {new}")
    axes.set_yscale("log")
    axes.set(xlabel="step", ylabel="error of latents", title="Latents after each step")
    _finish(axes, axes.get_legend_handles_labels(), beside=1.02)


def _changes(experts: tuple[str, ...]) -> Iterator[tuple[int, str, str]]:
    """Where the expert changes: the last step of one, its name and the next one's."""
    for step, (old, new) in enumerate(pairwise(experts), start=1):
        if old != new:
            yield step, old, new


def draw_frames(axes: Any, found: ThreeWay) -> None:
    """PSNR on the left scale and SSIM on the right one."""
    right = axes.twinx()
    sides = (("psnr_db", "PSNR", axes), ("ssim", "SSIM", right))
    for name, report, style in _reports(found):
        for field, measure, side in sides:
            values = [getattr(frame, field) for frame in report.frames]
            numbers = range(1, len(values) + 1)
            label = f"{measure}, {name}"
            side.plot(numbers, values, color=_COLORS[field], label=label, **style)
    axes.set(xlabel="frame", ylabel="PSNR (dB)", title="Likeness of frames")
    right.set_ylabel("SSIM")
    right.ticklabel_format(axis="y", useOffset=False)
    handles = [side.get_legend_handles_labels() for _, _, side in sides]
    _finish(axes, tuple(left + right for left, right in zip(*handles, strict=True)), beside=1.15)


def _finish(axes: Any, entries: Any, *, beside: float) -> None:
    """Whole numbers below, a grid, and the legend to the right, in widths of the axes."""
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    axes.set_xlim(left=0.5)
    axes.grid(visible=True, color="0.9")
    axes.legend(*entries, fontsize="x-small", loc="upper left", bbox_to_anchor=(beside, 1.0))
