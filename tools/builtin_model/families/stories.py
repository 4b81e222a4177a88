"""The stories of word problems: text, working and result."""

from collections.abc import Callable
from dataclasses import dataclass

from builtin_model.families import names
from builtin_model.families.arithmetic import (
    added,
    divided,
    multiplied,
    multiplied_long,
    subtracted,
)
from builtin_model.families.draw import Draw


@dataclass(frozen=True)
class Problem:
    """A story with its question, the working, the result, and a sentence that states it."""

    text: str
    working: str
    result: int
    sentence: str


_GAINS = (
    "{who} gets {n} more.",
    "{who} buys {n} more.",
    "{who} finds {n} more.",
    "Then {friend} gives {who} {n} {things}.",
    "{friend} brings another {n}.",
    "{who} receives {n} {things} as a present.",
    "{who} wins {n} more.",
    "{who} collects {n} {things}.",
    "{who} picks {n} more {things}.",
    "{who} makes {n} new ones.",
    "The next day {who} buys {n} {things}.",
    "{friend} gives {who} {n}.",
)
_LOSSES = (
    "{who} gives {n} to {friend}.",
    "{who} loses {n} of them.",
    "{who} sells {n}.",
    "Then {n} of the {things} are given away.",
    "{friend} takes {n} {things}.",
    "{who} throws {n} away.",
    "{who} eats {n}.",
    "{who} uses {n} of them.",
    "{who} breaks {n}.",
    "{who} drops {n} {things}.",
    "{n} of them get lost.",
    "{who} gives {n} {things} to {friend}.",
    "{who} leaves {n} at home.",
)


def _amount(draw: Draw) -> int:
    return draw.whole(2, draw.pick((20, 99, 99, 400, 999)))


def _changes(draw: Draw) -> Problem:
    who, friend = draw.two_names()
    things = draw.pick(names.THINGS)
    total = _amount(draw)
    opening = draw.pick(
        (
            "{who} has {n} {things}.",
            "{who} starts with {n} {things}.",
            "There are {n} {things} in {who}'s box.",
            "At first {who} owns {n} {things}.",
        )
    )
    parts = [opening.format(who=who, n=total, things=things)]
    lines = [f"Start: {total}."]
    for _ in range(draw.whole(1, 3)):
        if draw.chance(0.5) or total < 3:
            number = _amount(draw)
            parts.append(draw.pick(_GAINS).format(who=who, friend=friend, n=number, things=things))
            lines.append(f"More: {added(total, number)}")
            total += number
        else:
            number = draw.whole(1, total - 1)
            parts.append(draw.pick(_LOSSES).format(who=who, friend=friend, n=number, things=things))
            lines.append(f"Less: {subtracted(total, number)}")
            total -= number
    parts.append(
        draw.pick(
            (
                "How many {things} does {who} have now?",
                "How many {things} are left with {who}?",
                "How many {things} does {who} have in the end?",
                "How many are left?",
                "How many {things} are there now?",
            )
        ).format(who=who, things=things)
    )
    if parts[1].startswith(who) and draw.chance(0.5):
        parts[:2] = [f"{parts[0][:-1]} and {parts[1].removeprefix(who).strip()}"]
    return Problem(" ".join(parts), "\n".join(lines), total, f"{who} has {total} {things}.")


def _groups(draw: Draw) -> Problem:
    things = draw.pick(names.THINGS)
    holder = draw.pick(("boxes", "bags", "shelves", "baskets", "rows", "crates", "jars"))
    count, each = draw.whole(2, 9), draw.whole(2, draw.pick((12, 30, 99)))
    total = count * each
    text = draw.pick(
        (
            f"There are {count} {holder} with {each} {things} each.",
            f"{draw.first_name()} has {count} {holder}. Each holds {each} {things}.",
            f"A shop has {count} {holder} of {things}, {each} in each.",
        )
    )
    lines = [f"All: {multiplied(each, count)}"]
    if draw.chance(0.35):
        extra = draw.whole(1, 50)
        text += f" There are {extra} more {things} on the floor."
        lines.append(f"More: {added(total, extra)}")
        total += extra
    elif draw.chance(0.4):
        gone = draw.whole(1, total - 1)
        text += f" {gone} of the {things} are broken and thrown away."
        lines.append(f"Less: {subtracted(total, gone)}")
        total -= gone
    text += draw.pick((" How many {t} are there?", " How many {t} is that in all?")).format(
        t=things
    )
    return Problem(text, "\n".join(lines), total, f"There are {total} {things}.")


