"""What the commands that measure have in common: their inputs, what goes on, how a result is told.

Promises: with --json standard output holds the result alone. Does not know: what is measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from eyas.bench.inputs import Inputs
    from eyas.llm import LLM

Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Also write the result to this JSON file.")
]

TASKS_OF_A_ROUND = 13
"""Held-out prompts that every round has at least: one of every kind."""


class Workload(StrEnum):
    """What the prompts are."""

    tasks = "tasks"
    chat = "chat"
    copy = "copy"
    random = "random"


def read_inputs(
    llm: LLM,
    workload: Workload,
    entries: Sequence[Mapping[str, Any]] | None,
    count: int,
    prompt_tokens: int = 128,
) -> Inputs:
    """The prompts of a file, or else of a workload, up to `count` of them. prompt_tokens: of each that
    is random."""
    from eyas.bench import prompts as shared
    from eyas.bench.inputs import Inputs, from_entries, from_tasks

    if entries is not None:
        return from_entries(llm, entries)
    if workload is Workload.random:
        drawn = shared.random_prompts(count, prompt_tokens, llm.info.vocab_size)
        return Inputs("random", drawn)
    if workload is Workload.tasks:
        return from_tasks(llm, count, tasks=shared.heldout_tasks(count))
    tasks = shared.TASKS if workload is Workload.chat else shared.COPY_TASKS
    return from_tasks(llm, count, tasks=tasks)


@contextmanager
def status(quiet: bool) -> Iterator[Callable[[str], None]]:
    """What is being done, on standard error."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as shown:
        yield shown.update


def prefixed(say: Callable[[str], None], name: str) -> Callable[[str], None]:
    """Says what is done of `name`."""
    return lambda text: say(f"{name}: {text}")


def narrator(quiet: bool) -> Callable[[str], None]:
    """Says what goes on in one line of standard error; an empty text clears it."""
    if quiet or not sys.stderr.isatty():
        return lambda text: None
    return lambda text: print(f"\r{text:<48}\r", end="", file=sys.stderr, flush=True)


def round_name(turn: int) -> str:
    """Rounds count from 1; what is before them is not counted."""
    return f"round {turn}" if turn > 0 else "warm-up"


def run_facts() -> dict[str, Any]:
    """How a result begins: when, what was typed, which commit, on what."""
    from eyas.bench.machine import describe_run

    return describe_run(["eyas", *sys.argv[1:]])


def tell(
    result: dict[str, Any],
    output: Path | None,
    as_json: bool,
    show: Callable[[dict[str, Any]], None],
) -> None:
    """Keep the result where that was asked for; print it for a program, or for a person."""
    from eyas.bench.machine import write_result

    if output is not None:
        write_result(result, output)
    print(json.dumps(result, ensure_ascii=False)) if as_json else show(result)


def place(result: dict[str, Any]) -> str:
    """The processor that ran the model."""
    model, machine = result["model"], result["machine"]
    return machine.get("gpu") if model["device"].startswith("cuda") else machine["cpu"]


def number(value: float | None) -> str:
    """As tables have it."""
    return "" if value is None else f"{value:.2f}"
