"""The files a run writes: all reserved before any work, all given their names at the end."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from wanc.errors import RunError
from wanc.files import Reserved
from wanc.run.video import find_encoder, write_latents, write_video

Array = np.ndarray[Any, Any]

SUFFIX = ".mp4"


class Outputs:
    """A video, its record beside it, and latents where they are wanted."""

    def __init__(self, video: Path, latents: Path | None) -> None:
        """Raises RunError where a file cannot be written."""
        if video.suffix != SUFFIX:
            raise RunError(f"output {video}: ends in {video.suffix!r}; wanc writes {SUFFIX}")
        record = video.with_suffix(".json")
        if latents in (video, record):
            raise RunError(f"latents {latents}: that file is the video's or its record's")
        find_encoder()
        with ExitStack() as stack:
            self.video = _reserve(video, stack)
            self.record = _reserve(record, stack)
            self.latents = _reserve(latents, stack) if latents else None
            self._stack = stack.pop_all()

    def __enter__(self) -> "Outputs":
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def fill(self, pixels_BCFHW: Array, fps: int, latents_BCFHW: Array) -> None:
        """Encode the video, and write the latents where they are wanted; raises RunError."""
        with _as_run_error(self.video.path):
            if self.latents:
                self.latents.fill(lambda path: write_latents(path, latents_BCFHW))
            self.video.fill(lambda path: write_video(path, pixels_BCFHW, fps))

    def commit(self, record: dict[str, Any]) -> None:
        """Write the record, then give every file its name, the video last; raises RunError."""
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        with _as_run_error(self.video.path):
            self.record.fill(lambda path: path.write_text(text, encoding="utf-8"))
            for file in (self.latents, self.record, self.video):
                if file:
                    file.commit()


@contextmanager
def _as_run_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"output {path} cannot be written: {error.strerror or error}") from error


def _reserve(path: Path, stack: ExitStack) -> Reserved:
    with _as_run_error(path):
        return stack.enter_context(Reserved(path))