def _sharing(draw: Draw) -> Problem:
    things = draw.pick(names.THINGS)
    children, each = draw.whole(2, 9), draw.whole(2, draw.pick((12, 12, 99)))
    total = children * each
    group = draw.pick(("children", "friends", "players", "guests", "teams"))
    text = draw.pick(
        (
            f"{total} {things} are shared equally among {children} {group}.",
            f"{draw.first_name()} divides {total} {things} equally among {children} {group}.",
            f"{children} {group} share {total} {things} equally.",
        )
    )
    text += draw.pick((" How many does each get?", " How many {t} does each one get?")).format(
        t=things
    )
    return Problem(text, f"Each: {divided(total, children)}", each, f"Each gets {each} {things}.")


def _price(draw: Draw) -> Problem:
    who = draw.first_name()
    thing, price, count = draw.noun(), draw.whole(2, 60), draw.whole(2, 9)
    cost = price * count
    unit = draw.pick(("coins", "dollars", "euros", "pounds"))
    text = draw.pick(
        (
            f"A {thing} costs {price} {unit}. {who} buys {count} of them.",
            f"{who} buys {count} items at {price} {unit} each.",
            f"One {thing} is {price} {unit} and {who} takes {count}.",
        )
    )
    lines = [f"Cost: {multiplied(price, count)}"]
    if draw.chance(0.5):
        paid = cost + draw.whole(1, 99)
        text += f" {who} pays with {paid} {unit}. How many {unit} does {who} get back?"
        lines.append(f"Back: {subtracted(paid, cost)}")
        sentence = f"{who} gets {paid - cost} {unit} back."
        return Problem(text, "\n".join(lines), paid - cost, sentence)
    text += draw.pick((f" How many {unit} is that?", f" How much does {who} pay?"))
    return Problem(text, lines[0], cost, f"{who} pays {cost} {unit}.")


def _comparison(draw: Draw) -> Problem:
    first, second = draw.two_names()
    things = draw.pick(names.THINGS)
    own = _amount(draw)
    if draw.chance(0.5):
        difference = _amount(draw)
        text = f"{first} has {own} {things}. {second} has {difference} more than {first}."
        lines = [f"{second}: {added(own, difference)}"]
        other = own + difference
    else:
        difference = draw.whole(1, own - 1)
        text = f"{first} has {own} {things}. {second} has {difference} fewer than {first}."
        lines = [f"{second}: {subtracted(own, difference)}"]
        other = own - difference
    if draw.chance(0.5):
        text += f" How many {things} do they have together?"
        lines.append(f"Together: {added(own, other)}")
        sentence = f"Together they have {own + other} {things}."
        return Problem(text, "\n".join(lines), own + other, sentence)
    text += f" How many {things} does {second} have?"
    return Problem(text, lines[0], other, f"{second} has {other} {things}.")


def _reading(draw: Draw) -> Problem:
    who, pages, days = draw.first_name(), draw.whole(3, 60), draw.whole(2, 9)
    done = pages * days
    doing, unit, whole = draw.pick(
        (
            ("reads", "pages", "The book has"),
            ("walks", "kilometres", "The whole way is"),
            ("paints", "tiles", "The wall has"),
            ("plants", "trees", "The plan asks for"),
            ("solves", "puzzles", "The collection has"),
        )
    )
    text = f"{who} {doing} {pages} {unit} a day for {days} days."
    lines = [f"Done: {multiplied(pages, days)}"]
    if draw.chance(0.5):
        total = done + draw.whole(1, 200)
        text += f" {whole} {total} {unit}. How many {unit} are left?"
        lines.append(f"Left: {subtracted(total, done)}")
        return Problem(text, "\n".join(lines), total - done, f"{total - done} {unit} are left.")
    text += f" How many {unit} is that?"
    return Problem(text, lines[0], done, f"That is {done} {unit}.")


