"""Recordings compared, and the verdict on a bundle. Knows tolerances, and not how runs are made.

A bundle in fp32 must equal diffusers in fp32 but for the order of summation. One in bf16 may be
off by as much as diffusers' own bf16 is, and half as much again: in root mean square, for the
largest of many differences scatters by itself.
"""

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import msgspec

from wanc import __version__
from wanc.compare.metrics import Distance, FrameLikeness, distance, frame_likeness
from wanc.compare.trace import Recording
from wanc.errors import RunError
from wanc.run.observe import CONDITION, LATENTS, PIXELS, TEXT

FORMAT = 1
"""Of the JSON. 1, 2026-11-30: the first."""

TOLERANCES = {TEXT: 1e-4, CONDITION: 1e-4, LATENTS: 1e-3, PIXELS: 1e-3}
"""Most that an fp32 value may be off, by stage; latents are judged after the last step."""

BF16_FACTOR = 1.5
"""Most that bf16's root mean square error may be, by that of diffusers' own bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One stage after one step."""

    stage: str
    step: int
    distance: Distance


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One recording against another."""

    rows: tuple[Row, ...]
    """In the order of a run."""
    frames: tuple[FrameLikeness, ...]
    """Of each video frame, where both runs have pixels."""
    worst_step: int | None
    """The step after which latents are furthest off, by max abs."""
    worst_frame: int | None
    """The frame of the least PSNR, from 1."""

    def at(self, stage: str, step: int) -> Distance:
        """The distance of one stage."""
        return next(r.distance for r in self.rows if (r.stage, r.step) == (stage, step))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What was compared: all that is needed to compare it again, but for the checkpoint."""

    bundle: str
    """The bundle's digest."""
    variant: dict[str, str]
    model: str
    sampling: dict[str, Any]
    experts: tuple[str, ...]
    """The expert of each step."""
    prompt: str
    negative_prompt: str
    seed: int
    images: tuple[str, ...]
    """Digests of the images that the video starts from."""
    versions: dict[str, str]
    """Of wanc and of what computed the reference."""
    covers: tuple[str, ...]
    """Digests of the StableHLO programs that ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One thing that a bundle is judged by."""

    stage: str
    step: int
    measure: str
    """A field of Distance."""
    seen: float
    limit: float
    """The most that passes."""

    @property
    def met(self) -> bool:
        """Whether it passes."""
        return self.seen <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreeWay:
    """A bundle's run and diffusers' in bf16, each against diffusers' in fp32."""

    format: int = FORMAT
    subject: Subject
    criteria: tuple[Criterion, ...]
    bundle: Report
    bf16: Report | None
    """None where diffusers did not run in bf16; a bundle in fp32 is judged without."""

    @property
    def passes(self) -> bool | None:
        """Whether the bundle is as exact as it must be; None where no rule says how exact."""
        return not self.failures if self.criteria else None

    @property
    def failures(self) -> tuple[str, ...]:
        """What is not."""
        return tuple(
            f"{_named(c.stage, c.step)}: {c.measure.replace('_', ' ')} {c.seen:.2e}, "
            f"and at most {c.limit:.2e} passes"
            for c in self.criteria
            if not c.met
        )

    def to_json(self) -> dict[str, Any]:
        """As a file has it: the verdict, and all that it rests on."""
        value: dict[str, Any] = msgspec.to_builtins(self)
        return {**value, "passes": self.passes, "failures": list(self.failures)}

    @classmethod
    def from_json(cls, value: Any) -> "ThreeWay":
        """What to_json gave, its verdict passed anew; raises RunError."""
        found = value.get("format") if isinstance(value, dict) else None
        if found != FORMAT:
            raise RunError(f"comparison: has format {found}; this wanc reads {FORMAT}")
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            raise RunError(f"comparison: {error}") from error


def compare(ours: Recording, theirs: Recording) -> Report:
    """Measure each stage of one run against another's; raises RunError, RequestError."""
    if ours.moments != theirs.moments or not ours.moments:
        raise RunError(
            f"the runs cannot be compared: one shows {_listed(ours)}; the other {_listed(theirs)}"
        )
    rows = tuple(
        Row(
            stage=at[0],
            step=at[1],
            distance=distance(ours.values[at], theirs.values[at], _named(*at)),
        )
        for at in ours.moments
    )
    frames: tuple[FrameLikeness, ...] = ()
    if (PIXELS, 0) in ours.values:
        frames = frame_likeness(ours.values[PIXELS, 0], theirs.values[PIXELS, 0])
    latents = [row for row in rows if row.stage == LATENTS]
    return Report(
        rows=rows,
        frames=frames,
        worst_step=max(latents, key=lambda row: row.distance.max_abs).step if latents else None,
        worst_frame=_least([frame.psnr_db for frame in frames])[1] if frames else None,
    )


