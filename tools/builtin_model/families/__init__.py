"""The conversation generator: one module per task family, with seeded random draws.

Promises: (split, seed) determines an example; made-up words and listed names of the training split
never occur in the held-out split; no text contains a control token. No external data is used.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from builtin_model.families.classify import classify
from builtin_model.families.code import code
from builtin_model.families.copying import copying
from builtin_model.families.draw import Draw, Split
from builtin_model.families.example import ChatRequest, Check, Example, Message, final_text
from builtin_model.families.extract import extract
from builtin_model.families.facts import facts
from builtin_model.families.json_fill import json_fenced, json_schema, json_words
from builtin_model.families.pick import pick
from builtin_model.families.problems import problems
from builtin_model.families.talk import talk
from builtin_model.families.tools import tools
from builtin_model.families.turns import turns

FAMILIES: dict[str, Callable[[Draw], Example]] = {
    "pick": pick,
    "facts": facts,
    "problems": problems,
    "json_words": json_words,
    "json_schema": json_schema,
    "json_fenced": json_fenced,
    "extract": extract,
    "classify": classify,
    "tools": tools,
    "talk": talk,
    "copying": copying,
    "turns": turns,
    "code": code,
}
WEIGHTS: dict[str, float] = {
    "pick": 0.05,
    "facts": 0.11,
    "problems": 0.16,
    "json_words": 0.1,
    "json_schema": 0.11,
    "json_fenced": 0.07,
    "extract": 0.09,
    "classify": 0.08,
    "tools": 0.12,
    "talk": 0.03,
    "copying": 0.1,
    "turns": 0.07,
    "code": 0.01,
}
"""The fraction of each family in the training conversations."""

_SHORT = ("pick", "facts", "talk", "classify", "copying", "extract")


def draw_example(family: str, seed: str, split: Split) -> Example:
    """Return the example of a family for a seed; a few have unrelated exchanges before it."""
    draw = Draw(f"{family}/{seed}", split)
    example = FAMILIES[family](draw)
    if draw.chance(0.9):
        return example
    return _with_history(draw, example)


def _with_history(draw: Draw, example: Example) -> Example:
    first = example.messages[0]
    system = [first] if first["role"] == "system" else []
    history: list[Message] = []
    for _ in range(draw.pick((1, 1, 1, 1, 2, 2, 3, 3, 6, 20))):
        earlier = FAMILIES[draw.pick(_SHORT)](draw).messages
        if earlier[0]["role"] == "system":
            continue
        history.extend({"role": m["role"], "content": m["content"]} for m in earlier)
    return replace(example, messages=(*system, *history, *example.messages[len(system) :]))


def mixture(seed: str, split: Split, count: int) -> Iterator[Example]:
    """Yield examples of all families in the training proportions."""
    chooser = Draw(f"mixture/{seed}", split).random
    chosen = chooser.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()), k=count)
    for index, family in enumerate(chosen):
        yield draw_example(family, f"{seed}/{index}", split)


__all__ = [
    "FAMILIES",
    "WEIGHTS",
    "ChatRequest",
    "Check",
    "Example",
    "Message",
    "Split",
    "draw_example",
    "final_text",
    "mixture",
]
