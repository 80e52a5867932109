"""The text of artifacts, read in a process of its own: what crashes MLIR ends no more than that."""

import signal
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context

from wanc.errors import BundleError, ToolchainError
from wanc.lower.artifact import read_artifact


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A program as people read it."""

    text: str
    operators: dict[str, int]
    """How often each stands in it."""


def text_of(artifact: bytes) -> Text:
    """The text of a portable artifact; raises ToolchainError where it is none."""
    read = read_artifact(artifact)
    return Text(text=read.text, operators=dict(Counter(op.name for op in read.operations)))


def texts_of(artifacts: Mapping[str, bytes]) -> dict[str, Text]:
    """Texts by digest; raises BundleError where one cannot be read."""
    ends = (signal.SIGINT, signal.SIG_DFL)  # Python's own handler would wait for MLIR to return
    found = {}
    with ProcessPoolExecutor(1, get_context("spawn"), signal.signal, ends) as reader:
        for digest, data in artifacts.items():
            try:
                found[digest] = reader.submit(text_of, data).result()
            except ToolchainError as error:
                raise BundleError(f"StableHLO {digest}: {error}") from error
            except BrokenProcessPool as error:
                raise BundleError(
                    f"StableHLO {digest}: the process that read it crashed: it is damaged, or "
                    "was made to do so"
                ) from error
    return found
