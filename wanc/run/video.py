"""Pixels to an mp4. Knows codecs, and nothing of how pixels came to be."""

from pathlib import Path
from typing import Any

import numpy as np

from wanc.errors import RunError

Array = np.ndarray[Any, Any]

CRF = 18
"""x264's constant rate factor: visually lossless."""


def find_encoder() -> None:
    """Raise RunError where ffmpeg is not to be found: better now than after hours of work."""
    from imageio_ffmpeg import get_ffmpeg_exe

    try:
        get_ffmpeg_exe()
    except RuntimeError as error:
        raise RunError(f"no video can be written: {error}") from error


def write_video(path: Path, pixels_BCFHW: Array, fps: int) -> None:
    """Encode one video of pixels in [-1, 1] as H.264 that plays everywhere."""
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
        for frame_HWC in pixels_BCFHW[0].transpose(1, 2, 3, 0):
            writer.append_data(np.round((frame_HWC + 1) * 127.5).astype(np.uint8))


def write_latents(path: Path, latents_BCFHW: Array) -> None:
    """Write final latents as safetensors."""
    from safetensors.numpy import save

    path.write_bytes(save({"latents": np.ascontiguousarray(latents_BCFHW)}))
