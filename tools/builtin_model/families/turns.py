"""Conversations whose last answer depends on earlier messages."""

import json
from collections.abc import Callable
from typing import TypeAlias

from builtin_model.families import names
from builtin_model.families.draw import Draw
from builtin_model.families.example import Check, Example, Message
from builtin_model.families.facts_tables import COUNTRIES
from builtin_model.families.records import draw_record, record_value, told
from builtin_model.families.talk import talk

Turn: TypeAlias = tuple[list[tuple[str, str]], str, str, Check, str]
"""(earlier exchanges, last request, answer, check, reasoning)."""


def turns(draw: Draw) -> Example:
    """Draw a follow-up: something to remember, a continued question, or a change of a list or object."""
    earlier, user, answer, check, reasoning = draw.pick(_TASKS)(draw)
    history: list[Message] = []
    for said, replied in earlier:
        history.append({"role": "user", "content": said})
        history.append({"role": "assistant", "content": replied})
    return draw.example("turns", user, answer, check, reasoning=reasoning, history=history)


def _chatter(draw: Draw, most: int) -> list[tuple[str, str]]:
    found = []
    for _ in range(draw.whole(0, most)):
        messages = talk(draw).messages
        found.append((str(messages[-2]["content"]), str(messages[-1]["content"])))
    return found


def _remember(draw: Draw) -> Turn:
    what, value = draw.pick(
        (
            ("name", draw.first_name()),
            ("city", draw.place()),
            ("password", draw.code()),
            ("dog's name", draw.title()),
            ("favourite colour", draw.pick(("red", "blue", "green", "black", "pink"))),
            ("birthday", draw.date()),
            ("favourite thing", draw.noun()),
            ("number", str(draw.number())),
            ("code word", draw.word()),
        )
    )
    earlier = [(f"My {what} is {value}.", draw.pick(("I will remember that.", "Noted.", "OK.")))]
    earlier.extend(_chatter(draw, 3))
    user = draw.pick((f"What is my {what}?", f"Do you remember my {what}?", f"Tell me my {what}."))
    return earlier, user, value, Check("one_of", (value,)), f"The user said that it is {value}."


def _carried(draw: Draw) -> Turn:
    rows = draw.sample(COUNTRIES, draw.whole(2, 4))
    column, word = draw.pick(((1, "capital"), (2, "currency")))
    earlier = [(f"What is the {word} of {rows[0][0]}?", rows[0][column])]
    earlier += [(f"And of {row[0]}?", row[column]) for row in rows[1:-1]]
    last = rows[-1]
    user = draw.pick((f"And of {last[0]}?", f"And {last[0]}?", f"What about {last[0]}?"))
    answer = last[column]
    reasoning = f"The question is about the {word} of {last[0]}: {answer}."
    return earlier, user, answer, Check("one_of", (answer,)), reasoning


def _grown(draw: Draw) -> Turn:
    items = draw.sample(names.THINGS, draw.whole(2, 4))
    if draw.chance(0.4):
        items = [draw.word() for _ in items]
    earlier = [(f"Start a list with {', '.join(items)}.", ", ".join(items))]
    for _ in range(draw.whole(0, 2)):
        new = draw.word()
        items = [*items, new]
        earlier.append((f"Add {new}.", ", ".join(items)))
    if draw.chance(0.5) and len(items) > 2:
        gone = draw.pick(items)
        items = [item for item in items if item != gone]
        user = f"Remove {gone}."
        reasoning = f"The list without {gone}."
    else:
        new = draw.pick((draw.word(), draw.noun()))
        items = [*items, new]
        user = f"Add {new}."
        reasoning = f"{new} goes to the end of the list."
    answer = ", ".join(items)
    return earlier, user, answer, Check("exact", answer), reasoning


def _changed(draw: Draw) -> Turn:
    fields = draw_record(draw, 2, 4, nested=False)
    value = record_value(fields)
    keys = ", ".join(value)
    request = f"Create JSON with the fields {keys}.\n{told(draw, list(fields))}"
    earlier = [(request, json.dumps(value, ensure_ascii=False))]
    changed = draw.pick(fields)
    if draw.chance(0.3):
        new_key, new_value = draw.word(), draw.pick((draw.title(), draw.number()))
        value = {**value, new_key: new_value}
        user = f"Add the field {new_key} with the value {new_value}."
        reasoning = f"{new_key} is new: {new_value}."
    elif draw.chance(0.3):
        del value[changed.key]
        user = f"Remove the field {changed.key}."
        reasoning = f"{changed.key} is left out."
    else:
        new_value = draw.title() if isinstance(changed.value, str) else draw.number()
        if isinstance(changed.value, (bool, list, float, type(None))):
            new_value = draw.title()
        value = {**value, changed.key: new_value}
        user = draw.pick(
            (f"Change {changed.key} to {new_value}.", f"Set {changed.key} to {new_value}.")
        )
        reasoning = f"{changed.key} is now {new_value}."
    answer = json.dumps(value, ensure_ascii=False)
    return earlier, user, answer, Check("json", value), reasoning


def _again(draw: Draw) -> Turn:
    text = draw.phrase(2, 8)
    earlier = [(f"Say: {text}", text), *_chatter(draw, 2)]
    user = draw.pick(("What did I ask you to say first?", "Repeat the first thing you said."))
    return earlier, user, text, Check("exact", text), "I look at my first answer."


def _people(draw: Draw) -> Turn:
    first, second = draw.two_names()
    one, two = draw.place(), draw.place()
    earlier = [(f"{first} lives in {one}.", "OK."), (f"{second} lives in {two}.", "OK.")]
    earlier.extend(_chatter(draw, 1))
    who, where = draw.pick(((first, one), (second, two)))
    user = draw.pick((f"Where does {who} live?", f"In which city is {who}?"))
    return earlier, user, where, Check("exact", where), f"{who} lives in {where}."


_TASKS: tuple[Callable[[Draw], Turn], ...] = (
    _remember,
    _remember,
    _carried,
    _grown,
    _changed,
    _again,
    _people,
)
