"""Classify a text into labels that the prompt lists."""

import json
from typing import TypeAlias

from builtin_model.families.draw import Draw
from builtin_model.families.example import Check, Example
from builtin_model.families.kinds import KINDS
from builtin_model.families.opinions import complaint, praise, report

_TOPICS: dict[str, tuple[str, ...]] = {
    "sports": (
        "{name} scored twice and the team won the match.",
        "The players trained hard before the final game.",
        "The tennis coach praised {name} after the tournament.",
        "{name} ran the marathon in three hours.",
    ),
    "food": (
        "{name} baked a cake with fresh berries.",
        "The soup at the restaurant was full of herbs.",
        "Boil the pasta and add some cheese.",
        "{name} likes bread with butter and honey.",
    ),
    "weather": (
        "Heavy rain is expected in {place} tomorrow.",
        "It will be sunny with a light wind.",
        "The storm brought snow to {place}.",
        "Fog covers {place} this morning.",
    ),
    "technology": (
        "The new phone has a faster processor.",
        "{name} wrote a program that sorts files.",
        "The update fixes a bug in the software.",
        "The laptop needs a bigger battery.",
    ),
    "travel": (
        "{name} booked a flight to {place}.",
        "The hotel in {place} has a view of the sea.",
        "We took the train and visited {place}.",
        "Bring your passport for the trip to {place}.",
    ),
    "music": (
        "The band played three songs from the album.",
        "{name} practises the violin every day.",
        "The concert in {place} was sold out.",
        "The choir sang and {name} played the piano.",
    ),
    "health": (
        "The doctor told {name} to rest for a week.",
        "{name} took the medicine for a cold.",
        "Sleep and exercise keep the body well.",
        "The hospital in {place} hired ten nurses.",
    ),
    "money": (
        "The bank raised its interest rate.",
        "{name} paid the bill and saved the rest.",
        "The price of shares fell on Friday.",
        "The loan for {name} was approved.",
    ),
    "animals": (
        "The cat slept while the dog barked.",
        "{name} saw two foxes near {place}.",
        "The zoo in {place} has a new elephant.",
        "A bird built its nest in the tree.",
    ),
    "school": (
        "The teacher gave {name} extra homework.",
        "The pupils wrote an exam in history.",
        "{name} studies for the lesson on Monday.",
        "The class in {place} learns to read.",
    ),
}
_POSITIVE = (
    "I love this {noun}, it works perfectly.|The {noun} is wonderful and {name} is very happy.|"
    "Great service, I will come back to {place}.|What a beautiful {noun}!|"
    "{name} was friendly and helpful.|The best {noun} I have ever had.|Excellent quality, thank you."
).split("|")
_NEGATIVE = (
    "I hate this {noun}, it broke after a day.|The {noun} is terrible and {name} is angry.|"
    "Awful service, never again in {place}.|What an ugly {noun}!|"
    "{name} was rude and slow.|The worst {noun} I have ever had.|Poor quality, I want my money back."
).split("|")
_NEUTRAL = (
    "The {noun} arrived on Tuesday.|{name} bought a {noun} in {place}.|The {noun} is in the box.|"
    "The shop in {place} opens at nine.|This {noun} weighs two kilograms.|{name} sent a message."
).split("|")
_URGENT = (
    "The server is down, fix it now!|Emergency: {name} needs help at once.|"
    "Reply immediately, the deadline is today.|There is smoke near the {noun}, hurry!"
).split("|")
_CALM = (
    "Take your time with the {noun}.|No hurry, next month is fine.|"
    "{name} will look at it some day.|Whenever you are free, send the {noun}."
).split("|")
_SPAM = (
    "You won a free {noun}! Click here now.|Cheap pills, limited offer!!!|"
    "Claim your prize of 5000 dollars today.|Congratulations, you are our lucky winner!"
).split("|")
_HAM = (
    "Hi {name}, are we still meeting at noon?|The report about {place} is attached.|"
    "Thanks for the {noun} you sent me.|Can you call {name} about the {noun}?"
).split("|")
_QUESTIONS = "Where is the {noun}?|Did {name} arrive?|How far is {place}?|Who took the {noun}?"
_COMMANDS = "Close the {noun}.|Bring me the {noun}.|Go to {place}.|Call {name} now."
_STATEMENTS = "The {noun} is red.|{name} lives in {place}.|It rained all day.|We saw {name}."

