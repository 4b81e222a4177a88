"""Repeat, list, sort and rewrite given text."""

import json
import re
from collections.abc import Callable
from typing import TypeAlias

from builtin_model.families import names
from builtin_model.families.draw import Draw
from builtin_model.families.example import Check, Example
from builtin_model.families.facts_tables import number_in_words
from builtin_model.families.kinds import KINDS
from builtin_model.families.records import draw_record, leaves, record_value

Task: TypeAlias = tuple[str, str, str]
"""(request, answer, reasoning)."""


def copying(draw: Draw) -> Example:
    """Draw a task whose answer consists of the prompt's own words."""
    user, answer, reasoning = draw.pick(_TASKS)(draw)
    check = Check("exact", answer)
    return draw.example("copying", user, answer, check, reasoning=reasoning, thinking=0.2)


def sentence(draw: Draw) -> str:
    """Return a made-up sentence of everyday or invented words."""
    style = draw.whole(0, 3)
    if style == 0:
        words = [draw.word() for _ in range(draw.whole(3, 10))]
        return " ".join(words).capitalize() + "."
    if style == 1:
        return f"{draw.first_name()} {draw.pick(names.VERBS)} the {draw.noun()}."
    who = (
        draw.first_name()
        if draw.chance(0.5)
        else f"The {draw.pick(names.ADJECTIVES)} {draw.noun()}"
    )
    end = draw.pick((".", ".", "!", f" {draw.pick(names.PLACES_AROUND)}."))
    return f"{who} {draw.pick(names.VERBS)} a {draw.pick(names.ADJECTIVES)} {draw.noun()}{end}"


def _items(draw: Draw, low: int, high: int) -> list[str]:
    count = draw.whole(low, high)
    style = draw.whole(0, 4)
    if style == 0:
        return [draw.word() for _ in range(count)]
    if style == 1:
        return [draw.code() for _ in range(count)]
    if style == 2:
        return draw.sample(names.NOUNS, count)
    if style == 3:
        return [draw.full_name() if draw.chance(0.3) else draw.title() for _ in range(count)]
    members = KINDS[draw.pick(tuple(KINDS))][1]
    return draw.sample(members, count)


def _passage(draw: Draw) -> str:
    style = draw.whole(0, 5)
    if style <= 2:
        return " ".join(sentence(draw) for _ in range(draw.pick((1, 1, 2, 3, 4, 6))))
    if style == 3:
        return " ".join(draw.code() for _ in range(draw.whole(1, 8)))
    if style == 4:
        return json.dumps(record_value(draw_record(draw, 1, 5)), ensure_ascii=False)
    return "\n".join(sentence(draw) for _ in range(draw.whole(2, 5)))


def _repeat(draw: Draw) -> Task:
    text = _passage(draw)
    ask = draw.pick(
        (
            "Repeat this text:\n{text}",
            "Repeat exactly: {text}",
            "Copy the following:\n\n{text}",
            "Say this again: {text}",
            "Echo: {text}",
            "Repeat after me: {text}",
            "Say: {text}",
            'Repeat "{text}" without the quotes.',
            "Write the same text once more.\n{text}",
            "{text}\n\nRepeat the text above.",
            "Output the following text unchanged:\n{text}",
        )
    )
    return ask.format(text=text), text, "I repeat the text."


def _times(draw: Draw) -> Task:
    word, count = draw.pick((draw.word(), draw.noun(), draw.code())), draw.whole(2, 5)
    user = f"Write {word} {count} times, separated by spaces."
    return user, " ".join([word] * count), f"{word}, {count} times."


def _relist(draw: Draw) -> Task:
    items = _items(draw, 2, draw.pick((5, 8, 8, 20)))
    given = draw.pick((", ", "; ", "\n"))
    text = given.join(items)
    wanted, how = draw.pick(
        (
            ("- {}", "as a bulleted list with dashes"),
            ("* {}", "as a list with stars"),
            ("{}", "one per line"),
            ("{n}. {}", "as a numbered list"),
        )
    )
    answer = "\n".join(wanted.format(item, n=i) for i, item in enumerate(items, 1))
    user = draw.pick(
        (f"Write these {how}: {text}", f"Format {how}:\n{text}", f"{text}\nList them {how}.")
    )
    return user, answer, f"There are {len(items)} items."


def _join(draw: Draw) -> Task:
    items = _items(draw, 2, 8)
    separator, how = draw.pick(
        ((", ", "commas"), (" | ", "bars"), ("; ", "semicolons"), (" ", "spaces"))
    )
    lines = "\n".join(f"{draw.pick(('- ', ''))}{item}" for item in items)
    return f"Join these lines with {how}:\n{lines}", separator.join(items), "I join the lines."


