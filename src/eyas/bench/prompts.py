"""Prompts that measurements and the demo share: short tasks, copy-heavy tasks, held-out ones, random.

Promises: the same prompts on every machine and in every run. Does not know: who answers them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eyas.builtin.families import FAMILIES, draw_example

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """A conversation to answer. temperature: 0 is greedy; above 0 the seed is fixed."""

    title: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    thinks: bool = False
    temperature: float = 0.0
    max_tokens: int = 160
    options: dict[str, Any] = field(default_factory=dict)


def _ask(text: str, system: str | None = None) -> tuple[Message, ...]:
    user = {"role": "user", "content": text}
    return ({"role": "system", "content": system}, user) if system else (user,)


_WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "City name"}},
            "required": ["city"],
        },
    },
}
_PERSON_SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, '
    '"city": {"type": "string"}, "member": {"type": "boolean"}}, '
    '"required": ["name", "age", "city", "member"]}'
)

_SENTENCES = (
    "The old lighthouse stands on a grey rock.\nAnna paints a blue boat.\nThe small dog sleeps under "
    "the table.\nPeter buys a red lamp in the garden.\nMaria finds a golden key."
)
_CODES = "DLK-4711 QRT-0925 MNA-3318 XYZ-7740 BBC-1234 KPO-9981 TTR-5502 LSA-6613"
_STORY = (
    "Karim carries a heavy basket. The tired teacher opens a green door. Lena reads a long letter. "
    "The young farmer sells a white horse."
)

TASKS = (
    Task("pick", _ask("Specify a random city."), temperature=0.7),
    Task("fact", _ask("What is the capital of France?")),
    Task(
        "word problem",
        _ask("Ella has 39 books. Ella throws 12 away. Ella buys 5. How many books does she have?"),
        thinks=True,
    ),
    Task(
        "JSON by schema",
        _ask(
            "Please fill this in. The name is Brenda Lopez. The age is 41. The city is Lisbon. "
            "The member is true.",
            f"Fill the following schema from the user's message.\n{_PERSON_SCHEMA}",
        ),
    ),
    Task(
        "extract",
        _ask(
            "Extract home_team, away_team, home_score, away_score, best_player from this text as "
            "JSON.\n\nThe match between Port Vale and Nice Rovers ended 3 to 1. 5615 people watched "
            "it. It was played at Emshy Park. The best player was Ana Kumar."
        ),
    ),
    Task(
        "classify",
        _ask(
            "Categories: positive | neutral | negative. Category of the following?\n"
            "The coffee is wonderful and Maria is very happy."
        ),
    ),
    Task("tool call", _ask("What is the weather in Oslo?"), tools=(_WEATHER_TOOL,)),
    Task("copy", _ask(f"Repeat exactly: {_SENTENCES}"), temperature=0.7),
)
"""What `eyas demo` shows and `eyas bench decode --workload chat` runs."""

COPY_TASKS = tuple(
    Task(f"copy {i + 1}", _ask(f"Repeat exactly: {text}"))
    for i, text in enumerate((_SENTENCES, _CODES, _STORY))
)
"""Answers that stand in their prompts: what prompt lookup is for."""


def heldout_tasks(count: int, families: Sequence[str] = tuple(FAMILIES)) -> tuple[Task, ...]:
    """Conversations of the built-in model's own kinds that it was not trained on, every family as
    often as the others, in shuffled order; thinking as they have it."""
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


def random_prompts(count: int, num_tokens: int, vocab_size: int) -> list[list[int]]:
    """`count` prompts of random ordinary token ids; the same ones every time."""
    draw = random.Random(0)
    top = max(2, vocab_size - 64)
    return [[draw.randrange(1, top) for _ in range(num_tokens)] for _ in range(count)]


def cycle_to(prompts: Sequence[list[int]], count: int) -> list[list[int]]:
    """`count` prompts, going round where there are fewer."""
    return [list(prompts[i % len(prompts)]) for i in range(count)]
