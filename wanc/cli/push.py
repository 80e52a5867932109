"""wanc push: a bundle to a registry."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from wanc.cli import options
from wanc.cli.terminal import Terminal, emit, emit_json, note
from wanc.units import count


def push_command(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle.")],
    reference: Annotated[
        str, typer.Argument(metavar="REF", help="As registry.example/wan/bundle:v1.")
    ],
    mount_from: Annotated[
        str | None,
        typer.Option(
            "--mount-from",
            metavar="NAME",
            help="A repository of the same registry that may have blobs of it.",
        ),
    ] = None,
    plain_http: options.PlainHttp = False,
    jobs: options.Transfers = 4,
    json: options.Json = False,
) -> None:
    """Push a bundle to a registry.

    Only what is not there moves; the tag is written last."""
    from wanc.registry.reference import Reference
    from wanc.registry.repository import connect
    from wanc.share.push import push_bundle

    to = Reference.parse(reference)
    with closing(connect(to, plain_http=plain_http or None)) as repository:
        pushed = push_bundle(
            bundle, to, repository, mount_from=mount_from, jobs=jobs, progress=Terminal()
        )
    if json:
        emit_json(
            {
                "reference": str(pushed.reference),
                "digest": pushed.reference.digest,
                "blobs": pushed.blobs,
                "new_manifests": pushed.manifests,
                "attached": pushed.attached,
                "moved_bytes": pushed.moved_bytes,
                "reused_bytes": pushed.reused_bytes,
            }
        )
        return
    if pushed.attached:
        note(f"{count(pushed.attached, 'attachment')} pushed with it")
    emit(str(pushed.reference))