_LOWER_KINDS = ("fruit", "vegetable", "animal", "tree", "bird", "sport", "profession", "tool")


def _sort(draw: Draw) -> Task:
    if draw.chance(0.3):
        numbers = draw.sample(range(draw.pick((20, 100, 1000))), draw.whole(3, 6))
        down = draw.chance(0.3)
        answer = ", ".join(str(number) for number in sorted(numbers, reverse=down))
        order = "from large to small" if down else draw.pick(("in ascending order", "by size"))
        given = ", ".join(str(number) for number in numbers)
        return f"Sort these numbers {order}: {given}", answer, f"In order: {answer}."
    words: list[str] = []
    pool = names.NOUNS if draw.chance(0.6) else KINDS[draw.pick(_LOWER_KINDS)][1]
    for noun in draw.shuffled(pool):
        if noun[0] not in {word[0] for word in words}:
            words.append(noun)
        if len(words) == 6:
            break
    words = words[: draw.whole(3, 6)]
    ask = draw.pick(
        (
            "Sort these words alphabetically: {}",
            "Put the words in alphabetical order: {}",
            "Order from A to Z: {}",
            "Sort: {}",
            "Sort this list: {}",
            "Alphabetical order, please: {}",
        )
    )
    answer = ", ".join(sorted(words))
    return ask.format(", ".join(words)), answer, f"From A to Z: {answer}."


def _reverse(draw: Draw) -> Task:
    items = _items(draw, 2, 6)
    user = draw.pick(
        ("Reverse this list: {}", "Write the list backwards: {}", "In reverse order: {}")
    )
    return user.format(", ".join(items)), ", ".join(reversed(items)), "From the last to the first."


def _nth(draw: Draw) -> Task:
    items = list(dict.fromkeys(_items(draw, 3, 7)))
    places = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")
    index = draw.whole(0, len(items) - 1)
    place = places[index]
    if index == len(items) - 1 and draw.chance(0.6):
        place = "last"
    user = draw.pick((f"What is the {place} item of {{}}?", f"List: {{}}\nGive the {place} item."))
    return user.format(", ".join(items)), items[index], f"The {place} item is {items[index]}."


def _count(draw: Draw) -> Task:
    items = list(dict.fromkeys(_items(draw, 2, 9)))
    counted = ", ".join(f"{i} {item}" for i, item in enumerate(items, 1))
    user = draw.pick(("How many items are in this list? {}", "Count the items: {}"))
    return user.format(", ".join(items)), str(len(items)), f"I count: {counted}."


def _replace(draw: Draw) -> Task:
    old, new = draw.first_name(), draw.first_name()
    thing = draw.noun()
    text = f"{old} {draw.pick(names.VERBS)} a {draw.pick(names.ADJECTIVES)} {thing}"
    text += draw.pick(
        (".", f" {draw.pick(names.PLACES_AROUND)}.", f" and {sentence(draw).lower()}")
    )
    if draw.chance(0.4):
        other = draw.pick((draw.word(), draw.noun()))
        user = f'Replace "{thing}" with "{other}": {text}'
        return user, text.replace(thing, other), f"{other} takes the place of {thing}."
    user = draw.pick(
        (f"Replace {old} with {new}: {text}", f"{text}\nWrite this with {new} in place of {old}.")
    )
    return user, text.replace(old, new), f"{new} takes the place of {old}."


def _fill(draw: Draw) -> Task:
    name, thing, place = draw.first_name(), draw.noun(), draw.place()
    form = draw.pick(
        (
            "Dear {name}, your {thing} is in {place}.",
            "{name} bought a {thing} in {place}.",
            "To: {name}\nItem: {thing}\nPlace: {place}",
            "The {thing} from {place} belongs to {name}.",
        )
    )
    values = f"name = {name}, thing = {thing}, place = {place}"
    user = draw.pick(
        (f"Fill in the form.\n{form}\n{values}", f"Template: {form}\nValues: {values}")
    )
    return user, form.format(name=name, thing=thing, place=place), f"The values are {values}."


def _spell(draw: Draw) -> Task:
    word = draw.noun() if draw.chance(0.7) else draw.pick(names.FIRST_NAMES).lower()
    answer = "-".join(word)
    return f"Spell the word {word} with dashes.", answer, "Letter by letter."


def _case(draw: Draw) -> Task:
    words = [draw.noun() for _ in range(draw.whole(1, 4))]
    if draw.chance(0.5):
        text = " ".join(words)
        user = draw.pick((f"Write in capital letters: {text}", f"Convert to upper case: {text}"))
        return user, text.upper(), "In capitals."
    text = " ".join(word.upper() for word in words)
    user = draw.pick((f"Write in small letters: {text}", f"Convert to lower case: {text}"))
    return user, text.lower(), "In small letters."


