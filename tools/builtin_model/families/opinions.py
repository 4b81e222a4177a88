"""Sentences of praise, complaint and neutral report, composed of parts."""

from collections.abc import Sequence

from builtin_model.families.draw import Draw

_SUBJECTS = (
    "food|service|hotel|room|film|book|phone|game|staff|waiter|trip|music|price|show|coffee|meal|"
    "app|lesson|teacher|delivery|product|place|view|screen|battery|driver|soup|concert|story"
).split("|")
_GOOD = (
    "great|wonderful|excellent|friendly|delicious|perfect|lovely|amazing|beautiful|helpful|superb|"
    "fantastic|good|nice|brilliant|pleasant|fast|clean|warm|charming"
).split("|")
_BAD = (
    "terrible|awful|rude|cold|dirty|slow|boring|broken|horrible|bad|ugly|poor|useless|noisy|"
    "disappointing|late|stale|unfriendly|dreadful|nasty"
).split("|")
_GOOD_EVENTS = (
    "I will come again|we enjoyed every minute|I can only recommend it|everybody was smiling|"
    "it made my day|I would buy it again|we felt at home|it works like a charm|I love it|"
    "the children were happy|it was worth the money|we had so much fun|thank you so much"
).split("|")
_BAD_EVENTS = (
    "I will never come back|the waiter ignored us|it broke after a day|we waited for hours|"
    "I want my money back|nobody helped us|it was a waste of time|I hate it|we left early|"
    "it made me angry|I cannot recommend it|the children were crying|it never worked"
).split("|")
_PLAIN = (
    "it opens at nine|it is on the second floor|it weighs two kilograms|we arrived on Monday|"
    "it has four doors|there are three of them|it was built in 1990|the bus stops there|"
    "it comes in a box|it is made of wood|the menu has ten pages"
).split("|")
_PLAIN_WORDS = (
    "blue|square|on the left|in the city|made of paper|open on Sunday|near the park".split("|")
)


def praise(draw: Draw) -> str:
    """Return a sentence of praise."""
    return _sentence(draw, _GOOD, _GOOD_EVENTS)


def complaint(draw: Draw) -> str:
    """Return a sentence of complaint."""
    return _sentence(draw, _BAD, _BAD_EVENTS)


def report(draw: Draw) -> str:
    """Return a sentence without an opinion."""
    return _sentence(draw, _PLAIN_WORDS, _PLAIN)


def _sentence(draw: Draw, words: Sequence[str], events: Sequence[str]) -> str:
    subject, second = draw.sample(_SUBJECTS, 2)
    first, other = draw.sample(words, 2)
    event = draw.pick(events)
    text = draw.pick(
        (
            f"The {subject} was {first}.",
            f"The {subject} was {first} and the {second} was {other}.",
            f"The {subject} was {first} and {event}.",
            f"{event}, the {subject} was {first}.",
            f"{event}.",
            f"The {subject} is {first}, {event}.",
            f"{draw.first_name()} says the {subject} is {first}.",
            f"We found the {subject} {first}.",
        )
    )
    return text[0].upper() + text[1:]
