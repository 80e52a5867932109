"""wanc sign: a bundle that is sound, its provenance and what made it, signed with a key."""

import os
from pathlib import Path
from typing import Annotated

import typer

from wanc.cli import options
from wanc.cli.terminal import Terminal, emit, emit_json, note
from wanc.errors import BundleError
from wanc.units import count


def sign_command(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle.")],
    key: Annotated[
        Path, typer.Option("--key", metavar="PRIVATE_KEY", help="As wanc key new makes one.")
    ],
    passphrase_env: options.PassphraseEnv = None,
    passphrase_file: options.PassphraseFile = None,
    builder_id: Annotated[
        str | None,
        typer.Option("--builder-id", metavar="URI", help="What compiled it. [default: unstated]"),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--source", metavar="FOLDER", help="A git work tree: its commit is stated."),
    ] = None,
    source_uri: Annotated[
        str | None,
        typer.Option("--source-uri", metavar="URI", help="Where the source is from."),
    ] = None,
    source_digest: Annotated[
        str | None,
        typer.Option(
            "--source-digest", help="Its revision: a commit, or gitCommit:…, sha1:…, sha256:…."
        ),
    ] = None,
    invocation_id: Annotated[
        str | None, typer.Option("--invocation-id", help="Which run of the builder it was.")
    ] = None,
    started_on: Annotated[
        str | None, typer.Option("--started-on", help="As 2026-11-30T09:29:00Z.")
    ] = None,
    finished_on: Annotated[
        str | None, typer.Option("--finished-on", help="As 2026-11-30T09:35:00Z.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Sign a bundle, and state how it was made.

    Verifies it first, and then attaches a signed provenance, a bill of materials, and the signed
    results of its reports."""
    from wanc.bundle.store import open_bundle
    from wanc.signing.keys import read_passphrase, read_private
    from wanc.signing.provenance import UNSTATED_BUILDER, About
    from wanc.signing.sign import sign_bundle
    from wanc.signing.source import source_of
    from wanc.verify.verify import verify_bundle

    about = About(
        builder_id=UNSTATED_BUILDER if builder_id is None else builder_id,
        source=source_of(source_uri, source_digest, source),
        invocation_id=invocation_id,
        started_on=started_on,
        finished_on=finished_on,
    )
    private = read_private(key, read_passphrase(passphrase_env, passphrase_file))
    opened = open_bundle(bundle)
    cores = len(os.sched_getaffinity(0))
    verified = verify_bundle(bundle, jobs=cores, progress=Terminal())
    if not verified.is_sound:
        raise BundleError(
            f"{bundle} is not signed, for it is not sound: {count(verified.faults, 'fault')}; "
            f"`wanc verify {bundle}` shows them"
        )
    if verified.bundle != opened.digest:
        raise BundleError(f"{bundle} is not signed, for it changed while it was verified")
    signed = sign_bundle(opened, private, about)
    if json:
        emit_json(
            {
                "bundle": str(bundle),
                "digest": opened.digest,
                "keyid": signed.keyid,
                "attached": [
                    {"artifact_type": each.artifact_type, "manifest": each.digest}
                    for each in signed.attached
                ],
            }
        )
        return
    results = f", and results of {count(signed.reports, 'report')}" if signed.reports else ""
    note(f"attached provenance, bill of materials{results}; key {signed.keyid}")
    emit(f"{bundle} {opened.digest}")
