"""`eyas train`: train draft heads."""

from __future__ import annotations

import typer

from eyas.cli import train_head

app = typer.Typer(help="Train draft heads.")


@app.callback()
def _train() -> None:
    return None


app.command("head")(train_head.head)
