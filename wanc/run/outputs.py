"""The files a run writes: all reserved before any work, all given their names at the end."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from wanc.errors import RunError
from wanc.files import Reserved
from wanc.run.video import write_latents, write_video

SUFFIX = ".mp4"


class Outputs:
    """A video, its record beside it, and latents where they are wanted."""

    def __init__(self, video: Path, latents: Path | None) -> None:
        """Raises RunError where a file cannot be written."""
        if video.suffix != SUFFIX:
            raise RunError(f"output {video}: ends in {video.suffix!r}; wanc writes {SUFFIX}")
        with ExitStack() as stack:
            self.video = _reserve(video, stack)
            self.record = _reserve(video.with_suffix(".json"), stack)
            self.latents = _reserve(latents, stack) if latents else None
            self._stack = stack.pop_all()

    def __enter__(self) -> "Outputs":
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def commit_video(self, pixels_BCFHW: "np.ndarray[Any, Any]", fps: int) -> None:
        """Encode the video and give it its name."""
        self.video.commit(lambda path: write_video(path, pixels_BCFHW, fps))

    def commit_latents(self, latents_BCFHW: "np.ndarray[Any, Any]") -> None:
        """Write the latents, where they are wanted."""
        if self.latents:
            self.latents.commit(lambda path: write_latents(path, latents_BCFHW))

    def commit_record(self, record: dict[str, Any]) -> None:
        """Write the record as JSON."""
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        self.record.commit(lambda path: path.write_text(text, encoding="utf-8"))


def _reserve(path: Path, stack: ExitStack) -> Reserved:
    try:
        return stack.enter_context(Reserved(path))
    except OSError as error:
        raise RunError(f"output {path} cannot be written: {error.strerror or error}") from error
