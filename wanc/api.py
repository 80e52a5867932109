"""wanc in Python: load a bundle and a checkpoint once, generate as often as you like.

    with wanc.load("bundle", "checkpoint", shape="832x480x81", processes=4) as pipeline:
        video = pipeline.generate("a lighthouse above a stormy sea", seed=1)
        video.save("lighthouse.mp4")

Under a launcher that sets RANK and WORLD_SIZE, as torchrun does, every process makes the same
calls, and process 0 has the video.
"""

import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from wanc.bundle.config import VariantConfig
from wanc.bundle.store import open_bundle
from wanc.errors import RequestError, RunError
from wanc.processes.launch import (
    LOOPBACK,
    START_SECONDS,
    Launch,
    hosted_ranks,
    interface_address,
    named,
)
from wanc.processes.marker import Patience
from wanc.processes.supervisor import Spread, Supervisor, worker_command
from wanc.progress import Progress, Silent
from wanc.run.load import select_variant
from wanc.run.outputs import Files, Outputs, saved_beside
from wanc.run.request import Guidance, LoadRequest, RunRequest, as_plain, sampling_values
from wanc.run.video import write_video
from wanc.runtime.runtime import runtime_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """How a run is spread over processes, where no launcher has done that."""

    count: int | None = None
    """Local processes; None for as many as suit the target, which on a CPU is this one alone."""
    interface: str | None = None
    """Name or address of the network interface that sockets bind; None for loopback, or for the
    one that leads to a launcher's MASTER_ADDR."""
    start_seconds: float = START_SECONDS
    """For processes to start and meet."""
    stall_seconds: float | None = None
    """For any one step; None to judge by the plan's times and by the steps seen."""

    @property
    def address(self) -> str | None:
        """Of the interface, where one is named; raises RequestError."""
        return interface_address(self.interface) if self.interface else None

    @property
    def patience(self) -> Patience:
        """How long a start and a step may take."""
        return Patience(start_seconds=self.start_seconds, stall_seconds=self.stall_seconds)


class Runner(Protocol):
    """A loaded variant, in this process or in others."""

    @property
    def process(self) -> int:
        """This process; only process 0 writes files."""

    def run(self, request: RunRequest, files: Files) -> dict[str, Any]:
        """Generate, and return the run's record."""

    def close(self) -> None:
        """Let go of the ranks."""


def start(request: LoadRequest, processes: Processes, progress: Progress) -> Runner:
    """Load a variant in this process, in local processes of its own, or as a launcher has it."""
    launch = Launch.of(os.environ, address=processes.address)
    if launch is not None:
        if processes.count not in (None, launch.processes):
            raise RequestError(
                f"{processes.count} processes are asked for, and the launcher's WORLD_SIZE is "
                f"{launch.processes}: leave --processes out"
            )
        from wanc.run.runner import Joined

        return Joined(launch, request, processes.patience, progress)
    config = select_variant(
        open_bundle(request.bundle),
        request.weights,
        shape=request.shape,
        topology=request.topology,
        precision=request.precision,
    )
    spread = plan_spread(config, processes)
    if spread is None:
        from wanc.run.runner import Here

        return Here(request, progress)
    return Supervised(request, config, spread, progress)


def plan_spread(config: VariantConfig, processes: Processes) -> Spread | None:
    """Which ranks each local process hosts; None where this one hosts all. Raises RequestError."""
    count = processes.count or runtime_of(config.variant.target).processes(config)
    if processes.count is None and count == 1:
        return None
    ranks = config.variant.topology.ranks
    return Spread(
        ranks=tuple(named(hosted_ranks(ranks, process, count)) for process in range(count)),
        start_seconds=processes.start_seconds,
        stall_seconds=processes.stall_seconds,
        address=processes.address or LOOPBACK,
    )


def run_to_file(
    load: LoadRequest,
    request: RunRequest,
    processes: Processes,
    progress: Progress,
    *,
    output: Path,
    latents: Path | None,
) -> dict[str, Any] | None:
    """One generation to an mp4 and its record, which is returned; None but in process 0.

    Files are reserved before anything is loaded, and named once all are whole.
    """
    launch = Launch.of(os.environ, address=processes.address)
    writes = launch is None or launch.process == 0
    with ExitStack() as opened:
        saves = request.save_every is not None or request.resume == saved_beside(output)
        outputs = opened.enter_context(Outputs(output, latents, saves=saves)) if writes else None
        runner = opened.enter_context(closing(start(load, processes, progress)))
        record = runner.run(request, outputs.files if outputs else Files())
        if outputs is None:
            return None
        record = {**record, "output": output.name}
        outputs.commit(record)
    return record


