"""The files a run writes: all reserved before any work, all given their names at the end."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wanc.errors import RunError
from wanc.files import Reserved
from wanc.run.video import find_encoder, to_frames, write_arrays, write_video

Array = np.ndarray[Any, Any]

SUFFIX = ".mp4"


def saved_beside(video: Path) -> Path:
    """The file of saved steps of a video; it goes once the video is whole."""
    return video.with_suffix(".steps.safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where the process that has the pixels writes; the run gives the files their names later."""

    video: Path | None = None
    latents: Path | None = None
    arrays: Path | None = None
    """Latents and frames for a caller in Python."""
    saved: Path | None = None
    """Saved steps; written whole under this name, again and again."""
    unfinished: Path | None = None
    """Where saved steps are written before they take that name."""

    def write(self, pixels_BCFHW: Array, fps: int, latents_BCFHW: Array) -> None:
        """Encode the video, and write the arrays that are wanted; raises RunError."""
        frames = to_frames(pixels_BCFHW)
        with as_run_error(self.video or self.arrays):
            if self.latents:
                write_arrays(self.latents, {"latents": latents_BCFHW})
            if self.arrays:
                write_arrays(self.arrays, {"latents": latents_BCFHW, "frames": frames})
            if self.video:
                write_video(self.video, frames, fps)


class Outputs:
    """A video, its record beside it, and latents where they are wanted."""

    def __init__(self, video: Path, latents: Path | None, *, saves: bool = False) -> None:
        """Raises RunError where a file cannot be written."""
        if video.suffix != SUFFIX:
            raise RunError(f"output {video}: ends in {video.suffix!r}; wanc writes {SUFFIX}")
        record = video.with_suffix(".json")
        if latents in (video, record):
            raise RunError(f"latents {latents}: that file is the video's or its record's")
        find_encoder()
        with ExitStack() as stack:
            self._video = _reserve(video, stack)
            self._record = _reserve(record, stack)
            self._latents = _reserve(latents, stack) if latents else None
            saved = _reserve(saved_beside(video), stack) if saves else None
            self._stack = stack.pop_all()
        self.files = Files(
            video=self._video.temporary,
            latents=self._latents.temporary if self._latents else None,
            saved=saved.path if saved else None,
            unfinished=saved.temporary if saved else None,
        )

    def __enter__(self) -> "Outputs":
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def commit(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Write the record, then give every file its name, the video last; raises RunError.

        Returns the record with the video's name, as it was written.
        """
        record = {**record, "output": self._video.path.name}
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        with as_run_error(self._video.path):
            self._record.fill(lambda path: path.write_text(text, encoding="utf-8"))
            for file in (self._latents, self._record, self._video):
                if file:
                    file.commit()
            if self.files.saved:
                self.files.saved.unlink(missing_ok=True)
        return record


@contextmanager
def as_run_error(path: Path | None) -> Iterator[None]:
    """A file that cannot be written ends the run."""
    try:
        yield
    except OSError as error:
        raise RunError(f"output {path} cannot be written: {error.strerror or error}") from error


def _reserve(path: Path, stack: ExitStack) -> Reserved:
    with as_run_error(path):
        return stack.enter_context(Reserved(path))