def _sums(draw: Draw) -> Problem:
    numbers = [_amount(draw) for _ in range(draw.whole(2, 4))]
    listed = ", ".join(str(number) for number in numbers[:-1]) + f" and {numbers[-1]}"
    total, lines = numbers[0], []
    for number in numbers[1:]:
        lines.append(added(total, number))
        total += number
    text = draw.pick(
        (
            f"Add {listed}.",
            f"What is the sum of {listed}?",
            f"What is {' + '.join(str(number) for number in numbers)}?",
            f"A shop sold {listed} items on {len(numbers)} days. How many items is that in all?",
        )
    )
    return Problem(text, "\n".join(lines), total, f"The sum is {total}.")


def _plain(draw: Draw) -> Problem:
    first, second = sorted((_amount(draw), _amount(draw)), reverse=True)
    ask = draw.pick(("What is {}?", "Calculate {}.", "Work out {}.", "{} = ?", "How much is {}?"))
    match draw.whole(0, 4):
        case 0:
            working, sign, result = added(first, second), "+", first + second
        case 1:
            working, sign, result = subtracted(first, second), "-", first - second
        case 2:
            second = draw.whole(2, 9)
            working, sign, result = multiplied(first, second), "*", first * second
        case 3:
            first, second = draw.whole(11, 99), draw.whole(11, 99)
            working, sign, result = multiplied_long(first, second), "*", first * second
        case _:
            second = draw.whole(2, 9)
            result = draw.whole(2, draw.pick((12, 99, 300)))
            first = second * result
            working, sign = divided(first, second), "/"
    gap = draw.pick((" ", " ", ""))
    text = ask.format(f"{first}{gap}{sign}{gap}{second}")
    return Problem(text, working, result, f"The result is {result}.")


def _ages(draw: Draw) -> Problem:
    first, second = draw.two_names()
    age, older, later = draw.whole(3, 60), draw.whole(1, 20), draw.whole(1, 15)
    text = f"{first} is {age} years old. {second} is {older} years older."
    lines = [f"{second}: {added(age, older)}"]
    if draw.chance(0.5):
        text += f" How old will {second} be in {later} years?"
        lines.append(f"Later: {added(age + older, later)}")
        result = age + older + later
        sentence = f"{second} will be {result} years old."
        return Problem(text, "\n".join(lines), result, sentence)
    result = age + older
    return Problem(f"{text} How old is {second}?", lines[0], result, f"{second} is {result}.")


def _multiples(draw: Draw) -> Problem:
    first, second = draw.two_names()
    things, own = draw.pick(names.THINGS), draw.whole(2, 120)
    word, factor = draw.pick((("twice", 2), ("three times", 3), ("four times", 4)))
    text = f"{first} has {own} {things}. {second} has {word} as many."
    lines = [f"{second}: {multiplied(own, factor)}"]
    result = own * factor
    if draw.chance(0.5):
        text += f" How many {things} do {first} and {second} have together?"
        lines.append(f"Together: {added(result, own)}")
        result += own
        sentence = f"Together they have {result} {things}."
        return Problem(text, "\n".join(lines), result, sentence)
    text += f" How many {things} does {second} have?"
    return Problem(text, lines[0], result, f"{second} has {result} {things}.")


def _rates(draw: Draw) -> Problem:
    speed, hours = draw.whole(3, 150), draw.whole(2, 9)
    who = draw.first_name()
    total = speed * hours
    text, question, sentence = draw.pick(
        (
            (
                f"A {draw.pick(('train', 'car', 'bus', 'ship'))} travels {speed} km per hour for "
                f"{hours} hours.",
                "How far does it go?",
                f"It goes {total} km.",
            ),
            (
                f"{who} earns {speed} dollars an hour and works {hours} hours.",
                f"How much does {who} earn?",
                f"{who} earns {total} dollars.",
            ),
            (
                f"{who} saves {speed} euros every week for {hours} weeks.",
                f"How many euros does {who} save?",
                f"{who} saves {total} euros.",
            ),
            (
                f"A machine makes {speed} parts per minute.",
                f"How many parts does it make in {hours} minutes?",
                f"It makes {total} parts.",
            ),
            (
                f"{speed} litres of water flow into a tank each minute.",
                f"How many litres are in it after {hours} minutes?",
                f"There are {total} litres in it.",
            ),
        )
    )
    return Problem(f"{text} {question}", f"All: {multiplied(speed, hours)}", total, sentence)


