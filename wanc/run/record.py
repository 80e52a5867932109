"""The record of a run: everything but the weights' bytes that repeats it, and what it took."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from wanc import __version__
from wanc.bundle.store import Bundle
from wanc.run.image import ImageRecord
from wanc.run.prompt import Tokenizer
from wanc.run.request import RunRequest, SamplingValues
from wanc.run.session import Session


class Stopwatch:
    """Seconds of each stage, and of each denoising step by expert."""

    def __init__(self, load_seconds: float = 0.0) -> None:
        self.started = time.monotonic() - load_seconds
        self.stages: dict[str, float] = {"load": load_seconds}
        self.steps: list[tuple[str, float]] = []
        self.noise_digest = ""
        self.latents_digest = ""
        self.resumed_after = 0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time one stage."""
        started = time.monotonic()
        yield
        self.stages[name] = time.monotonic() - started

    @contextmanager
    def step(self, expert: str) -> Iterator[None]:
        """Time one denoising step."""
        started = time.monotonic()
        yield
        self.steps.append((expert, time.monotonic() - started))

    def seconds(self) -> dict[str, float]:
        """Of each stage, and in total since loading began."""
        return {**self.stages, "total": time.monotonic() - self.started}

    def restart(self) -> None:
        """Forget the steps so far: a second generation is timed warm."""
        self.steps.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """What one process of a run took."""

    ranks: tuple[int, ...]
    peak_memory_bytes: int
    """Most host memory that it held."""
    weights_copied_bytes: int
    """Copied out of the checkpoint's files."""
    weights_touched_bytes: int
    """Read of those files, with what lies between the pieces."""

    @classmethod
    def of_all(cls, session: Session) -> "tuple[ProcessRecord, ...]":
        """The records of all processes; every process makes them."""
        mine = cls(
            ranks=session.engine.local_ranks,
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            weights_copied_bytes=session.weights_read.copied_bytes,
            weights_touched_bytes=session.weights_read.touched_bytes,
        )
        said = session.world.everyone("resources", msgspec.json.encode(mine).decode())
        return tuple(msgspec.json.decode(text, type=cls) for text in said)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run."""

    wanc: str
    bundle: str
    """The bundle's digest."""
    variant: dict[str, Any]
    prompt: str
    negative_prompt: str
    sampling: dict[str, Any]
    noise: str
    """Digest of the initial noise: the same on every topology."""
    tokenizer: dict[str, str]
    casts: dict[str, int]
    """How many weights the checkpoint has in another dtype, by ``float32 to bfloat16``."""
    seconds: dict[str, float]
    steps: tuple[dict[str, Any], ...]
    images: tuple[ImageRecord, ...]
    """The first and the last image, as far as there are any."""
    compile_count: int
    """Compilations that the engine counted during the run: always 0."""
    processes: tuple[ProcessRecord, ...]
    latents: str
    """Digest of the final latents: the same in every process."""
    resumed_after: int
    """Steps that an earlier run had done; 0 for a run from the start."""

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        session: Session,
        tokenizer: Tokenizer | None,
        request: RunRequest,
        values: SamplingValues,
        clock: Stopwatch,
        images: tuple[ImageRecord, ...],
    ) -> "RunRecord":
        """The record of a run that has just ended; every process makes it."""
        return cls(
            wanc=__version__,
            bundle=bundle.digest,
            variant=session.config.variant.texts(),
            prompt=request.prompt or "",
            negative_prompt=request.negative_prompt(session.config),
            sampling=asdict(values),
            noise=clock.noise_digest,
            tokenizer=tokenizer.digests() if tokenizer else {},
            casts=session.casts,
            seconds={name: round(value, 4) for name, value in clock.seconds().items()},
            steps=tuple({"expert": e, "seconds": round(s, 4)} for e, s in clock.steps),
            images=images,
            compile_count=session.engine.compile_count,
            processes=ProcessRecord.of_all(session),
            latents=clock.latents_digest,
            resumed_after=clock.resumed_after,
        )

    def to_json(self) -> dict[str, Any]:
        """As written beside the video."""
        value: dict[str, Any] = msgspec.to_builtins(self)
        return value
