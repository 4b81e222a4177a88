"""Prompts of the benchmarks: copying tasks, and held-out tasks of the built-in model's families.

Promises: the same prompts on every machine and in every run. Does not know: which model answers
them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from builtin_model.families import FAMILIES, draw_example
from eyas.verify.prompts import SENTENCES, Task, ask

_CODES = "DLK-4711 QRT-0925 MNA-3318 XYZ-7740 BBC-1234 KPO-9981 TTR-5502 LSA-6613"
_STORY = (
    "Karim carries a heavy basket. The tired teacher opens a green door. Lena reads a long letter. "
    "The young farmer sells a white horse."
)

COPY_TASKS = tuple(
    Task(f"copy {i + 1}", ask(f"Repeat exactly: {text}"))
    for i, text in enumerate((SENTENCES, _CODES, _STORY))
)
"""Tasks whose answer is part of the prompt, which prompt lookup drafts well."""


def heldout_tasks(count: int, families: Sequence[str] = tuple(FAMILIES)) -> tuple[Task, ...]:
    """Return held-out conversations of the built-in model's families, equally many of each,
    shuffled.

    Reasoning is on or off as in the family. ValueError: a family is unknown.
    """
    unknown = sorted(set(families) - set(FAMILIES))
    if unknown or not families:
        what = f"{', '.join(unknown)} is none" if unknown else "give at least one"
        raise ValueError(f"--families: {what}; there are {', '.join(FAMILIES)}")
    shuffle = random.Random("heldout/bench").shuffle
    tasks: list[Task] = []
    while len(tasks) < count:
        order = list(families)
        shuffle(order)
        number = len(tasks) // len(order)
        for family in order:
            request = draw_example(family, f"bench/{number}", "heldout").request
            thinks = request.enable_thinking
            tasks.append(Task(family, request.messages, request.tools, thinks=thinks))
    return tuple(tasks[:count])
