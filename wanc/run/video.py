"""Pixels to an mp4. Knows codecs, and nothing of how pixels came to be."""

from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

CRF = 18
"""x264's constant rate factor: visually lossless."""


def write_video(path: Path, pixels_BCFHW: Array, fps: int) -> None:
    """Encode one video of pixels in [-1, 1] as H.264 that plays everywhere."""
    from imageio.v2 import get_writer

    frames_FHWC = np.round((pixels_BCFHW[0].transpose(1, 2, 3, 0) + 1) * 127.5).astype(np.uint8)
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


def write_latents(path: Path, latents_BCFHW: Array) -> None:
    """Write final latents as safetensors."""
    from safetensors.numpy import save

    path.write_bytes(save({"latents": np.ascontiguousarray(latents_BCFHW)}))
