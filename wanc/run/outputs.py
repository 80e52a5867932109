"""The files a run writes: all reserved before any work, the video and its record named at the end.

Latents take their name before they are decoded: after a failure later than that they are there to
go on from.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wanc.errors import RunError
from wanc.files import Reserved, ReservedFolder, give_name
from wanc.run.video import (
    CRF,
    FORMATS,
    FRAME_NAMES,
    About,
    Format,
    check_crf,
    find_encoder,
    to_frames,
    write_arrays,
    write_video,
)

Array = np.ndarray[Any, Any]


def record_beside(video: Path) -> Path:
    """The record of a video."""
    return _beside(video, ".json")


def saved_beside(video: Path) -> Path:
    """The file of saved steps of a video; it goes once the video is whole."""
    return _beside(video, ".steps.safetensors")


def latents_beside(video: Path) -> Path:
    """The file of final latents where none is named; it goes once the video is whole."""
    return _beside(video, ".latents.safetensors")


def _beside(video: Path, suffix: str) -> Path:
    """The name with another suffix: in place of a format's, or behind a folder's own dots."""
    has_own = video.suffix.lower().removeprefix(".") in FORMATS
    return video.with_name((video.stem if has_own else video.name) + suffix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where the process that has the pixels writes; the run gives the video its name later."""

    form: Format = "mp4"
    crf: int = CRF
    """Of mp4."""
    video: Path | None = None
    """The video's final name."""
    unfinished_video: Path | None = None
    """The file, or folder for png, where it is written before it takes that name."""
    latents: Path | None = None
    """Final latents; written whole under this name."""
    unfinished_latents: Path | None = None
    """Where they are written before they take that name."""
    arrays: Path | None = None
    """Latents and frames for a caller in Python."""
    saved: Path | None = None
    """Saved steps; written whole under this name, again and again."""
    unfinished: Path | None = None
    """Where saved steps are written before they take that name."""

    def save_latents(self, latents_BCFHW: Array, metadata: dict[str, str]) -> None:
        """Write latents in fp32 and what the file says of them, where they are wanted.

        Raises RunError.
        """
        if self.latents is None or self.unfinished_latents is None:
            return
        latents = np.asarray(latents_BCFHW, np.float32)
        with as_run_error(self.latents):
            write_arrays(self.unfinished_latents, {"latents": latents}, metadata)
            give_name(self.unfinished_latents, self.latents)

    def write(self, pixels_BCFHW: Array, fps: int, about: About, latents_BCFHW: Array) -> None:
        """Write the video and the arrays that are wanted; raises RunError."""
        frames = to_frames(pixels_BCFHW)
        if self.arrays:
            with as_run_error(self.arrays):
                write_arrays(self.arrays, {"latents": latents_BCFHW, "frames": frames})
        self.write_frames(frames, fps, about)

    def write_frames(self, frames_FHWC: Array, fps: int, about: About) -> None:
        """Write the video, where one is wanted, of frames in uint8; raises RunError."""
        if self.unfinished_video:
            with as_run_error(self.video):
                write_video(self.unfinished_video, self.form, frames_FHWC, fps, about, self.crf)


class Outputs:
    """A video, its record beside it, and its latents."""

    def __init__(
        self,
        video: Path,
        *,
        form: Format,
        crf: int | None = None,
        latents: Path | None = None,
        saves: bool = False,
    ) -> None:
        """Reserve every file.

        Args:
            video: the file; for png the folder of frames, which replaces no folder that holds
                anything but numbered frames.
            form: the video's format.
            crf: x264's constant rate factor, for mp4 alone.
            latents: where to keep final latents; None for beside the video until it is whole.
            saves: whether steps are saved beside the video.

        Raises:
            RequestError: no video of the format has such a crf.
            RunError: a file cannot be written, or two would have one name.
        """
        crf = check_crf(form, crf)
        names = video, record_beside(video), saved_beside(video)
        if latents:
            _check_apart(latents, *names)
        find_encoder(form)
        with ExitStack() as stack:
            folder = form == "png"
            self._video = _reserve(video, stack, folder=folder)
            self._record = _reserve(names[1], stack)
            kept = _reserve(latents or latents_beside(video), stack)
            saved = _reserve(names[2], stack) if saves else None
            self._stack = stack.pop_all()
        self._keeps_latents = latents is not None
        self.files = Files(
            form=form,
            crf=crf,
            video=video,
            unfinished_video=self._video.temporary,
            latents=kept.path,
            unfinished_latents=kept.temporary,
            saved=saved.path if saved else None,
            unfinished=saved.temporary if saved else None,
        )

    def __enter__(self) -> "Outputs":
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def commit(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Write the record, then give record and video their names, the video last.

        What was there to go on from is removed then: saved steps, and latents that this run wrote
        and nobody named. Returns the record with the video's name, as it was written. Raises
        RunError.
        """
        record = {**record, "output": self._video.path.name}
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        data = text.encode(errors="backslashreplace")  # JSON's own escapes of lone surrogates
        with as_run_error(self._video.path):
            self._record.fill(lambda path: path.write_bytes(data))
            self._record.commit()
            self._video.commit()
            passing = None if self._keeps_latents else self.written_latents
            for passed in (self.files.saved, passing):
                if passed:
                    passed.unlink(missing_ok=True)
        return record

    @property
    def written_latents(self) -> Path | None:
        """Final latents, once this run has written them: an older file of that name is not its."""
        unfinished = self.files.unfinished_latents
        wrote = unfinished is not None and not unfinished.exists()
        return self.files.latents if wrote else None


@contextmanager
def as_run_error(path: Path | None) -> Iterator[None]:
    """A file that cannot be written ends the run."""
    try:
        yield
    except OSError as error:
        raise RunError(f"output {path} cannot be written: {error.strerror or error}") from error


def _reserve(path: Path, stack: ExitStack, *, folder: bool = False) -> Reserved:
    with as_run_error(path):
        return stack.enter_context(ReservedFolder(path, FRAME_NAMES) if folder else Reserved(path))


def _check_apart(latents: Path, *names: Path) -> None:
    """Raise RunError where latents would take another file's place, or lie among png frames."""
    place = latents.resolve()
    for name in names:
        if name.resolve() in (place, *place.parents):
            raise RunError(
                f"latents {latents}: that name is of the video, its record or its saved steps; "
                "name another"
            )
