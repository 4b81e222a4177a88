"""The commands `eyas chat`, `serve`, `generate`, `demo`, `models`, `verify`, `bench` and `train`.

Promises: exit status 0 is success, 1 a failed check or an internal error, 2 an error that the user can
correct, reported in a line that names the option; heavy imports happen inside the commands.
Does not know: how anything is computed.
"""

from __future__ import annotations

import os
import shutil
import sys

import typer

from eyas.children import guard_children
from eyas.cli import chat, demo, generate, models, serve, train_head, verify
from eyas.cli.command_line import PeersCommand
from eyas.cli.errors import report
from eyas.cli.installed import InstalledGroup
from eyas.cli.options import Debug

app = typer.Typer(
    name="eyas",
    help="An LLM inference engine built around draft trees: speculation never changes the output.",
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
)
app.command("chat")(chat.chat)
app.command("serve", cls=PeersCommand)(serve.serve)
app.command("generate")(generate.generate)
app.command("demo")(demo.demo)
app.command("models")(models.models)
app.command("verify")(verify.verify)
app.add_typer(
    typer.Typer(cls=InstalledGroup),
    name="bench",
    help="Run benchmarks of decoding, serving, grammars and draft trees; needs eyas-bench.",
)
train = typer.Typer(help="Train draft heads.")
train.command("head")(train_head.head)
app.add_typer(train, name="train")


def _show_version(asked: bool) -> None:
    if asked:
        from eyas import __version__

        typer.echo(f"eyas {__version__}")
        raise typer.Exit


NARROW_COLUMNS = 60
"""In a terminal with fewer columns help has no tables, which would truncate names of options."""

FIRST_STEPS = (
    ("eyas chat", "chat with the model in the terminal; /tree shows what was drafted"),
    ("eyas demo", "compare plain and drafted decoding: the same tokens in fewer steps"),
    ("eyas serve", "serve an OpenAI-compatible API at http://127.0.0.1:8000/v1"),
    ("eyas generate PROMPT", "generate one answer in the terminal"),
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    debug: Debug = False,
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_show_version, is_eager=True
    ),
) -> None:
    if context.invoked_subcommand is None:
        typer.echo("Commands to start with (they use the built-in model unless --model is given):")
        for command, purpose in FIRST_STEPS:
            typer.echo(f"  {command:<21} {purpose}")
        typer.echo("Run eyas --help for all commands, eyas COMMAND --help for their options.")


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its status."""
    given = sys.argv[1:] if arguments is None else arguments
    guard_children()
    if sys.stdin is None:  # the caller has closed it; an empty one has the same meaning
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    is_narrow = shutil.get_terminal_size().columns < NARROW_COLUMNS
    app.rich_markup_mode = None if is_narrow else "rich"
    try:
        app(given, prog_name="eyas")
    except Exception as error:
        if "--debug" in given:
            raise
        sys.exit(report(error))
