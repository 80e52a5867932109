"""The story of a comparison: a bundle's run, and another's of the same request from the same noise.

The other is diffusers' own pipeline, in fp32 and for a bundle in bf16 in bf16 too, or another
bundle. Everything runs in this process.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Literal

from wanc.arrays import Array
from wanc.bundle.config import VariantConfig
from wanc.compare.reference import ReferenceRequest, load_pipeline, run_pipeline
from wanc.compare.report import Subject, ThreeWay, compare, three_way, versions
from wanc.compare.softmax_bound import StepBound, observe_softmax_bounds
from wanc.compare.trace import Recording
from wanc.processes.world import Alone
from wanc.progress import Progress
from wanc.run.job import Job, make_job
from wanc.run.load import choose, fit_checkpoint
from wanc.run.observe import LATENTS
from wanc.run.outputs import Files
from wanc.run.pipeline import load_variant, sample
from wanc.run.request import LoadRequest, RunRequest, check_request
from wanc.run.sampler import draw_noise, make_scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a comparison found."""

    found: ThreeWay
    bounds: tuple[StepBound, ...] = ()
    """Of attention with a static bound, by step, where that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """A bundle's run."""

    recording: Recording
    job: Job
    subject: Subject
    reference: ReferenceRequest
    """The same, as diffusers is asked for it."""


def compare_with_diffusers(
    load: LoadRequest, request: RunRequest, progress: Progress, *, softmax_bounds: bool = False
) -> Compared:
    """A bundle beside diffusers; raises RequestError, WeightsError, RunError."""
    ours = _show(load, request, progress)
    exact, bounds = _run_diffusers(load, ours, "fp32", progress, softmax_bounds=softmax_bounds)
    narrow = None
    if ours.subject.variant["precision"] == "bf16":
        narrow, _ = _run_diffusers(load, ours, "bf16", progress)
    return Compared(found=three_way(exact, narrow, ours.recording, ours.subject), bounds=bounds)


def compare_with_bundle(
    load: LoadRequest, other: LoadRequest, request: RunRequest, progress: Progress
) -> Compared:
    """A bundle beside another, as which it must compute where both are in fp32.

    In other precisions differences are shown, and not judged. Raises RequestError, RunError.
    """
    config = _chosen(load, request)
    other = replace(other, shape=str(config.variant.shape))
    _chosen(other, request)
    ours = _show(load, request, progress)
    theirs = _show(other, replace(request, seed=ours.job.values.seed), progress)
    other_bundle = {"beside": theirs.subject.bundle}
    subject = replace(ours.subject, versions=ours.subject.versions | other_bundle)
    if {ours.subject.variant["precision"], theirs.subject.variant["precision"]} == {"fp32"}:
        found = three_way(theirs.recording, None, ours.recording, subject)
    else:
        report = compare(ours.recording, theirs.recording)
        found = ThreeWay(subject=subject, criteria=(), bundle=report, bf16=None)
    return Compared(found=found)


def _chosen(load: LoadRequest, request: RunRequest) -> VariantConfig:
    """The variant that is to run; raises what can be known before it is loaded."""
    _, selected = choose(load)
    config = fit_checkpoint(selected, load.weights)
    check_request(request, config)
    return config


def _show(load: LoadRequest, request: RunRequest, progress: Progress) -> _Shown:
    """Run a bundle, and record what it shows."""
    _chosen(load, request)
    recording = Recording()
    with ExitStack() as opened:
        loaded = load_variant(load, Alone(), progress)
        opened.callback(loaded.close)
        job = make_job(loaded, request, Files(), progress, recording.observe)
        progress.note(f"seed {job.values.seed}")
        sample(loaded, job)
        config = loaded.session.config
    values, model = job.values, config.model
    timesteps = make_scheduler(values).timesteps
    records = [record.stablehlo for record in config.programs]
    subject = Subject(
        bundle=loaded.bundle.digest,
        variant=config.variant.texts(),
        model=model.name,
        sampling={name: getattr(values, name) for name in type(values).__dataclass_fields__},
        experts=tuple(values.expert_at(float(t), model) for t in timesteps),
        prompt=job.request.prompt or "",
        negative_prompt=job.request.negative or "",
        seed=values.seed,
        images=tuple(image.record.digest for image in job.images),
        versions=versions(),
        covers=tuple(sorted({blob.digest for blob in records if blob})),
    )
    pictures = [image.pixels_CHW for image in job.images]
    reference = ReferenceRequest(
        task=model.task,
        values=values,
        prompt=subject.prompt,
        negative_prompt=subject.negative_prompt,
        shape=config.variant.shape,
        image=pictures[0] if pictures else None,
        last_image=pictures[1] if len(pictures) > 1 else None,
        noise=draw_noise(values.seed, config.latents_shape),
        tiles=config.tiles if len(config.tiles.tiles) > 1 else None,
    )
    return _Shown(recording=recording, job=job, subject=subject, reference=reference)


def _run_diffusers(
    load: LoadRequest,
    ours: _Shown,
    dtype: Literal["fp32", "bf16"],
    progress: Progress,
    *,
    softmax_bounds: bool = False,
) -> tuple[Recording, tuple[StepBound, ...]]:
    """Run diffusers on the same request, and record what it shows."""
    recording = Recording()
    pipe = load_pipeline(load.weights, ours.reference, dtype=dtype)
    with ExitStack() as opened:
        bounds = opened.enter_context(observe_softmax_bounds(pipe)) if softmax_bounds else None
        steps = ours.reference.values.steps
        task = opened.enter_context(progress.task(f"diffusers, {dtype}", steps))

        def observe(stage: str, step: int, values: Array) -> None:
            recording.observe(stage, step, values)
            if stage == LATENTS:
                task.advance(f"step {step}")

        run_pipeline(pipe, ours.reference, observe)
    return recording, bounds.steps if bounds else ()
