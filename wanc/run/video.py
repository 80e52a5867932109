"""Pixels to frames, and frames to an mp4. Knows codecs, and nothing of how pixels came to be."""

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


def to_frames(pixels_BCFHW: Array) -> Array:
    """One video's pixels in [-1, 1] as frames [frames, rows, columns, 3] in uint8."""
    frames: Array = np.round((pixels_BCFHW[0].transpose(1, 2, 3, 0) + 1) * 127.5).astype(np.uint8)
    return frames


def write_video(path: Path, frames_FHWC: Array, fps: int) -> None:
    """Encode frames in uint8 as H.264 that plays everywhere."""
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
        for frame_HWC in frames_FHWC:
            writer.append_data(frame_HWC)


def write_arrays(path: Path, arrays: dict[str, Array]) -> None:
    """Write arrays as safetensors."""
    from safetensors.numpy import save

    path.write_bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))
