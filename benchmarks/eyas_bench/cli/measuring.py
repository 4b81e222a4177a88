"""What the benchmark commands share: inputs, status lines, and parts of tables.

Does not know: what is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from eyas.llm import LLM
    from eyas.verify.inputs import Inputs

Workload = Literal["tasks", "chat", "copy", "random"]
"""The kind of prompts."""
TASKS_OF_A_ROUND = 13
"""The minimum number of held-out prompts of a round: one of every family."""


def read_inputs(
    llm: LLM,
    workload: Workload,
    entries: Sequence[Mapping[str, Any]] | None,
    count: int,
    prompt_tokens: int = 128,
) -> Inputs:
    """Return the prompts of a file, or of a workload if `entries` is None.

    count: number of prompts of a workload. prompt_tokens: length of random prompts.
    """
    from eyas.verify.inputs import Inputs, from_entries, from_tasks
    from eyas.verify.prompts import TASKS, random_prompts
    from eyas_bench import prompts

    if entries is not None:
        return from_entries(llm, entries)
    if workload == "random":
        drawn = random_prompts(count, prompt_tokens, llm.info.vocab_size)
        return Inputs("random", drawn)
    if workload == "tasks":
        return from_tasks(llm, count, tasks=prompts.heldout_tasks(count))
    tasks = TASKS if workload == "chat" else prompts.COPY_TASKS
    return from_tasks(llm, count, tasks=tasks)


def prefixed(show_status: Callable[[str], None], name: str) -> Callable[[str], None]:
    """Return a function that shows a status with `name` in front."""
    return lambda text: show_status(f"{name}: {text}")


def status_line(quiet: bool) -> Callable[[str], None]:
    """Return a function that shows a status in one line of standard error; "" clears the line."""
    if quiet or not sys.stderr.isatty():
        return lambda text: None
    return lambda text: print(f"\r{text:<48}\r", end="", file=sys.stderr, flush=True)


def round_name(turn: int) -> str:
    """Return the name of a round; numbers below 1 are warm-up rounds."""
    return f"round {turn}" if turn > 0 else "warm-up"


def place(result: dict[str, Any]) -> str:
    """Return the name of the processor or GPU that ran the model."""
    model, machine = result["model"], result["machine"]
    return machine.get("gpu") if model["device"].startswith("cuda") else machine["cpu"]


def number(value: float | None) -> str:
    """Return a number as a table cell; "" for None."""
    return "" if value is None else f"{value:.2f}"