def three_way(
    fp32: Recording, bf16: Recording | None, bundle: Recording, subject: Subject
) -> ThreeWay:
    """Judge a bundle's run by diffusers' runs of the same request; raises RunError, RequestError.

    A bundle in bf16 needs both of them.
    """
    ours, theirs = compare(bundle, fp32), compare(bf16, fp32) if bf16 else None
    return ThreeWay(
        subject=subject,
        criteria=_criteria(ours, theirs, subject.variant["precision"]),
        bundle=ours,
        bf16=theirs,
    )


def _criteria(ours: Report, theirs: Report | None, precision: str) -> tuple[Criterion, ...]:
    last = max(row.step for row in ours.rows)
    judged = [row for row in ours.rows if row.stage != LATENTS or row.step == last]
    made = []
    for row in judged:
        measure, limit = "max_abs", TOLERANCES[row.stage]
        if precision == "bf16" and row.stage != CONDITION:  # the VAE computes in fp32 in both
            assert theirs is not None, "bf16 is judged by diffusers' own"
            measure, limit = "rms", BF16_FACTOR * theirs.at(row.stage, row.step).rms
        seen = getattr(row.distance, measure)
        made.append(
            Criterion(stage=row.stage, step=row.step, measure=measure, seen=seen, limit=limit)
        )
    return tuple(made)


COLUMNS = ("", "step>", "max abs>", "rms>", "rel. L2>", "cosine>", "bf16 rms>", "")
"""Heads of table_rows; those that end in ``>`` are of numbers."""


def table_rows(found: ThreeWay) -> list[tuple[str, ...]]:
    """Every stage of the bundle's run, with diffusers' own bf16 beside it; 80 columns hold it."""
    verdicts = {(c.stage, c.step): "passes" if c.met else "FAILS" for c in found.criteria}
    rows: list[tuple[str, ...]] = []
    for row in found.bundle.rows:
        d = row.distance
        own = f"{found.bf16.at(row.stage, row.step).rms:.1e}" if found.bf16 else ""
        rows.append(
            (
                *(row.stage, str(row.step or "")),
                *(f"{d.max_abs:.1e}", f"{d.rms:.1e}"),
                *("" if d.relative_l2 is None else f"{d.relative_l2:.1e}", f"{d.cosine:.6f}"),
                *(own, verdicts.get((row.stage, row.step), "")),
            )
        )
    return rows


FRAME_COLUMNS = ("", "least>", "in frame>", "mean>")
"""Heads of frame_rows."""


def frame_rows(found: ThreeWay) -> list[tuple[str, ...]]:
    """PSNR and SSIM over the video's frames, of the bundle and of diffusers' own bf16."""
    rows: list[tuple[str, ...]] = []
    for name, report in (("", found.bundle), (" of diffusers' bf16", found.bf16)):
        if report is None or not report.frames:
            continue
        psnr, ssim = ([getattr(f, m) for f in report.frames] for m in ("psnr_db", "ssim"))
        for what, values, form in (("PSNR", psnr, "{:.1f} dB"), ("SSIM", ssim, "{:.5f}")):
            least, frame = _least(values)
            mean = sum(values) / len(values)
            rows.append((what + name, form.format(least), str(frame), form.format(mean)))
    return rows


def versions() -> dict[str, str]:
    """Of wanc and of what computes the reference."""
    return {"wanc": __version__, **{name: version(name) for name in ("diffusers", "torch")}}


def _least(values: list[float]) -> tuple[float, int]:
    """The least of frames' values, and the frame's number from 1."""
    return min((value, frame) for frame, value in enumerate(values, start=1))


def _listed(run: Recording) -> str:
    return ", ".join(_named(*at) for at in run.moments) or "nothing"


def _named(stage: str, step: int) -> str:
    return f"{stage} after step {step}" if step else stage
