"""Pick something of a kind, one of given choices, several of them, or a number in a range."""

from builtin_model.families.draw import Draw
from builtin_model.families.example import Check, Example
from builtin_model.families.kinds import KINDS

_ONE = (
    "Specify a random {kind}.",
    "Name a random {kind}.",
    "Pick a random {kind}.",
    "Choose a {kind}.",
    "Name a {kind}.",
    "Give me a {kind}.",
    "Tell me a {kind}.",
    "Say the name of a {kind}.",
    "Think of a {kind} and write it down.",
    "I need a {kind}. Which one?",
    "Any {kind} will do. Name one.",
    "Suggest a {kind}.",
    "Can you name a {kind}?",
    "What is an example of a {kind}?",
    "Give one example of a {kind}.",
    "Write one {kind}.",
    "Random {kind}, please.",
    "One {kind}.",
    "Generate a random {kind}.",
)
_SEVERAL = (
    "Name {count} {kinds}.",
    "List {count} {kinds}.",
    "Give me {count} {kinds}.",
    "Tell me {count} different {kinds}.",
    "Write {count} random {kinds}.",
    "I need {count} {kinds}.",
    "Can you name {count} {kinds}?",
)
_CHOICES = (
    "Pick one of these: {choices}.",
    "Choose one: {choices}.",
    "Which one do you take: {choices}?",
    "Select one option from this list: {choices}",
    "Choose at random: {choices}.",
    "Decide: {choices}?",
    "Here are some options: {choices}. Pick one.",
    "Answer with one of: {choices}.",
)
_RANGE = (
    "Pick a number between {low} and {high}.",
    "Give me a random number from {low} to {high}.",
    "Name a whole number between {low} and {high}.",
    "Choose an integer from {low} to {high}.",
    "Random number, {low} to {high}.",
)
_WORDS = ("zero", "one", "two", "three", "four", "five", "six")


def article(text: str) -> str:
    """Replace "a" by "an" before vowels."""
    for vowel in "aeiou":
        text = text.replace(f" a {vowel}", f" an {vowel}")
    return text.replace("an uni", "a uni")


def pick(draw: Draw) -> Example:
    """Draw an example with several correct answers."""
    roll = draw.random.random()
    if roll < 0.55:
        return _one(draw)
    if roll < 0.7:
        return _several(draw)
    if roll < 0.9:
        return _choices(draw)
    return _range(draw)


def _one(draw: Draw) -> Example:
    kind = draw.pick(tuple(KINDS))
    members = KINDS[kind][1]
    answer = draw.pick(members)
    request = draw.polite(article(draw.pick(_ONE).format(kind=kind)))
    reasoning = draw.pick(
        (
            article(f"They want a {kind}. {answer} is one."),
            article(f"Any {kind} is fine. I take {answer}."),
            article(f"I should name a {kind}: {answer}."),
        )
    )
    check = Check("one_of", members)
    return draw.example("pick", request, answer, check, reasoning=reasoning)


def _several(draw: Draw) -> Example:
    kind = draw.pick([kind for kind, (_, members) in KINDS.items() if len(members) > 6])
    plural, members = KINDS[kind]
    count = draw.whole(2, 5)
    chosen = draw.sample(members, count)
    number = draw.pick((str(count), _WORDS[count]))
    request = draw.pick(_SEVERAL).format(count=number, kinds=plural)
    if draw.chance(0.35):
        request, separator = request + draw.pick((" One per line.", " Put each on a line.")), "\n"
    else:
        separator = ", "
    reasoning = f"I need {count} {plural}: {', '.join(chosen)}."
    check = Check("distinct", (members, count, separator))
    answer = separator.join(chosen)
    return draw.example("pick", draw.polite(request), answer, check, reasoning=reasoning)


def _choices(draw: Draw) -> Example:
    count = draw.whole(2, 6)
    if draw.chance(0.5):
        choices = draw.sample(KINDS[draw.pick(tuple(KINDS))][1], count)
    elif draw.chance(0.5):
        choices = [draw.title() for _ in range(count)]
    else:
        choices = [draw.code() for _ in range(count)]
    answer = draw.pick(choices)
    joined = ", ".join(choices)
    if draw.chance(0.4):
        joined = f"{', '.join(choices[:-1])} or {choices[-1]}"
    request = draw.pick(_CHOICES).format(choices=joined)
    if draw.chance(0.2):
        request = "Pick one of these.\n" + "\n".join(f"- {choice}" for choice in choices)
    reasoning = f"The options are {joined}. I take {answer}."
    check = Check("one_of", tuple(choices))
    return draw.example("pick", draw.polite(request), answer, check, reasoning=reasoning)


def _range(draw: Draw) -> Example:
    low = draw.whole(0, 50)
    high = low + draw.pick((9, 10, 19, 20, 49, 50, 90, draw.whole(3, 99)))
    answer = str(draw.whole(low, high))
    request = draw.polite(draw.pick(_RANGE).format(low=low, high=high))
    reasoning = f"Any number from {low} to {high} is fine: {answer}."
    check = Check("range", (low, high))
    return draw.example("pick", request, answer, check, reasoning=reasoning)
