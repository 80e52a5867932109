"""The command line: builds records, calls one function, prints. The only print and exit of wanc."""

import io
import json
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from wanc.cli.app import app_for
from wanc.cli.terminal import note
from wanc.errors import WancError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    as_json = "--json" in arguments
    for number in (signal.SIGTERM, signal.SIGHUP):  # the second is a terminal that went away
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _terminated)
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may hold what no encoding has
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = app_for(arguments)(arguments, prog_name="wanc", standalone_mode=False)
    except WancError as error:
        _fail(str(error), type(error).__name__, error.exit_code, as_json)
    except typer.TyperException as error:
        _fail(error.format_message(), "UsageError", error.exit_code, as_json)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:
        _fail("interrupted; nothing was left half-written", "Interrupted", code, as_json)
    sys.exit(code or 0)


def _terminated(number: int, frame: object) -> NoReturn:
    """End as an error would, so that nothing is left half-written: pods are stopped like this."""
    raise SystemExit(128 + number)


def _fail(message: str, kind: str, code: int, as_json: bool) -> NoReturn:
    if as_json:
        print(json.dumps({"error": {"kind": kind, "exit_code": code, "message": message}}))
    note(f"wanc: {message}")
    sys.exit(code or 0)
