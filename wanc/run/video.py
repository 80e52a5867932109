"""Pixels to an mp4. Knows files and codecs, and nothing of how pixels came to be."""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from wanc.errors import RunError

Array = np.ndarray[Any, Any]

CRF = 18
"""x264's constant rate factor: visually lossless."""


class Output:
    """A file that appears whole under its name, or not at all. Checked before long work."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.suffix != ".mp4":
            raise RunError(f"output {path}: {path.suffix or 'no ending'}; wanc writes .mp4")
        if path.is_dir():
            raise RunError(f"output {path} is a directory; name a file")
        try:
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".wanc-", suffix=".mp4")
        except OSError as error:
            raise RunError(f"output {path} cannot be written: {error.strerror}") from error
        os.close(handle)
        self.temporary = Path(name)

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, *_: object) -> None:
        self.temporary.unlink(missing_ok=True)

    def write(self, pixels_BCFHW: Array, fps: int) -> None:
        """Encode one video of pixels in [-1, 1] as H.264, playable everywhere."""
        frames = np.round((pixels_BCFHW[0].transpose(1, 2, 3, 0) + 1) * 127.5).astype(np.uint8)
        _encode(self.temporary, frames, fps)
        self.temporary.chmod(0o644)
        self.temporary.replace(self.path)


def _encode(path: Path, frames_FHWC: Array, fps: int) -> None:
    from imageio.v2 import get_writer

    writer: Any
    with get_writer(
        path,
        format="FFMPEG",
        fps=fps,
        codec="libx264",
        pixelformat="yuv420p",
        macro_block_size=1,
        ffmpeg_log_level="error",
        output_params=["-crf", str(CRF), "-movflags", "+faststart"],
    ) as writer:
        for frame in frames_FHWC:
            writer.append_data(frame)


def save_latents(path: Path, latents_BCFHW: Array) -> None:
    """Write final latents as safetensors, whole or not at all."""
    from safetensors.numpy import save

    data = save({"latents": latents_BCFHW})
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".wanc-", suffix=".safetensors")
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(name).replace(path)
    except OSError as error:
        raise RunError(f"latents {path} cannot be written: {error.strerror}") from error
