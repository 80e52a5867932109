"""The commands, gathered. Knows their names only: each command's work is in a file of its own."""

from typing import Annotated

import typer

from wanc import __version__
from wanc.cli.cache import cache_app
from wanc.cli.check import check_command
from wanc.cli.compare import compare_command
from wanc.cli.compile import compile_command
from wanc.cli.decode import decode_command
from wanc.cli.diff import diff_command
from wanc.cli.doctor import doctor_command
from wanc.cli.gc import gc_command
from wanc.cli.inspect import inspect_command
from wanc.cli.key import key_app
from wanc.cli.plan import plan_command
from wanc.cli.pull import pull_command
from wanc.cli.push import push_command
from wanc.cli.run import run_command
from wanc.cli.sign import sign_command
from wanc.cli.terminal import emit
from wanc.cli.tiny import tiny_command
from wanc.cli.verify import verify_command
from wanc.cli.weights import weights_app

app = typer.Typer(
    name="wanc",
    help="Compile Wan2.2 video diffusion ahead of time, and run the bundle without a compiler.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def wanc(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True)
    ] = False,
) -> None:
    """Options of wanc itself."""
    if version:
        emit(__version__)
        raise typer.Exit


app.command("tiny")(tiny_command)
app.command("plan")(plan_command)
app.command("compile")(compile_command)
app.command("inspect")(inspect_command)
app.command("check")(check_command)
app.command("verify")(verify_command)
app.add_typer(key_app)
app.command("sign")(sign_command)
app.command("diff")(diff_command)
app.command("run")(run_command)
app.command("decode")(decode_command)
app.command("compare")(compare_command)
app.add_typer(weights_app)
app.command("push")(push_command)
app.command("pull")(pull_command)
app.command("gc")(gc_command)
app.add_typer(cache_app)
app.command("doctor")(doctor_command)
