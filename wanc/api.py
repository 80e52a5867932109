"""wanc in Python: load a bundle and a checkpoint once, generate as often as you like.

    with wanc.load("bundle", "checkpoint", shape="832x480x81", processes=4) as pipeline:
        video = pipeline.generate("a lighthouse above a stormy sea", seed=1)
        video.save("lighthouse.mp4")

Under a launcher that sets RANK and WORLD_SIZE, as torchrun does, every process makes the same
calls, and process 0 has the video.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from wanc.errors import RunError
from wanc.processes.launch import START_SECONDS
from wanc.progress import Progress, Silent
from wanc.run.load import choose
from wanc.run.outputs import Files, Outputs
from wanc.run.request import Guidance, LoadRequest, RunRequest
from wanc.run.start import Processes, Runner, find_launch, start
from wanc.run.video import About, format_of
from wanc.spec.checkpoint import checkpoint_directory

Array = np.ndarray[Any, Any]


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
        """Write a video, and its record beside it; nothing but in process 0.

        The suffix says the format: mp4, mkv (lossless), webp or gif. Raises RequestError, RunError.
        """
        if not self._arrays:
            return
        path, sampling = Path(path), self.record["sampling"]
        about = About(
            prompt=self.record["prompt"],
            seed=sampling["seed"],
            bundle=self.record["bundle"],
            wanc=self.record["wanc"],
        )
        with Outputs(path, form=format_of(path, None)) as outputs:
            outputs.files.write_frames(self.frames, sampling["fps"], about)
            outputs.commit(self.record)

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
        sampler: str | None = None,
        expert: str | None = None,
        preset: str | None = None,
        seed: int | None = None,
        image: str | Path | None = None,
        last_image: str | Path | None = None,
        fit: str | None = None,
        check_ranks: bool = False,
    ) -> Video:
        """Make a video; None leaves a value to the model, and the seed to chance.

        Args:
            prompt: what to show.
            negative: what not to show.
            steps: denoising steps.
            guidance: one scale, or those of the high-noise and the low-noise expert.
            flow_shift: shift of the sampler's sigmas.
            sampler: ``unipc``, ``euler`` or ``dpm++``.
            expert: the one for all steps, whatever the model's boundary.
            preset: where values come from that are not given: ``official`` or ``vllm-omni``.
            seed: of the noise; the record has the one that was used.
            image: a file, with which the video begins.
            last_image: a file, with which it ends.
            fit: of images to the video's size: ``crop``, ``pad`` or ``stretch``.
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
            sampler=sampler,
            expert=expert,
            preset=preset,
            image=None if image is None else Path(image),
            last_image=None if last_image is None else Path(last_image),
            fit=fit,
            seed=None if seed is None else int(seed),
            check_ranks=check_ranks,
        )
        with tempfile.TemporaryDirectory(prefix="wanc-") as folder:
            path = Path(folder) / "video.safetensors"
            record = self._runner.run(request, Files(arrays=path))
            return Video(record=record, _arrays=_read(path))

    def close(self) -> None:
        """End the processes, and let go of the devices."""
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close(error)

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(error)


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
    require_signature: str | Path | Sequence[str | Path] = (),
    progress: Progress | None = None,
) -> Pipeline:
    """Load a bundle's variant and a checkpoint; never compiles.

    Args:
        bundle: the compiled bundle.
        weights: a checkpoint directory, or one that ``wanc weights shard`` made; or ``toy-t2v``
            or ``toy-i2v``, which come with wanc.
        shape, topology, precision: which variant, where the bundle has several.
        vae_ranks: most ranks that decode tiles.
        processes: local processes that share the ranks; None for as many as suit the target.
        interface: network interface that sockets bind; loopback by default.
        start_seconds: for processes to start and meet.
        stall_seconds: for any one step; judged by the plan and by steps seen, if not given.
        require_signature: files of public keys, of which one must have signed the bundle.
        progress: where to report; silent by default.

    Raises:
        RequestError, BundleError, WeightsError, RunError
    """
    if isinstance(require_signature, str | Path):
        require_signature = (require_signature,)
    request = LoadRequest(
        bundle=Path(bundle),
        weights=checkpoint_directory(weights),
        shape=shape,
        topology=topology,
        precision=precision,
        vae_ranks=vae_ranks,
        signers=tuple(map(Path, require_signature)),
    )
    how = Processes(
        count=processes,
        interface=interface,
        start_seconds=start_seconds,
        stall_seconds=stall_seconds,
    )
    launch = find_launch(how)
    _, config = choose(request)
    return Pipeline(start(request, config, launch, how, progress or Silent()))


def _read(path: Path) -> dict[str, Array]:
    """The arrays that a run wrote; none but in process 0."""
    from safetensors.numpy import load_file

    return load_file(path) if path.exists() else {}
