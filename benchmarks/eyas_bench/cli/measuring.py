"""What the benches have in common: their inputs, what goes on, parts of their tables.

Does not know: what is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eyas.llm import LLM
    from eyas.verify.inputs import Inputs

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
    from eyas.verify.inputs import Inputs, from_entries, from_tasks
    from eyas.verify.prompts import TASKS, random_prompts
    from eyas_bench import prompts

    if entries is not None:
        return from_entries(llm, entries)
    if workload is Workload.random:
        drawn = random_prompts(count, prompt_tokens, llm.info.vocab_size)
        return Inputs("random", drawn)
    if workload is Workload.tasks:
        return from_tasks(llm, count, tasks=prompts.heldout_tasks(count))
    tasks = TASKS if workload is Workload.chat else prompts.COPY_TASKS
    return from_tasks(llm, count, tasks=tasks)


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


def place(result: dict[str, Any]) -> str:
    """The processor that ran the model."""
    model, machine = result["model"], result["machine"]
    return machine.get("gpu") if model["device"].startswith("cuda") else machine["cpu"]


def number(value: float | None) -> str:
    """As tables have it."""
    return "" if value is None else f"{value:.2f}"
