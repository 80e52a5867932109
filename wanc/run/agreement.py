"""Whether ranks and processes computed the same: all hold the noise, and all step the latents."""

import json
from collections import Counter
from collections.abc import Collection

from torch import Tensor

from wanc.digest import of_bytes
from wanc.errors import RunError
from wanc.run.session import Session, Values


def check_latents(session: Session, latents: Tensor, at: str) -> str:
    """The digest of the latents; raises RunError where a process has others than most have."""
    digest = of_bytes(latents.numpy().tobytes())
    said = session.world.everyone("latents", digest)
    ranks = session.config.mesh.ranks
    _check({rank: said[session.process_of(rank)] for rank in ranks}, f"the latents after {at}")
    return digest


def check_noise(
    session: Session, stage: str, values: Values, *, branches: Collection[int], at: str
) -> None:
    """Raise RunError where a rank predicted other noise than most did."""
    mine = {
        rank: of_bytes(b"".join(part.tobytes() for part in parts))
        for rank, parts in session.copies(stage, values, branches=branches).items()
    }
    said = session.world.everyone("noise", json.dumps(mine))
    digests = {int(rank): each for text in said for rank, each in json.loads(text).items()}
    _check(digests, f"the noise at {at}")


def _check(digests: dict[int, str], what: str) -> None:
    if len(set(digests.values())) == 1:
        return
    usual = Counter(digests.values()).most_common(1)[0][0]
    odd = [str(rank) for rank, digest in sorted(digests.items()) if digest != usual]
    some = f"rank {odd[0]}" if len(odd) == 1 else f"ranks {', '.join(odd)}"
    raise RunError(
        f"ranks disagree on {what}: {some} of {len(digests)} have other bits than the rest: look "
        "for a fault of that host, or for CPUs of two kinds"
    )
