"""Short facts from tables, and small sums."""

from collections.abc import Callable
from typing import TypeAlias

from builtin_model.families import facts_tables as tables
from builtin_model.families.draw import Draw
from builtin_model.families.example import Check, Example
from builtin_model.families.kinds import KINDS
from builtin_model.families.pick import article

Fact: TypeAlias = tuple[tuple[str, ...], str, tuple[str, ...], str]
"""(questions, answer, all correct answers, the fact as a sentence)."""

_PLANETS = KINDS["planet"][1]
_MONTHS = KINDS["month"][1]
_DAYS = KINDS["day of the week"][1]
_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
)


def facts(draw: Draw) -> Example:
    """Draw a question with one short answer."""
    questions, answer, right, sentence = draw.pick(_DRAWS)(draw)
    question = draw.polite(draw.pick(questions))
    if draw.chance(0.03):
        question = question.lower()
    reasoning = draw.pick(
        (sentence, f"{sentence} So the answer is {answer}.", f"I know: {sentence}")
    )
    if draw.chance(0.12):
        request = draw.pick(("Answer in a full sentence. ", "Use a full sentence: ")) + question
        check = Check("exact", sentence)
        return draw.example("facts", request, sentence, check, reasoning=reasoning, thinking=0.2)
    check = Check("one_of", right)
    return draw.example("facts", question, answer, check, reasoning=reasoning, thinking=0.25)


def _country(draw: Draw) -> Fact:
    country, capital, currency, language, continent = draw.pick(tables.COUNTRIES)
    plain = country.removeprefix("the ")
    match draw.pick((0, 0, 0, 0, 1, 2, 3, 4)):
        case 0:
            questions = (
                f"What is the capital of {country}?",
                f"Name the capital of {country}.",
                f"Which city is the capital of {country}?",
                f"Capital of {country}?",
                f"Tell me the capital city of {country}.",
                f"What's {plain}'s capital?",
            )
            return questions, capital, (capital,), f"The capital of {country} is {capital}."
        case 1:
            questions = (
                f"What is the currency of {country}?",
                f"Which currency is used in {country}?",
                f"What money do people pay with in {country}?",
            )
            return questions, currency, (currency,), f"The currency of {country} is the {currency}."
        case 2:
            questions = (
                f"What language is spoken in {country}?",
                f"Which language do people speak in {country}?",
                f"Name the main language of {country}.",
            )
            return (
                questions,
                language,
                (language,),
                f"The main language of {country} is {language}.",
            )
        case 3:
            questions = (
                f"On which continent is {country}?",
                f"Which continent does {country} belong to?",
                f"{plain} is on which continent?",
            )
            return questions, continent, (continent,), f"{plain} is in {continent}."
        case _:
            questions = (
                f"{capital} is the capital of which country?",
                f"Which country has {capital} as its capital?",
                f"Of which country is {capital} the capital?",
            )
            return questions, plain, (plain, country), f"{capital} is the capital of {country}."


def _element(draw: Draw) -> Fact:
    number = draw.whole(1, len(tables.ELEMENTS))
    name, symbol = tables.ELEMENTS[number - 1]
    match draw.whole(0, 2):
        case 0:
            questions = (
                f"What is the chemical symbol of {name}?",
                f"Chemical symbol for {name}?",
                f"Which symbol does {name} have?",
            )
            return questions, symbol, (symbol,), f"The symbol of {name} is {symbol}."
        case 1:
            questions = (
                f"What is the atomic number of {name}?",
                f"Which atomic number does {name} have?",
            )
            return (
                questions,
                str(number),
                (str(number),),
                f"The atomic number of {name} is {number}.",
            )
        case _:
            questions = (
                f"Which element has the symbol {symbol}?",
                f"What element does {symbol} stand for?",
            )
            return questions, name, (name,), f"{symbol} is the symbol of {name}."


def _animal(draw: Draw) -> Fact:
    name, young, _, legs, group = draw.pick(tables.ANIMALS)
    match draw.whole(0, 2):
        case 0:
            questions = (
                article(f"What is a young {name} called?"),
                article(f"What do you call a baby {name}?"),
            )
            return questions, young, (young,), article(f"The young of a {name} is a {young}.")
        case 1:
            questions = (
                article(f"How many legs does a {name} have?"),
                f"Number of legs of {'an' if name[0] in 'aeiou' else 'a'} {name}?",
            )
            return questions, legs, (legs,), f"The number of legs of the {name} is {legs}."
        case _:
            questions = (
                article(f"Is a {name} a mammal, a bird, an insect or an amphibian?"),
                article(f"To which class of animals does a {name} belong?"),
            )
            return questions, group, (group,), article(f"The {name} is a kind of {group}.")


def _opposite(draw: Draw) -> Fact:
    pair = draw.shuffled(draw.pick(tables.OPPOSITES))
    word, other = pair
    right = tuple((b if a == word else a) for a, b in tables.OPPOSITES if word in (a, b))
    questions = (
        f"What is the opposite of {word}?",
        f"Opposite of {word}?",
        f'Give the opposite of "{word}".',
        f"Which word means the opposite of {word}?",
        f"What is the antonym of {word}?",
    )
    return questions, other, right, f"The opposite of {word} is {other}."