Group: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""(names a label may have, texts of the class)."""

_GROUPS: tuple[tuple[Group, ...], ...] = (
    (
        (("positive", "good", "happy", "POSITIVE"), tuple(_POSITIVE)),
        (("negative", "bad", "unhappy", "NEGATIVE"), tuple(_NEGATIVE)),
    ),
    (
        (("positive", "good"), tuple(_POSITIVE)),
        (("negative", "bad"), tuple(_NEGATIVE)),
        (("neutral", "neither"), tuple(_NEUTRAL)),
    ),
    (
        (("urgent", "high priority"), tuple(_URGENT)),
        (("not urgent", "low priority"), tuple(_CALM)),
    ),
    ((("spam", "junk"), tuple(_SPAM)), (("not spam", "ham", "genuine"), tuple(_HAM))),
    (
        (("question",), tuple(_QUESTIONS.split("|"))),
        (("command", "request"), tuple(_COMMANDS.split("|"))),
        (("statement",), tuple(_STATEMENTS.split("|"))),
    ),
)
_ASK = (
    "Classify the text as one of: {labels}.\n\nText: {text}",
    "Labels: {labels}\nText: {text}\nLabel:",
    "{text}\n\nWhich label fits: {labels}?",
    "Which of these labels describes the text? {labels}\n\n{text}",
    "Assign one label ({labels}) to this text: {text}",
    'Is "{text}" {labels}?',
    "Is the following text {labels}? {text}",
    "Is this message {labels}?\n{text}",
    "Is the review {labels}? '{text}'",
    "Choose from {labels}.\n{text}",
    "Categories: {labels}. Category of the following?\n{text}",
)
_SYSTEM = (
    "You are a classifier. Answer with one of these labels: {labels}.",
    "Classify each message. Labels: {labels}. Output the label only.",
    "Allowed answers: {labels}.",
)


def classify(draw: Draw) -> Example:
    """Draw a text and labels; the answer is the label, alone or in a JSON object."""
    roll = draw.random.random()
    if roll < 0.4:
        topics = draw.sample(tuple(_TOPICS), draw.whole(2, 6))
        groups = [((topic,), _TOPICS[topic]) for topic in topics]
    elif roll < 0.8:
        groups = list(draw.shuffled(draw.pick(_GROUPS)))
    else:
        kinds = draw.sample(
            [k for k in KINDS if k not in ("color", "first name")], draw.whole(2, 5)
        )
        groups = [((kind,), KINDS[kind][1]) for kind in kinds]
    variant = draw.whole(0, 3)
    labels = [names[variant % len(names)] for names, _ in groups]
    which = draw.whole(0, len(groups) - 1)
    text = draw.pick(groups[which][1])
    opinion = {_POSITIVE[0]: praise, _NEGATIVE[0]: complaint, _NEUTRAL[0]: report}
    written = opinion.get(groups[which][1][0])
    if written is not None and draw.chance(0.75):
        text = written(draw)
    if roll >= 0.8:
        clash = [
            label for label, (_, members) in zip(labels, groups, strict=True) if text in members
        ]
        accepted = tuple(clash)
    else:
        text = text.format(name=draw.first_name(), place=draw.place(), noun=draw.noun())
        accepted = (labels[which],)
    prefix = ""
    if roll < 0.8 and draw.chance(0.3):
        marks = draw.sample("ABCDEFGH", len(labels)) if draw.chance(0.5) else None
        codes = marks or [draw.word() for _ in labels]
        form = draw.pick(("{code} = {label}\n", "{code}: {label}\n", "{label} -> {code}\n"))
        pairs = zip(codes, labels, strict=True)
        prefix = "".join(form.format(code=code, label=label) for code, label in pairs)
        accepted, named = (codes[which],), labels[which]
        return _asked(draw, text, list(codes), codes[which], accepted, prefix, named)
    return _asked(draw, text, labels, labels[which], accepted, prefix, labels[which])


def _asked(
    draw: Draw,
    text: str,
    labels: list[str],
    label: str,
    accepted: tuple[str, ...],
    prefix: str,
    meaning: str,
) -> Example:
    separator = draw.pick((", ", ", ", " / ", " | "))
    joined = separator.join(labels)
    if separator == ", " and draw.chance(0.4):
        joined = f"{', '.join(labels[:-1])} or {labels[-1]}"
    reasoning = draw.pick(
        (f"This is about {meaning}.", f"The text fits {meaning}.", f"It is {meaning}.")
    )
    if meaning != label:
        reasoning += f" The label is {label}."
    system = None
    if draw.chance(0.3):
        system, user = draw.pick(_SYSTEM).format(labels=joined), text
        system += f"\n{prefix.rstrip()}" if prefix else ""
    else:
        user = prefix + draw.pick(_ASK).format(labels=joined, text=text)
    if draw.chance(0.12):
        key = draw.pick(("label", "class", "category", "result"))
        user += f'\nAnswer as JSON with the key "{key}".'
        answer = json.dumps({key: label}, ensure_ascii=False)
        check = Check("json", {key: label}) if len(accepted) == 1 else Check("contains", (key,))
        return draw.example("classify", user, answer, check, reasoning=reasoning, system=system)
    check = Check("one_of", accepted)
    return draw.example("classify", user, label, check, reasoning=reasoning, system=system)
