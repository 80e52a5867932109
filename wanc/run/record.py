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
from wanc.run.prompt import Tokenizer
from wanc.run.request import RunRequest
from wanc.run.sampler import SamplingValues
from wanc.run.session import Session


class Stopwatch:
    """Seconds of each stage, and of each denoising step by expert."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.stages: dict[str, float] = {}
        self.steps: list[tuple[str, float]] = []
        self.noise_digest = ""

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

    def restart(self) -> None:
        """Forget the steps so far: a second generation is timed warm."""
        self.steps.clear()


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
    compile_count: int
    """Compilations that the engine counted during the run: always 0."""
    peak_memory_bytes: int
    output: str

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        request: RunRequest,
        values: SamplingValues,
        tokenizer: Tokenizer,
        session: Session,
        clock: Stopwatch,
    ) -> "RunRecord":
        """The record of a run that has just ended."""
        seconds = {**clock.stages, "total": time.monotonic() - clock.started}
        return cls(
            wanc=__version__,
            bundle=bundle.digest,
            variant=session.config.variant.texts(),
            prompt=request.prompt,
            negative_prompt=request.negative_prompt(session.config),
            sampling=asdict(values),
            noise=clock.noise_digest,
            tokenizer=tokenizer.digests(),
            casts=session.casts,
            seconds={name: round(value, 4) for name, value in seconds.items()},
            steps=tuple({"expert": e, "seconds": round(s, 4)} for e, s in clock.steps),
            compile_count=session.engine.compile_count,
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            output=request.output.name,
        )

    def to_json(self) -> dict[str, Any]:
        """As written beside the video."""
        value: dict[str, Any] = msgspec.to_builtins(self)
        return value