class Supervised:
    """A variant in processes of its own."""

    process = 0

    def __init__(
        self, request: LoadRequest, config: VariantConfig, spread: Spread, progress: Progress
    ) -> None:
        self._config = config
        self._supervisor = Supervisor(spread, worker_command(), progress)
        patience = {"start_seconds": spread.start_seconds, "stall_seconds": spread.stall_seconds}
        self._supervisor.start("load", {"load": as_plain(request), "patience": patience})

    def run(self, request: RunRequest, files: Files) -> dict[str, Any]:
        """Generate in every process; raises what ended them. A bad request ends none."""
        if request.resume is None:
            sampling_values(replace(request, seed=request.seed or 0), self._config)
        asked = {"run": as_plain(request), "files": as_plain(files)}
        record: dict[str, Any] = self._supervisor.ask("run", asked)
        return record

    def close(self) -> None:
        """End the processes."""
        self._supervisor.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Video:
    """What one generation made."""

    record: Mapping[str, Any]
    """How it was made, as it would stand beside an mp4."""
    _arrays: Mapping[str, Array]

    @property
    def frames(self) -> Array:
        """[frames, rows, columns, 3] in uint8. Raises RunError but in process 0."""
        return self._array("frames")

    @property
    def latents(self) -> Array:
        """[1, C, F, H, W] fp32, as the sampler left them. Raises RunError but in process 0."""
        return self._array("latents")

    def save(self, path: str | Path) -> None:
        """Write an mp4, and its record beside it; raises RunError."""
        with Outputs(Path(path), None) as outputs:
            assert outputs.files.video is not None
            write_video(outputs.files.video, self.frames, self.record["sampling"]["fps"])
            outputs.commit(dict(self.record))

    def _array(self, name: str) -> Array:
        if name not in self._arrays:
            raise RunError(f"the video's {name} are in process 0")
        return self._arrays[name]


class Pipeline:
    """A loaded variant. Nothing of one generation reaches the next; not for several threads."""

    def __init__(self, runner: Runner) -> None:
        self._runner: Runner | None = runner

    def generate(
        self,
        prompt: str,
        *,
        negative: str | None = None,
        steps: int | None = None,
        guidance: float | tuple[float, float] | None = None,
        flow_shift: float | None = None,
        seed: int | None = None,
        check_ranks: bool = False,
    ) -> Video:
        """Make a video; None leaves a value to the model, and the seed to chance.

        Args:
            prompt: what to show.
            negative: what not to show.
            steps: denoising steps.
            guidance: one scale, or those of the high-noise and the low-noise expert.
            flow_shift: shift of the sampler's sigmas.
            seed: of the noise; the record has the one that was used.
            check_ranks: compare what every rank computed after each step.

        Raises:
            RequestError: a value is out of range.
            RunError: a rank failed. The pipeline is closed then where it has processes of its own.
        """
        if self._runner is None:
            raise RunError("the pipeline is closed")
        if isinstance(guidance, int | float):
            guidance = (guidance, guidance)
        request = RunRequest(
            prompt=prompt,
            negative=negative,
            steps=steps,
            guidance=guidance and Guidance(high=guidance[0], low=guidance[1]),
            flow_shift=flow_shift,
            seed=seed,
            check_ranks=check_ranks,
        )
        with tempfile.TemporaryDirectory(prefix="wanc-") as folder:
            path = Path(folder) / "video.safetensors"
            record = self._runner.run(request, Files(arrays=path))
            return Video(record=record, _arrays=_read(path))

    def close(self) -> None:
        """End the processes, and let go of the devices."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def load(
    bundle: str | Path,
    weights: str | Path,
    *,
    shape: str | None = None,
    topology: str | None = None,
    precision: str | None = None,
    vae_ranks: int | None = None,
    processes: int | None = None,
    interface: str | None = None,
    start_seconds: float = START_SECONDS,
    stall_seconds: float | None = None,
    progress: Progress | None = None,
) -> Pipeline:
    """Load a bundle's variant and a checkpoint; never compiles.

    Args:
        bundle: the compiled bundle.
        weights: a checkpoint directory, or one that ``wanc weights shard`` made.
        shape, topology, precision: which variant, where the bundle has several.
        vae_ranks: most ranks that decode tiles.
        processes: local processes that share the ranks; None for as many as suit the target.
        interface: network interface that sockets bind; loopback by default.
        start_seconds: for processes to start and meet.
        stall_seconds: for any one step; judged by the plan and by steps seen, if not given.
        progress: where to report; silent by default.

    Raises:
        RequestError, BundleError, WeightsError, RunError
    """
    request = LoadRequest(
        bundle=Path(bundle),
        weights=Path(weights),
        shape=shape,
        topology=topology,
        precision=precision,
        vae_ranks=vae_ranks,
    )
    how = Processes(
        count=processes,
        interface=interface,
        start_seconds=start_seconds,
        stall_seconds=stall_seconds,
    )
    return Pipeline(start(request, how, progress or Silent()))


def _read(path: Path) -> dict[str, Array]:
    """The arrays that a run wrote; none but in process 0."""
    from safetensors.numpy import load_file

    return load_file(path) if path.exists() else {}
