"""One generation: what is asked, what follows from it, and where it reports.

Knows files that a request names, and values. Knows no stage.
"""

from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from wanc import __version__
from wanc.bundle.store import Bundle
from wanc.digest import of_bytes
from wanc.processes.world import check_agreement
from wanc.progress import Progress
from wanc.run.image import FittedImage, fit_images, read_image
from wanc.run.observe import Observe, ignore
from wanc.run.outputs import Files
from wanc.run.prompt import Tokenizer
from wanc.run.record import Stopwatch
from wanc.run.request import RunRequest, SamplingValues, draw_seed, sampling_values
from wanc.run.saved import Saved, read_bytes, read_saved, resumed
from wanc.run.session import Session
from wanc.run.video import About


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A variant and a checkpoint on their ranks, ready to generate again and again."""

    bundle: Bundle
    session: Session
    tokenizer: Tokenizer | None
    """None where nothing but decoding is wanted."""
    vae_ranks: int | None
    """Most ranks that work on tiles; None for as many as the plan deals tiles to."""
    seconds: float
    """What loading took."""

    def close(self) -> None:
        """Let go of the ranks."""
        self.session.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One generation: what is asked, what follows from it, and where it reports."""

    request: RunRequest
    values: SamplingValues
    files: Files
    clock: Stopwatch
    progress: Progress
    images: tuple[FittedImage, ...] = ()
    """The first and, where there is one, the last."""
    saved: Saved | None = None
    """Steps that are behind it already."""
    observe: Observe = ignore


def make_job(
    loaded: Loaded,
    request: RunRequest,
    files: Files,
    progress: Progress,
    observe: Observe = ignore,
) -> Job:
    """The request with all that it leaves open, the same in every process."""
    world, config = loaded.session.world, loaded.session.config
    saved = None
    if path := request.resume or request.latents:
        saved = read_saved(world.spread("resume", lambda: read_bytes(path)), path)
        request = resumed(request, saved)
    elif request.seed is None:
        request = replace(request, seed=int(world.tell("seed", lambda: str(draw_seed()))))
    request = replace(request, negative=request.negative_prompt(config))
    values = sampling_values(request, config)
    asked = f"{request.prompt!r}, {request.negative!r}, {values}"
    check_agreement(world, "prompts and sampling values", asked)
    return Job(
        request=request,
        values=values,
        files=files,
        clock=Stopwatch(loaded.seconds),
        progress=progress,
        images=() if request.latents else images_of(request, loaded.session),
        saved=saved,
        observe=observe,
    )


def images_of(request: RunRequest, session: Session) -> tuple[FittedImage, ...]:
    """The request's images, of the files that process 0 reads."""
    read = []
    for path in request.images:
        give = partial(read_image, path)
        read.append(session.world.spread(f"image {path}", give))
    return tuple(fit_images(request.images, read, session.config.variant.shape, request.fit))


def as_saved(session: Session, job: Job, latents: Tensor) -> Saved:
    """The run after its last step, for a file."""
    return Saved(
        step=job.values.steps,
        latents=latents,
        scheduler={},
        sampler=job.values.sampler,
        request=job.request,
        noise=job.clock.noise_digest,
        variant=session.config.variant.texts(),
        images=images_digest(job.images),
    )


def images_digest(images: tuple[FittedImage, ...]) -> str:
    """Of the fitted images' pixels; empty where there are none."""
    return of_bytes(b"".join(image.pixels_CHW.tobytes() for image in images)) if images else ""


def about(loaded: Loaded, job: Job) -> About:
    """What a video's file says of itself."""
    return About(
        prompt=job.request.prompt or "",
        seed=job.values.seed,
        bundle=loaded.bundle.digest,
        wanc=__version__,
    )
