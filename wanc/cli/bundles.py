"""Bundles that a command is given: folders, or references that are pulled into the user's cache."""

import atexit
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from wanc.bundle.store import open_bundle
from wanc.cache.store import BUNDLES, Cache, default_cache
from wanc.cli.terminal import Terminal, note
from wanc.errors import BundleError, RegistryError, RunError
from wanc.registry.reference import Reference, is_reference

if TYPE_CHECKING:
    from wanc.share.pull import Programs

Values = tuple[str | None, str | None, str | None]
"""Shape, topology and precision, as far as they are given."""

JOBS = 4
"""Blobs on their way at once."""


def local_bundle(
    given: Path,
    programs: "Programs" = "none",
    variant: Values = (None, None, None),
    *,
    signers: Sequence[Path] = (),
) -> Path:
    """The folder of a bundle; of a reference, what is needed and not here is pulled.

    Args:
        given: a path, or a reference.
        programs: what is needed of the programs.
        variant: shape, topology and precision, as far as they are given, of the variants whose
            programs are needed; every variant's where none is.
        signers: public keys, one of which must have signed it. Where none has signed what is here,
            the registry may have got a signature since.
    """
    if not is_reference(str(given)):
        return given
    from wanc.registry.repository import connect
    from wanc.run.load import wanted_values
    from wanc.share.pull import Wanted, is_here, pinned, pull_bundle

    reference = Reference.parse(str(given))
    words = " ".join(word for word in wanted_values(*variant).values() if word)
    wanted = Wanted(variants=(words,) if words else (), programs=programs)
    here = bool(reference.digest) and is_here(
        _used(str(reference.digest)), str(reference.digest), wanted
    )
    if here and _is_signed(_folder(str(reference.digest)), signers):  # nobody need be asked
        return _folder(str(reference.digest))
    try:
        with closing(connect(reference)) as repository:
            exact = pinned(reference, repository)
            folder = _used(str(exact.digest))
            if not reference.digest:
                note(f"{reference} is {exact.digest}")
            here_now = is_here(folder, str(exact.digest), wanted)
            if not (here_now and _is_signed(folder, signers)):
                pull_bundle(
                    exact, folder, repository, wanted=wanted, jobs=JOBS, progress=Terminal()
                )
            return folder
    except (RegistryError, RunError) as error:  # or the cache is read-only
        if not here:
            raise
        note(f"{error}; what was pulled before is used")
        return _folder(str(reference.digest))


def _is_signed(folder: Path, signers: Sequence[Path]) -> bool:
    """Whether one of the keys has signed what is here, or none is asked for."""
    if not signers:
        return True
    from wanc.signing.check import require_signature

    try:
        require_signature(open_bundle(folder), signers)
    except BundleError:
        return False
    return True


def _used(digest: str) -> Path:
    """The folder of a bundle that is used from now on, until this process ends.

    A cache that takes no mark is read all the same: nobody clears it away either.
    """
    cache = Cache(default_cache())
    with suppress(RunError), ExitStack() as stack:
        stack.enter_context(cache.in_use())
        atexit.register(_let_go, stack.pop_all())
    cache.use(_folder(digest))
    return _folder(digest)


def _let_go(mark: ExitStack) -> None:
    with suppress(OSError):  # somebody removed the cache, and the mark with it
        mark.close()


def _folder(digest: str) -> Path:
    return default_cache() / BUNDLES / digest.replace(":", "-")
