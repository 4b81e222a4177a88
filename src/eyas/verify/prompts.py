"""The prompts that measurements and the demo share: short tasks, and random tokens.

Promises: the prompts are the same on every machine and in every run.
Does not know: which model answers them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """A conversation to answer. thinks: whether the answer begins with reasoning. temperature: 0 is
    greedy; above 0 the seed is fixed."""

    title: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    thinks: bool = False
    temperature: float = 0.0
    max_tokens: int = 160


def ask(text: str, system: str | None = None) -> tuple[Message, ...]:
    """Return a conversation of one question."""
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

SENTENCES = (
    "The old lighthouse stands on a grey rock.\nAnna paints a blue boat.\nThe small dog sleeps under "
    "the table.\nPeter buys a red lamp in the garden.\nMaria finds a golden key."
)
TASKS = (
    Task("pick", ask("Specify a random city."), temperature=0.7),
    Task("fact", ask("What is the capital of France?")),
    Task(
        "word problem",
        ask("Ella has 39 books. Ella throws 12 away. Ella buys 5. How many books does she have?"),
        thinks=True,
    ),
    Task(
        "JSON by schema",
        ask(
            "Please fill this in. The name is Brenda Lopez. The age is 41. The city is Lisbon. "
            "The member is true.",
            f"Fill the following schema from the user's message.\n{_PERSON_SCHEMA}",
        ),
    ),
    Task(
        "extract",
        ask(
            "Extract home_team, away_team, home_score, away_score, best_player from this text as "
            "JSON.\n\nThe match between Port Vale and Nice Rovers ended 3 to 1. 5615 people watched "
            "it. It was played at Emshy Park. The best player was Ana Kumar."
        ),
    ),
    Task(
        "classify",
        ask(
            "Categories: positive | neutral | negative. Category of the following?\n"
            "The coffee is wonderful and Maria is very happy."
        ),
    ),
    Task("tool call", ask("What is the weather in Oslo?"), tools=(_WEATHER_TOOL,)),
    Task("copy", ask(f"Repeat exactly: {SENTENCES}"), temperature=0.7),
)
"""The tasks of `eyas demo` and `eyas verify`."""


def random_prompts(count: int, num_tokens: int, vocab_size: int) -> list[list[int]]:
    """Return `count` prompts of random token ids, the same ones in every call."""
    draw = random.Random(0)
    top = max(2, vocab_size - 64)
    return [[draw.randrange(1, top) for _ in range(num_tokens)] for _ in range(count)]


def cycle_to(prompts: Sequence[list[int]], count: int) -> list[list[int]]:
    """Return `count` prompts, repeating them in order if there are fewer."""
    return [list(prompts[i % len(prompts)]) for i in range(count)]