def _mix(draw: Draw) -> Fact:
    first, second, result = draw.pick(tables.MIXES)
    if draw.chance(0.5):
        first, second = second, first
    questions = (
        f"Which colour do you get from {first} and {second}?",
        f"What colour do {first} and {second} make?",
        f"Mix {first} and {second}. Which colour results?",
    )
    return questions, result, (result,), f"Mixing {first} and {second} gives {result}."


def _form(draw: Draw) -> Fact:
    if draw.chance(0.5):
        word, form = draw.pick(tables.PAST)
        kind = "past tense"
    else:
        word, form = draw.pick(tables.PLURALS)
        kind = "plural"
    questions = (
        f"What is the {kind} of {word}?",
        f'Give the {kind} of "{word}".',
        f"{kind.capitalize()} of {word}?",
    )
    return questions, form, (form,), f"The {kind} of {word} is {form}."


def _translation(draw: Draw) -> Fact:
    row = draw.pick(tables.TRANSLATIONS)
    index = draw.whole(1, 3)
    language = ("English", "French", "German", "Spanish")[index]
    questions = (
        f'Translate "{row[0]}" into {language}.',
        f"What is {row[0]} in {language}?",
        f"How do you say {row[0]} in {language}?",
    )
    return questions, row[index], (row[index],), f"In {language}, {row[0]} is {row[index]}."


def _order(draw: Draw) -> Fact:
    names, what = draw.pick(((_PLANETS, "planet"), (_MONTHS, "month"), (_DAYS, "day of the week")))
    place = draw.whole(0, len(names) - 1)
    answer = names[place]
    ordinal = _ORDINALS[place]
    if what == "planet":
        questions = (
            f"Which planet is the {ordinal} from the sun?",
            f"What is the {ordinal} planet from the sun?",
        )
        return questions, answer, (answer,), f"The {ordinal} planet is {answer}."
    if draw.chance(0.4):
        of_what = "the year" if what == "month" else "the week"
        questions = (
            f"What is the {ordinal} {what.split()[0]} of {of_what}?",
            f"Name the {ordinal} {what.split()[0]} of {of_what}.",
        )
        return questions, answer, (answer,), f"The {ordinal} {what.split()[0]} is {answer}."
    step = draw.pick((-1, 1))
    other = names[(place - step) % len(names)]
    relation = "after" if step > 0 else "before"
    questions = (
        f"Which {what.split()[0]} comes {relation} {other}?",
        f"What comes {relation} {other}?",
        f"Name the {what.split()[0]} {relation} {other}.",
    )
    return questions, answer, (answer,), f"{answer} comes {relation} {other}."


def _number_words(draw: Draw) -> Fact:
    number = draw.whole(0, 99)
    words = tables.number_in_words(number)
    if draw.chance(0.5):
        questions = (
            f"Write {number} in words.",
            f"Spell out the number {number}.",
            f"How is {number} written in words?",
        )
        return questions, words, (words,), f"{number} in words is {words}."
    questions = (
        f"Write {words} in digits.",
        f"Which number is {words}?",
        f"Write the number {words} as digits.",
    )
    return questions, str(number), (str(number),), f"In digits, {words} is {number}."


def _sum(draw: Draw) -> Fact:
    sign = draw.pick("+-*/")
    if sign == "+":
        first, second = draw.whole(0, 20), draw.whole(0, 20)
        result = first + second
    elif sign == "-":
        second, result = draw.whole(0, 15), draw.whole(0, 15)
        first = second + result
    elif sign == "*":
        first, second = draw.whole(0, 12), draw.whole(0, 12)
        result = first * second
    else:
        second, result = draw.whole(1, 12), draw.whole(1, 12)
        first = second * result
    spoken = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[sign]
    questions = (
        f"What is {first} {sign} {second}?",
        f"{first} {sign} {second} =",
        f"What is {first} {spoken} {second}?",
        f"Calculate {first} {sign} {second}.",
        f"{first}{sign}{second}?",
        f"How much is {first} {spoken} {second}?",
    )
    return questions, str(result), (str(result),), f"{first} {sign} {second} = {result}."


def _known(draw: Draw) -> Fact:
    question, answer = draw.pick(tables.SINGLE_FACTS)
    questions = (question, question, f"{question} One answer.", f"Tell me: {question}")
    return questions, answer, (answer, answer.removeprefix("the ")), f"It is {answer}."


_DRAWS: tuple[Callable[[Draw], Fact], ...] = (
    _country,
    _country,
    _country,
    _country,
    _element,
    _animal,
    _opposite,
    _mix,
    _form,
    _form,
    _translation,
    _order,
    _number_words,
    _sum,
    _sum,
    _sum,
    _known,
    _known,
)
