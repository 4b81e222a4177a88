"""Sentences about people, products, events, companies and pets.

Promises: every requested field is stated in the text; the text may state more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from builtin_model.families.draw import Draw
from builtin_model.families.records import Field

_STRING: dict[str, Any] = {"type": "string"}
_INTEGER: dict[str, Any] = {"type": "integer"}
_NUMBER: dict[str, Any] = {"type": "number"}
_BOOLEAN: dict[str, Any] = {"type": "boolean"}
_STRINGS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
_HOBBIES = (
    "chess hiking reading cooking tennis football swimming painting fishing dancing gardening "
    "cycling music films travel photography knitting skiing yoga running"
).split()
_JOBS = (
    "teacher doctor baker pilot engineer painter nurse chef farmer lawyer writer driver plumber "
    "carpenter programmer student waiter gardener tailor dentist"
).split()
_LANGUAGES = "English French German Spanish Italian Dutch Polish Arabic Hindi Japanese".split()
_COLOURS = "red blue green yellow black white brown grey orange purple silver".split()


@dataclass(frozen=True)
class Facet:
    """A stated fact: possible keys, value, schema, and clauses that state it."""

    keys: tuple[str, ...]
    value: Any
    schema: dict[str, Any]
    clause: str
    first_person: str = ""

    def field(self, key: str) -> Field:
        """Return the fact as a field of a record."""
        kind = {"array": "strings"}.get(self.schema["type"], self.schema["type"])
        return Field(key, kind, self.value, self.schema)


@dataclass(frozen=True)
class Theme:
    """A subject with a name, and facts about it."""

    noun: str
    name: Facet
    facets: tuple[Facet, ...]


@dataclass(frozen=True)
class Profile:
    """A text, its subject as a noun phrase, and the requested fields."""

    text: str
    phrase: str
    fields: tuple[Field, ...]
    phrase_fields: tuple[Field, ...]


def joined(parts: Sequence[str]) -> str:
    """Join parts with commas and a final "and"."""
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _person(draw: Draw) -> Theme:
    age, city, job = draw.whole(1, 99), draw.place(), draw.pick(_JOBS)
    hobbies = draw.sample(_HOBBIES, draw.whole(1, 3))
    tongues = draw.sample(_LANGUAGES, draw.whole(1, 3))
    mail, day, married = draw.email(), draw.date(), draw.chance(0.5)
    tall, children, colour = draw.whole(120, 210), draw.whole(1, 6), draw.pick(_COLOURS)
    phone = f"{draw.whole(100, 999)}-{draw.whole(1000, 9999)}"
    article = "an" if job[0] in "aeiou" else "a"
    marital = "married" if married else "not married"
    name = Facet(("name", "full_name", "person", "user"), draw.full_name(), _STRING, "")
    if draw.chance(0.4):
        name = Facet(("name", "first_name", "username"), draw.first_name(), _STRING, "")
    facets = (
        Facet(("age", "years"), age, _INTEGER, f"is {age} years old", f"am {age} years old"),
        Facet(("age",), age, _INTEGER, f"is {age}", f"am {age}"),
        Facet(
            ("city", "town", "location", "home", "residence"),
            city,
            _STRING,
            f"lives in {city}",
            f"live in {city}",
        ),
        Facet(("city", "origin", "hometown"), city, _STRING, f"is from {city}", f"am from {city}"),
        Facet(
            ("job", "profession", "occupation"),
            job,
            _STRING,
            f"works as {article} {job}",
            f"work as {article} {job}",
        ),
        Facet(("job", "occupation"), job, _STRING, f"is {article} {job}", f"am {article} {job}"),
        Facet(
            ("hobbies", "likes", "interests"),
            hobbies,
            _STRINGS,
            f"likes {joined(hobbies)}",
            f"like {joined(hobbies)}",
        ),
        Facet(
            ("languages", "spoken_languages"),
            tongues,
            _STRINGS,
            f"speaks {joined(tongues)}",
            f"speak {joined(tongues)}",
        ),
        Facet(("email", "mail"), mail, _STRING, f"has the email {mail}", f"have the email {mail}"),
        Facet(
            ("birthday", "date_of_birth", "born"),
            day,
            _STRING,
            f"was born on {day}",
            f"was born on {day}",
        ),
        Facet(("married", "is_married"), married, _BOOLEAN, f"is {marital}", f"am {marital}"),
        Facet(("height", "height_cm"), tall, _INTEGER, f"is {tall} cm tall", f"am {tall} cm tall"),
        Facet(
            ("children", "kids"),
            children,
            _INTEGER,
            f"has {children} children",
            f"have {children} children",
        ),
        Facet(
            ("phone", "phone_number", "telephone"),
            phone,
            _STRING,
            f"can be reached at {phone}",
            f"can be reached at {phone}",
        ),
        Facet(
            ("favorite_color", "favourite_colour", "color"),
            colour,
            _STRING,
            f"has the favourite colour {colour}",
            f"have the favourite colour {colour}",
        ),
    )
    noun = draw.pick(("person", "user", "customer", "student", "employee"))
    return Theme(noun, name, facets)


def _product(draw: Draw) -> Theme:
    price, weight, colour = draw.decimal(), draw.decimal(), draw.pick(_COLOURS)
    brand, number, stock = draw.title(), draw.code(), draw.chance(0.5)
    count, rating = draw.whole(1, 900), draw.whole(1, 5)
    kind = draw.pick(("toys", "books", "tools", "food", "clothing", "garden", "kitchen"))
    name = Facet(("name", "product", "title", "item"), f"{draw.title()} {draw.noun()}", _STRING, "")
    state = "is in stock" if stock else "is sold out"
    facets = (
        Facet(("price", "cost"), price, _NUMBER, f"costs {price} dollars"),
        Facet(("color", "colour"), colour, _STRING, f"is {colour}"),
        Facet(("weight", "weight_kg"), weight, _NUMBER, f"weighs {weight} kg"),
        Facet(("brand", "maker", "manufacturer"), brand, _STRING, f"is made by {brand}"),
        Facet(("category", "type"), kind, _STRING, f"belongs to the category {kind}"),
        Facet(("in_stock", "available"), stock, _BOOLEAN, state),
        Facet(("sku", "number", "id"), number, _STRING, f"has the number {number}"),
        Facet(("quantity", "count"), count, _INTEGER, f"comes in boxes of {count}"),
        Facet(("rating", "stars"), rating, _INTEGER, f"has {rating} stars"),
    )
    return Theme(draw.pick(("product", "item", "article")), name, facets)


def _event(draw: Draw) -> Theme:
    day, hour, city, guests = draw.date(), draw.clock(), draw.place(), draw.whole(2, 900)
    host, fee, public = draw.full_name(), draw.whole(5, 300), draw.chance(0.5)
    kind = draw.pick(("festival", "meeting", "party", "concert", "workshop", "lecture", "fair"))
    name = Facet(("name", "title", "event"), f"{draw.title()} {kind}", _STRING, "")
    state = "is open to the public" if public else "is private"
    facets = (
        Facet(("date", "day"), day, _STRING, f"takes place on {day}"),
        Facet(("time", "start_time", "start"), hour, _STRING, f"starts at {hour}"),
        Facet(("location", "city", "place", "venue"), city, _STRING, f"is held in {city}"),
        Facet(("guests", "attendees", "visitors"), guests, _INTEGER, f"expects {guests} guests"),
        Facet(("host", "organizer", "organiser"), host, _STRING, f"is hosted by {host}"),
        Facet(("price", "fee", "entry_fee"), fee, _INTEGER, f"costs {fee} euros"),
        Facet(("public", "is_public"), public, _BOOLEAN, state),
    )
    return Theme(draw.pick(("event", "appointment")), name, facets)


def _company(draw: Draw) -> Theme:
    city, staff, year, chief = draw.place(), draw.number(), draw.whole(1850, 2030), draw.full_name()
    goods, listed = draw.noun() + "s", draw.chance(0.5)
    suffix = draw.pick((" Ltd", " Inc", " GmbH", "", ""))
    name = Facet(("name", "company", "firm"), f"{draw.title()}{suffix}", _STRING, "")
    state = "is listed" if listed else "is not listed"
    facets = (
        Facet(("city", "headquarters", "location"), city, _STRING, f"is based in {city}"),
        Facet(("employees", "staff"), staff, _INTEGER, f"has {staff} employees"),
        Facet(("founded", "year", "founding_year"), year, _INTEGER, f"was founded in {year}"),
        Facet(("ceo", "director", "boss"), chief, _STRING, f"is led by {chief}"),
        Facet(("product", "products"), goods, _STRING, f"sells {goods}"),
        Facet(("listed", "is_listed"), listed, _BOOLEAN, state),
    )
    return Theme(draw.pick(("company", "business")), name, facets)


def _pet(draw: Draw) -> Theme:
    age, owner, colour = draw.whole(1, 20), draw.full_name(), draw.pick(_COLOURS)
    kind = draw.pick(("dog", "cat", "rabbit", "horse", "parrot", "hamster", "goat"))
    tricks, healthy = draw.sample(_HOBBIES, 2), draw.chance(0.5)
    name = Facet(("name", "pet", "pet_name"), draw.title(), _STRING, "")
    state = "is vaccinated" if healthy else "is not vaccinated"
    facets = (
        Facet(("species", "kind", "animal"), kind, _STRING, f"is a {kind}"),
        Facet(("age", "years"), age, _INTEGER, f"is {age} years old"),
        Facet(("owner", "owner_name"), owner, _STRING, f"belongs to {owner}"),
        Facet(("color", "colour"), colour, _STRING, f"is {colour}"),
        Facet(("vaccinated",), healthy, _BOOLEAN, state),
        Facet(("likes", "hobbies"), tricks, _STRINGS, f"likes {joined(tricks)}"),
    )
    return Theme("pet", name, facets)


_THEMES: tuple[Callable[[Draw], Theme], ...] = (_person, _person, _product, _event, _company, _pet)


def draw_profile(draw: Draw) -> Profile:
    """Draw a subject described in sentences, with the fields that a request asks for."""
    theme = draw.pick(_THEMES)(draw)
    told: list[Facet] = []
    for facet in draw.shuffled(theme.facets):
        if not any(set(facet.keys) & set(other.keys) for other in told):
            told.append(facet)
    told = told[: draw.whole(1, 5)]
    name = theme.name.value
    own = bool(told[0].first_person) and draw.chance(0.4)
    clauses = [facet.first_person if own else facet.clause for facet in told]
    text = _told(draw, name, theme.noun, clauses, own)
    asked = [theme.name, *told] if draw.chance(0.8) else told
    if len(asked) > 1 and draw.chance(0.4):
        asked = asked[: -draw.whole(0, min(2, len(asked) - 1)) or None]
    if draw.chance(0.3):
        asked = draw.shuffled(asked)
    fields = tuple(facet.field(draw.pick(facet.keys)) for facet in asked)
    named = draw.pick(("named", "called", "with the name"))
    a = "an" if theme.noun[0] in "aeiou" else "a"
    phrase = f"{a} {theme.noun} {named} {name} that {joined([f.clause for f in told])}"
    if theme.noun not in ("product", "item", "article", "event", "appointment"):
        phrase = phrase.replace(" that ", draw.pick((" who ", " that ", " which ")), 1)
    canonical = tuple(facet.field(facet.keys[0]) for facet in (theme.name, *told))
    return Profile(text, phrase, fields, canonical)


def _told(draw: Draw, name: str, noun: str, clauses: list[str], own: bool) -> str:
    if own:
        opening = draw.pick((f"My name is {name}", f"I am {name}", f"I'm {name}"))
        if draw.chance(0.4):
            return joined([opening, *(f"I {clause}" for clause in clauses)]) + "."
        sentences, subject = [f"{opening}."], "I"
    else:
        sentences, subject = [], name
        if draw.chance(0.3):
            sentences.append(draw.pick((f"This is {name}.", f"Meet {name}.", f"Name: {name}.")))
    rest = list(clauses)
    while rest:
        take = draw.whole(1, min(3, len(rest)))
        sentences.append(f"{subject} {joined(rest[:take])}.")
        rest = rest[take:]
        subject = subject if own else draw.pick((f"The {noun}", name))
    return " ".join(sentences)
