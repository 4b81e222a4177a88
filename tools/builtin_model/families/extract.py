"""Extract facts from a paragraph: as JSON, as lines, or a single value."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from builtin_model.families.draw import Draw
from builtin_model.families.example import Check, Example
from builtin_model.families.prose import draw_profile, joined
from builtin_model.families.records import spoken_key

Value: TypeAlias = str | int | float | None


@dataclass(frozen=True)
class Scene:
    """The sentences of a paragraph, the facts that they state, and questions about some of them."""

    sentences: tuple[str, ...]
    facts: dict[str, Value]
    questions: dict[str, str]


def _order(draw: Draw) -> Scene:
    customer, product, place = draw.full_name(), draw.title(), draw.place()
    quantity, number, day = draw.whole(1, 60), draw.code(), draw.date()
    return Scene(
        (
            draw.pick(
                (
                    f"{customer} ordered {quantity} units of the {product}.",
                    f"An order of {quantity} {product} items came in from {customer}.",
                )
            ),
            draw.pick((f"The order number is {number}.", f"It has the reference {number}.")),
            draw.pick((f"Ship it to {place}.", f"The parcel goes to {place}.")),
            draw.pick((f"Delivery is due on {day}.", f"It must arrive by {day}.")),
        ),
        {
            "customer": customer,
            "product": product,
            "quantity": quantity,
            "order_number": number,
            "city": place,
            "delivery_date": day,
        },
        {
            "customer": "Who placed the order?",
            "city": "Where does it go?",
            "quantity": "How many units were ordered?",
            "order_number": "What is the order number?",
            "product": "Which product was ordered?",
        },
    )


def _meeting(draw: Draw) -> Scene:
    host, topic, room = draw.first_name(), draw.phrase(1, 3), draw.code()
    day, hour, people = draw.date(), draw.clock(), draw.whole(2, 40)
    return Scene(
        (
            draw.pick(
                (
                    f"{host} invites you to a meeting about {topic}.",
                    f"The meeting about {topic} is hosted by {host}.",
                )
            ),
            draw.pick((f"It starts at {hour} on {day}.", f"We meet on {day} at {hour}.")),
            draw.pick((f"The room is {room}.", f"Come to room {room}.")),
            draw.pick((f"{people} people will attend.", f"We expect {people} guests.")),
        ),
        {
            "host": host,
            "topic": topic,
            "date": day,
            "time": hour,
            "room": room,
            "attendees": people,
        },
        {
            "host": "Who hosts the meeting?",
            "date": "On which date is the meeting?",
            "time": "At what time does it start?",
            "room": "Which room is it in?",
            "attendees": "How many people will attend?",
        },
    )


def _person(draw: Draw) -> Scene:
    who, age, home = draw.full_name(), draw.whole(5, 95), draw.place()
    job = draw.pick(("teacher", "doctor", "baker", "pilot", "engineer", "painter", "nurse", "chef"))
    pet, mail = draw.title(), draw.email()
    return Scene(
        (
            draw.pick(
                (
                    f"{who} is {age} years old and lives in {home}.",
                    f"Meet {who} from {home}, aged {age}.",
                    f"{who}, {age}, has a flat in {home}.",
                )
            ),
            draw.pick((f"The job is {job}.", f"{who.split()[0]} works as a {job}.")),
            draw.pick((f"The dog is called {pet}.", f"There is also a dog named {pet}.")),
            draw.pick((f"Write to {mail}.", f"The mail address is {mail}.")),
        ),
        {"name": who, "age": age, "city": home, "job": job, "dog": pet, "email": mail},
        {
            "name": "What is the person's full name?",
            "age": "How old is the person?",
            "city": "Where does the person live?",
            "job": "What is the person's job?",
            "dog": "What is the dog's name?",
            "email": "What is the mail address?",
        },
    )


def _flight(draw: Draw) -> Scene:
    number, source, target = draw.code(), draw.place(), draw.place()
    gate, hour, seat = draw.code(), draw.clock(), f"{draw.whole(1, 40)}{draw.pick('ABCDEF')}"
    return Scene(
        (
            draw.pick(
                (
                    f"Flight {number} goes from {source} to {target}.",
                    f"You fly from {source} to {target} with flight {number}.",
                )
            ),
            draw.pick((f"Departure is at {hour}.", f"It leaves at {hour}.")),
            draw.pick((f"Go to gate {gate}.", f"Boarding is at gate {gate}.")),
            draw.pick((f"Your seat is {seat}.", f"You sit in {seat}.")),
        ),
        {
            "flight": number,
            "origin": source,
            "destination": target,
            "departure": hour,
            "gate": gate,
            "seat": seat,
        },
        {
            "flight": "What is the flight number?",
            "origin": "Where does the flight start?",
            "destination": "Where does the flight go?",
            "departure": "When does it leave?",
            "gate": "Which gate is it?",
            "seat": "Which seat is it?",
        },
    )


def _listing(draw: Draw) -> Scene:
    street, place, rooms = (
        f"{draw.whole(1, 200)} {draw.title()} Street",
        draw.place(),
        draw.whole(1, 9),
    )
    rent, agent, day = draw.whole(300, 4000), draw.full_name(), draw.date()
    return Scene(
        (
            draw.pick(
                (
                    f"Flat with {rooms} rooms at {street} in {place}.",
                    f"For rent: {street}, {place}, {rooms} rooms.",
                )
            ),
            draw.pick((f"The rent is {rent} a month.", f"It costs {rent} per month.")),
            draw.pick((f"Call {agent}.", f"The agent is {agent}.")),
            draw.pick((f"It is free from {day}.", f"Available on {day}.")),
        ),
        {
            "street": street,
            "city": place,
            "rooms": rooms,
            "rent": rent,
            "agent": agent,
            "available_from": day,
        },
        {
            "street": "What is the street address?",
            "rooms": "How many rooms are there?",
            "rent": "What is the rent?",
            "agent": "Who is the agent?",
            "city": "In which city is the flat?",
        },
    )


def _match(draw: Draw) -> Scene:
    home, guest = f"{draw.place()} {draw.title()}", f"{draw.place()} {draw.title()}"
    ours, theirs, scorer = draw.whole(0, 9), draw.whole(0, 9), draw.full_name()
    crowd, venue = draw.whole(100, 9999), draw.title()
    return Scene(
        (
            draw.pick(
                (
                    f"{home} played {guest} and the score was {ours} to {theirs}.",
                    f"The match between {home} and {guest} ended {ours} to {theirs}.",
                )
            ),
            draw.pick((f"The best player was {scorer}.", f"{scorer} was the star of the day.")),
            draw.pick((f"{crowd} people watched it.", f"There were {crowd} spectators.")),
            draw.pick((f"It was played at {venue} Park.", f"The venue was {venue} Park.")),
        ),
        {
            "home_team": home,
            "away_team": guest,
            "home_score": ours,
            "away_score": theirs,
            "best_player": scorer,
            "spectators": crowd,
            "venue": f"{venue} Park",
        },
        {
            "best_player": "Who was the best player?",
            "spectators": "How many people watched?",
            "venue": "Where was it played?",
            "home_team": "Which team played at home?",
        },
    )


def _recipe(draw: Draw) -> Scene:
    dish, cook, minutes = f"{draw.title()} soup", draw.first_name(), draw.whole(5, 180)
    people, heat, main = draw.whole(1, 12), draw.whole(80, 250), draw.noun()
    return Scene(
        (
            draw.pick((f"{cook} shares a recipe for {dish}.", f"{dish}, a recipe by {cook}.")),
            draw.pick((f"It serves {people} people.", f"Enough for {people} guests.")),
            draw.pick((f"Cook it for {minutes} minutes.", f"It takes {minutes} minutes.")),
            draw.pick((f"The oven is set to {heat} degrees.", f"Heat to {heat} degrees.")),
            draw.pick((f"You need one {main}.", f"The main ingredient is {main}.")),
        ),
        {
            "dish": dish,
            "cook": cook,
            "servings": people,
            "minutes": minutes,
            "temperature": heat,
            "ingredient": main,
        },
        {
            "cook": "Whose recipe is it?",
            "minutes": "How many minutes does it take?",
            "servings": "How many people does it serve?",
            "temperature": "At how many degrees?",
            "ingredient": "Which ingredient is named?",
        },
    )


def _book(draw: Draw) -> Scene:
    title, author, year = (
        f"The {draw.title()} {draw.noun()}",
        draw.full_name(),
        draw.whole(1850, 2030),
    )
    pages, publisher, price = draw.whole(60, 900), draw.title(), draw.decimal()
    return Scene(
        (
            draw.pick((f'"{title}" was written by {author}.', f'{author} wrote "{title}".')),
            draw.pick((f"It came out in {year}.", f"It was published in {year}.")),
            draw.pick((f"It has {pages} pages.", f"The book is {pages} pages long.")),
            draw.pick((f"The publisher is {publisher}.", f"{publisher} published it.")),
            draw.pick((f"It costs {price}.", f"The price is {price}.")),
        ),
        {
            "title": title,
            "author": author,
            "year": year,
            "pages": pages,
            "publisher": publisher,
            "price": price,
        },
        {
            "title": "What is the title?",
            "author": "Who is the author?",
            "year": "In which year did it come out?",
            "pages": "How many pages does it have?",
            "publisher": "Who is the publisher?",
            "price": "What does it cost?",
        },
    )


_SCENES: tuple[Callable[[Draw], Scene], ...] = (
    _order,
    _meeting,
    _person,
    _flight,
    _listing,
    _match,
    _recipe,
    _book,
)
_AS_JSON = (
    "Extract {keys} from this text as JSON.\n\n{text}",
    "{text}\n\nExtract {keys} as a JSON object.",
    "Read the text and return JSON with {keys}.\nText: {text}",
    "Text:\n{text}\n\nGive {keys} in JSON.",
    "Find {keys} in the following paragraph. Answer in JSON.\n{text}",
)
_AS_LINES = (
    'Extract {keys} from the text. One per line, as "key: value".\n\n{text}',
    '{text}\n\nList {keys}, one per line, in the form "key: value".',
)
_MISSING = (" Use null for what is missing.", " If something is not in the text, write null.")
_ABSENT = ("phone", "fax", "website", "colour", "postcode", "discount")


def extract(draw: Draw) -> Example:
    """Draw a request for facts from a paragraph about people, orders, events and others."""
    if draw.chance(0.3):
        return _from_profile(draw)
    scene = draw.pick(_SCENES)(draw)
    sentences = list(scene.sentences)
    if draw.chance(0.3):
        sentences[1:] = draw.shuffled(sentences[1:])
    text = " ".join(sentences)
    if draw.chance(0.3):
        return _single(draw, scene, text)
    keys = draw.sample(tuple(scene.facts), draw.whole(1, 5))
    values: dict[str, Value] = {key: scene.facts[key] for key in keys}
    suffix = ""
    if draw.chance(0.15):
        suffix = draw.pick(_MISSING)
        if draw.chance(0.7):
            missing = draw.pick(_ABSENT)
            keys.insert(draw.whole(0, len(keys)), missing)
            values = {key: scene.facts.get(key) for key in keys}
    joined = ", ".join(keys)
    if len(keys) > 1 and draw.chance(0.4):
        joined = f"{', '.join(keys[:-1])} and {keys[-1]}"
    stated = "; ".join(f"{key}: {'null' if v is None else v}" for key, v in values.items())
    reasoning = draw.pick((f"The text says {stated}.", f"I look for {joined}."))
    if draw.chance(0.2) and not suffix:
        user = draw.pick(_AS_LINES).format(keys=joined, text=text)
        answer = "\n".join(f"{key}: {value}" for key, value in values.items())
        return draw.example("extract", user, answer, Check("exact", answer), reasoning=reasoning)
    user = draw.pick(_AS_JSON).format(keys=joined, text=text) + suffix
    answer = json.dumps(values, ensure_ascii=False)
    return draw.example("extract", user, answer, Check("json", values), reasoning=reasoning)


def _from_profile(draw: Draw) -> Example:
    profile = draw_profile(draw)
    fields = [field for field in profile.fields if not isinstance(field.value, bool)]
    if not fields:
        return extract(draw)
    fields = fields[: draw.whole(1, 3)]
    asked = joined([f"the {spoken_key(field.key)}" for field in fields])
    stated = "; ".join(f"{spoken_key(field.key)}: {field.spoken()}" for field in fields)
    reasoning = f"The text says {stated}."
    user = draw.pick(
        (
            f"Extract {asked}: {profile.text}",
            f"{profile.text}\n\nFind {asked}.",
            f"Extract {asked} from this text:\n{profile.text}",
            f"What is {asked} here? {profile.text}",
        )
    )
    if len(fields) == 1:
        answer = fields[0].spoken()
    else:
        answer = "\n".join(f"{spoken_key(field.key)}: {field.spoken()}" for field in fields)
    return draw.example("extract", user, answer, Check("exact", answer), reasoning=reasoning)


def _single(draw: Draw, scene: Scene, text: str) -> Example:
    key = draw.pick(tuple(scene.questions))
    question, answer = scene.questions[key], str(scene.facts[key])
    user = draw.pick(
        (
            f"{text}\n\n{question}",
            f"{text} {question}",
            f"Read this: {text}\n{question}",
            f"{question}\n\n{text}",
            f"Context: {text}\nQuestion: {question}",
        )
    )
    reasoning = f"The text gives the {key.replace('_', ' ')}: {answer}."
    return draw.example("extract", user, answer, Check("exact", answer), reasoning=reasoning)