def _leftover(draw: Draw) -> Problem:
    who, things = draw.first_name(), draw.pick(names.THINGS)
    first, second = draw.whole(1, 40), draw.whole(1, 40)
    left, price = draw.whole(1, 60), draw.whole(2, 9)
    start = first + second + left
    text = draw.pick(
        (
            f"{who} has {start} {things}. {who} keeps {first}, gives {second} to friends and sells "
            f"the rest for {price} dollars each.",
            f"A shop gets {start} {things} a day. {first} are broken and {second} are given away. "
            f"The rest are sold for {price} dollars each.",
        )
    )
    lines = (
        f"Without the first: {subtracted(start, first)}",
        f"Without the second: {subtracted(start - first, second)}",
        f"Money: {multiplied(left, price)}",
    )
    total = left * price
    sentence = f"That makes {total} dollars."
    return Problem(f"{text} How many dollars is that?", "\n".join(lines), total, sentence)


def _two_goods(draw: Draw) -> Problem:
    who = draw.first_name()
    one, two = draw.sample(names.THINGS, 2)
    counts = draw.whole(2, 9), draw.whole(2, 9)
    prices = draw.whole(2, 30), draw.whole(2, 30)
    costs = counts[0] * prices[0], counts[1] * prices[1]
    unit = draw.pick(("coins", "dollars", "euros"))
    text = (
        f"{who} buys {counts[0]} {one} for {prices[0]} {unit} each and {counts[1]} {two} for "
        f"{prices[1]} {unit} each. How many {unit} is that in total?"
    )
    lines = (
        f"{one}: {multiplied(prices[0], counts[0])}",
        f"{two}: {multiplied(prices[1], counts[1])}",
        f"Total: {added(costs[0], costs[1])}",
    )
    total = sum(costs)
    return Problem(text, "\n".join(lines), total, f"{who} pays {total} {unit}.")


def _half(draw: Draw) -> Problem:
    who, things = draw.first_name(), draw.pick(names.THINGS)
    word, parts = draw.pick((("half", 2), ("a third", 3), ("a quarter", 4)))
    gone = draw.whole(2, 99)
    total = gone * parts
    text = f"{who} has {total} {things} and gives away {word} of them."
    lines = [f"Given: {divided(total, parts)}"]
    if draw.chance(0.6):
        text += f" How many {things} does {who} keep?"
        lines.append(f"Kept: {subtracted(total, gone)}")
        kept = total - gone
        return Problem(text, "\n".join(lines), kept, f"{who} keeps {kept} {things}.")
    text += f" How many {things} are given away?"
    return Problem(text, lines[0], gone, f"{who} gives away {gone} {things}.")


def _people(draw: Draw) -> Problem:
    place = draw.pick(("bus", "train", "museum", "theatre", "library", "boat"))
    total = draw.whole(5, 300)
    parts, lines = [f"There are {total} people in a {place}."], [f"Start: {total}."]
    for _ in range(draw.whole(1, 3)):
        stop = draw.pick(("Then", "Later", "At noon", "After an hour", "Next"))
        if draw.chance(0.5) or total < 3:
            number = draw.whole(1, 150)
            parts.append(f"{stop} {number} people come in.")
            lines.append(f"In: {added(total, number)}")
            total += number
        else:
            number = draw.whole(1, total - 1)
            parts.append(f"{stop} {number} people leave.")
            lines.append(f"Out: {subtracted(total, number)}")
            total -= number
    parts.append(f"How many people are in the {place} now?")
    return Problem(" ".join(parts), "\n".join(lines), total, f"There are {total} people.")


STORIES: tuple[Callable[[Draw], Problem], ...] = (
    _changes,
    _changes,
    _changes,
    _groups,
    _sharing,
    _price,
    _comparison,
    _reading,
    _sums,
    _plain,
    _plain,
    _ages,
    _multiples,
    _two_goods,
    _rates,
    _leftover,
    _half,
    _people,
)
