"""`eyas train`: draft heads, and the models that come with eyas."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eyas.cli import train_head

app = typer.Typer(help="Train draft heads, and the models that come with eyas.")


@app.callback()
def _train() -> None:
    return None


app.command("head")(train_head.head)


@app.command("builtin")
def builtin(
    output: Annotated[Path, typer.Argument(help="Directory of the checkpoint and the loss curve.")],
    steps: Annotated[int | None, typer.Option("--steps", min=1)] = None,
    batch_tokens: Annotated[int | None, typer.Option("--batch-tokens", min=1)] = None,
    seed: Annotated[
        str | None, typer.Option("--seed", help="Which conversations are drawn.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes that draw conversations.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="cuda or cpu.")] = None,
    compile_model: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="Use torch.compile.")
    ] = None,
    stop_after: Annotated[
        float | None,
        typer.Option("--stop-after", help="Stop after so many seconds; the same command goes on."),
    ] = None,
    log_every: Annotated[int | None, typer.Option("--log-every", min=1)] = None,
) -> None:
    """Train the built-in model from conversations drawn by the generator; needs one GPU."""
    from eyas.train.builtin import BuiltinTraining, train_builtin

    asked = {
        "steps": steps,
        "batch_tokens": batch_tokens,
        "seed": seed,
        "workers": workers,
        "device": device,
        "compile": compile_model,
        "stop_after": stop_after,
        "log_every": log_every,
    }
    changes = {name: value for name, value in asked.items() if value is not None}
    directory = train_builtin(BuiltinTraining(output, **changes))  # pyrefly: ignore
    print(f"checkpoint: {directory}")