def _counting(draw: Draw) -> Task:
    low, count = draw.whole(0, draw.pick((1, 1, 20, 90))), draw.whole(2, draw.pick((10, 20, 40)))
    numbers = [str(number) for number in range(low, low + count)]
    down = draw.chance(0.2)
    if down:
        numbers.reverse()
    separator, how = draw.pick(
        ((", ", ""), (" ", ", separated by spaces"), ("\n", ", one per line"))
    )
    if low == 1 and count <= 20 and not down and draw.chance(0.5):
        to = number_in_words(count) if draw.chance(0.5) else str(count)
        return f"Count to {to}{how}.", separator.join(numbers), f"From 1 to {count}."
    verb = draw.pick(("Count", "Write the numbers", "List the numbers"))
    user = f"{verb} from {numbers[0]} to {numbers[-1]}{how}."
    return user, separator.join(numbers), f"From {numbers[0]} to {numbers[-1]}."


def _all_of(draw: Draw) -> Task:
    kind = draw.pick(("planet", "month", "day of the week", "season", "continent"))
    plural, members = KINDS[kind]
    separator, how = draw.pick(((", ", ""), ("\n", " One per line.")))
    user = draw.pick(
        (
            f"List all {plural} in order.",
            f"Name all the {plural} in order.",
            f"List the {plural}.",
            f"Write down all {plural}.",
        )
    )
    user += how
    return user, separator.join(members), f"There are {len(members)} {plural}."


def _program(draw: Draw, name: str) -> str:
    first, second = draw.plain_word(), draw.plain_word()
    number, sign = draw.number(), draw.pick("+-*/")
    return draw.pick(
        (
            f"def {name}({first}, {second}):\n    return {first} {sign} {second}",
            f"def {name}({first}):\n    {second} = {first} {sign} {number}\n    return {second}",
            f"for {name} in range({number}):\n    print({name} {sign} {second})",
            f"if {name} > {number}:\n    {first} = {name}\nelse:\n    {first} = {second}",
            f"let {name} = {number};\nconsole.log({name} {sign} {first});",
            f"{name} = [{number}, {first}, {second}]\nfor {first} in {name}:\n    print({first})",
            f'class {name}:\n    {first} = "{second}"\n    {second} = {number}',
            f"SELECT {first}, {second} FROM {name} WHERE {first} > {number};",
        )
    )


def _code(draw: Draw) -> Task:
    name = draw.plain_word()
    code = _program(draw, name)
    if draw.chance(0.5):
        ask = draw.pick(
            ("Repeat this code:\n{}", "Copy the code.\n{}", "{}\n\nWrite the code again.")
        )
        return ask.format(code), code, "I repeat the code."
    new = draw.plain_word()
    answer = re.sub(rf"\b{name}\b", new, code)
    ask = draw.pick(
        (
            f"Rename {name} to {new} in this code:\n{{}}",
            f"{{}}\n\nWrite the code with {new} in place of {name}.",
        )
    )
    return ask.format(code), answer, f"{new} takes the place of {name}."


def _value(draw: Draw) -> Task:
    fields = draw_record(draw, 2, 7, nested=False)
    value = json.dumps(record_value(fields), ensure_ascii=False)
    chosen = draw.pick(
        [f for f in leaves(fields) if isinstance(f.value, (str, int, float))] or fields
    )
    answer = chosen.value if isinstance(chosen.value, str) else json.dumps(chosen.value)
    user = draw.pick(
        (
            f"{value}\nWhat is the value of {chosen.key}?",
            f'Give the value of "{chosen.key}": {value}',
        )
    )
    return user, str(answer), f"{chosen.key} is {answer}."


def _table(draw: Draw) -> Task:
    keys = [draw.word() for _ in range(draw.whole(2, 3))]
    rows = [
        [draw.title() if i else draw.code() for i, _ in enumerate(keys)]
        for _ in range(draw.whole(1, 4))
    ]
    text = "\n".join(",".join(row) for row in [keys, *rows])
    value = [dict(zip(keys, row, strict=True)) for row in rows]
    user = draw.pick(
        ("Convert this CSV to a JSON array of objects:\n{}", "{}\nAs JSON array of objects.")
    )
    return user.format(text), json.dumps(value), f"The columns are {', '.join(keys)}."


_TASKS: tuple[Callable[[Draw], Task], ...] = (
    _repeat,
    _repeat,
    _repeat,
    _repeat,
    _times,
    _relist,
    _relist,
    _join,
    _sort,
    _sort,
    _reverse,
    _nth,
    _count,
    _replace,
    _fill,
    _spell,
    _case,
    _counting,
    _all_of,
    _code,
    _code,
    _value,
    _table,
)
