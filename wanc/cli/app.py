"""The commands, by name. Each has a file of its own, which is imported when it is wanted."""

import os
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Annotated

import typer

from wanc import __version__

COMMANDS = {
    "tiny": "tiny_command",
    "plan": "plan_command",
    "compile": "compile_command",
    "inspect": "inspect_command",
    "check": "check_command",
    "verify": "verify_command",
    "key": "key_app",
    "sign": "sign_command",
    "diff": "diff_command",
    "run": "run_command",
    "decode": "decode_command",
    "compare": "compare_command",
    "weights": "weights_app",
    "push": "push_command",
    "pull": "pull_command",
    "gc": "gc_command",
    "cache": "cache_app",
    "doctor": "doctor_command",
}
"""What a command is called in the module of its own name."""

_COMPLETES = "_WANC_COMPLETE"
"""Variable of a shell that completes a line."""


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The application with the command that is meant, or with all: to help, or to complete."""
    meant = arguments[0] if arguments else ""
    return app_of([meant] if meant in COMMANDS and _COMPLETES not in os.environ else COMMANDS)


def app_of(names: Collection[str]) -> typer.Typer:
    """The application with some commands."""
    app = typer.Typer(
        name="wanc",
        help="Compile Wan2.2 video diffusion ahead of time, and run the bundle without a compiler.",
        invoke_without_command=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(wanc)
    for name in names:
        command = getattr(import_module(f"wanc.cli.{name}"), COMMANDS[name])
        if isinstance(command, typer.Typer):
            app.add_typer(command)
        else:
            app.command(name)(command)
    return app


def wanc(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True)
    ] = False,
) -> None:
    """Options of wanc itself."""
    if version:
        typer.echo(__version__)
        raise typer.Exit
