"""wanc key: keys that sign bundles, and their names."""

from pathlib import Path
from typing import Annotated

import typer

from wanc.cli import options
from wanc.cli.terminal import emit, emit_json, note

key_app = typer.Typer(name="key", help="Make keys that sign bundles.", rich_markup_mode=None)


def _algorithms() -> tuple[str, ...]:
    from wanc.signing.keys import ALGORITHMS

    return ALGORITHMS


@key_app.command("new")
def new_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The private key to write.")],
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm",
            help="ed25519, ecdsa-p256 or ecdsa-p384.",
            autocompletion=options.starting(_algorithms),
        ),
    ] = "ed25519",
    passphrase_env: options.PassphraseEnv = None,
    passphrase_file: options.PassphraseFile = None,
    json: options.Json = False,
) -> None:
    """Make a key: FILE, which signs, and FILE.pub, which verifies.

    Neither may be there yet. FILE is readable by its owner alone, and protected by a passphrase
    where one is given."""
    from wanc.signing.keys import read_passphrase, write_new

    made = write_new(file, algorithm, read_passphrase(passphrase_env, passphrase_file))
    if not json:
        note(f"{file} signs: keep it; {made.file} verifies: hand it out")
    _tell(made.keyid, made.algorithm, made.file, json)


@key_app.command("show")
def show_command(
    file: Annotated[Path, typer.Argument(metavar="FILE.pub", help="A public key.")],
    json: options.Json = False,
) -> None:
    """Show which key it is.

    Its keyid is the sha256 of the public key in DER."""
    from wanc.signing.keys import read_public

    key = read_public(file)
    _tell(key.keyid, key.algorithm, key.file, json)


def _tell(keyid: str, algorithm: str, file: str, as_json: bool) -> None:
    if as_json:
        emit_json({"keyid": keyid, "algorithm": algorithm, "public_key": file})
    else:
        emit(f"{keyid} {algorithm} {file}")
