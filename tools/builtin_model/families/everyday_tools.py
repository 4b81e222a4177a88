"""Everyday tools and requests for them: weather, mail, calendar, money, search and others."""

from collections.abc import Callable
from typing import Any

from builtin_model.families.draw import Draw
from builtin_model.families.tool_shapes import Arguments, Shape, define, drawn_tool


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _whole(description: str) -> dict[str, Any]:
    return {"type": "integer", "description": description}


def _weather(draw: Draw) -> Shape:
    place, degrees = draw.place(), draw.whole(-20, 40)
    sky = draw.pick(("sunny", "cloudy", "rainy", "windy", "snowy", "clear"))
    name = draw.pick(("get_weather", "weather", "current_weather", "lookup_weather"))
    key = draw.pick(("city", "location", "place"))
    about = draw.pick(
        (
            "Get the current weather of a city.",
            "Get the current weather in a given location",
            "Returns the weather for a place.",
        )
    )
    meaning = draw.pick(("Name of the city", "The city and state, e.g. San Francisco, CA", "Place"))
    schemas = {key: _text(meaning)}
    unit = None
    if draw.chance(0.35):
        schemas["unit"] = {"type": "string", "enum": ["celsius", "fahrenheit"]}
        unit = draw.pick((None, "celsius", "fahrenheit"))
    tool = define(name, about, schemas, [key])
    request = draw.pick(
        (
            f"What is the weather in {place}?",
            f"How is the weather in {place} today?",
            f"Is it cold in {place}?",
            f"Tell me the weather for {place}.",
            f"Weather in {place}?",
            f"What's the weather like in {place}?",
            f"What's the weather in {place} today?",
        )
    )
    if unit is not None:
        request = f"{request.rstrip('.?')} in {unit}{request[-1]}"
    arguments = {key: place, "unit": unit} if unit else {key: place}
    answer = f"It is {sky} in {place} with {degrees} degrees."
    result = {"temperature": degrees, "condition": sky}
    return Shape(tool, request, arguments, result, answer, (place, sky, str(degrees)))


def _mail(draw: Draw) -> Shape:
    to, subject, body = draw.email(), draw.phrase(1, 3), draw.phrase(2, 6)
    tool = define(
        draw.pick(("send_email", "send_mail", "email")),
        "Send an e-mail.",
        {"to": _text("Receiver"), "subject": _text("Subject line"), "body": _text("Text")},
        ["to", "subject", "body"],
    )
    request = draw.pick(
        (
            f'Send an email to {to} with the subject "{subject}" and the text "{body}".',
            f'Write to {to}. Subject: "{subject}". Text: "{body}".',
            f"Mail {to}, subject {subject}: {body}",
        )
    )
    arguments = {"to": to, "subject": subject, "body": body}
    answer = f"The e-mail to {to} was sent."
    return Shape(tool, request, arguments, {"status": "sent"}, answer, (to, "sent"))


def _event(draw: Draw) -> Shape:
    title, day, hour = draw.phrase(1, 3), draw.date(), draw.clock()
    tool = define(
        draw.pick(("create_event", "add_event", "schedule")),
        "Add an event to the calendar.",
        {"title": _text("Title"), "date": _text("Day"), "time": _text("Start")},
        ["title", "date", "time"],
    )
    request = draw.pick(
        (
            f'Add "{title}" to my calendar on {day} at {hour}.',
            f'Schedule "{title}" for {day}, {hour}.',
            f'Create an event "{title}" at {hour} on {day}.',
        )
    )
    number = draw.code()
    answer = f"The event {title} was added with the id {number}."
    arguments = {"title": title, "date": day, "time": hour}
    return Shape(tool, request, arguments, {"id": number}, answer, (title, number))


def _convert(draw: Draw) -> Shape:
    amount = draw.whole(1, 5000)
    source, target = draw.sample(("EUR", "USD", "GBP", "JPY", "CHF", "SEK", "NOK", "PLN", "INR"), 2)
    tool = define(
        draw.pick(("convert_currency", "exchange", "currency_converter")),
        "Convert an amount of money between currencies.",
        {"amount": _whole("Amount"), "from": _text("Currency code"), "to": _text("Currency code")},
        ["amount", "from", "to"],
    )
    request = draw.pick(
        (
            f"Convert {amount} {source} to {target}.",
            f"How much is {amount} {source} in {target}?",
            f"What are {amount} {source} worth in {target}?",
        )
    )
    result = draw.decimal()
    answer = f"{amount} {source} are {result} {target}."
    arguments = {"amount": amount, "from": source, "to": target}
    return Shape(tool, request, arguments, {"result": result}, answer, (str(result), target))


def _search(draw: Draw) -> Shape:
    query, title = draw.phrase(1, 4), draw.phrase(2, 4)
    tool = define(
        draw.pick(("search", "web_search", "find_pages")),
        "Search the web.",
        {"query": _text("What to look for")},
        ["query"],
    )
    request = draw.pick(
        (f"Search for {query}.", f'Look up "{query}" on the web.', f"Find pages about {query}.")
    )
    answer = f"The best result is {title}."
    return Shape(tool, request, {"query": query}, {"results": [title]}, answer, (title,))


def _alarm(draw: Draw) -> Shape:
    hour = draw.clock()
    tool = define(
        draw.pick(("set_alarm", "alarm", "wake_me")),
        "Set an alarm.",
        {"time": _text("Time")},
        ["time"],
    )
    request = draw.pick(
        (
            f"Wake me at {hour}.",
            f"Set an alarm for {hour}.",
            f"I must get up at {hour}, set an alarm.",
        )
    )
    answer = f"The alarm is set for {hour}."
    return Shape(tool, request, {"time": hour}, {"ok": True}, answer, (hour,))


def _stock(draw: Draw) -> Shape:
    item, count = draw.title(), draw.number()
    key = draw.pick(("product", "item", "name"))
    tool = define(
        draw.pick(("check_stock", "stock_level", "inventory")),
        "Tell how many pieces of a product are in stock.",
        {key: _text("Product name")},
        [key],
    )
    request = draw.pick(
        (
            f"How many {item} are in stock?",
            f"Do we have any {item}? How many?",
            f"Check the stock of {item}.",
        )
    )
    answer = f"There are {count} pieces of {item} in stock."
    return Shape(tool, request, {key: item}, {"count": count}, answer, (str(count), item))


def _order_state(draw: Draw) -> Shape:
    number = draw.code()
    state = draw.pick(("shipped", "packed", "delivered", "cancelled", "delayed"))
    tool = define(
        draw.pick(("order_status", "track_order", "get_order")),
        "Look up the state of an order.",
        {"order_id": _text("Order number")},
        ["order_id"],
    )
    request = draw.pick(
        (
            f"Where is my order {number}?",
            f"What is the status of order {number}?",
            f"Track the order {number}.",
        )
    )
    answer = f"The order {number} is {state}."
    return Shape(tool, request, {"order_id": number}, {"status": state}, answer, (number, state))


def _light(draw: Draw) -> Shape:
    room = draw.pick(("kitchen", "bedroom", "hall", "bathroom", "garage", draw.word()))
    state = draw.pick(("on", "off"))
    tool = define(
        draw.pick(("switch_light", "set_light", "light")),
        "Switch the light of a room.",
        {"room": _text("Room"), "state": {"type": "string", "enum": ["on", "off"]}},
        ["room", "state"],
    )
    request = draw.pick(
        (
            f"Turn {state} the light in the {room}.",
            f"Switch the {room} light {state}.",
            f"Light {state} in the {room}, please.",
        )
    )
    answer = f"The light in the {room} is {state}."
    return Shape(
        tool, request, {"room": room, "state": state}, {"state": state}, answer, (room, state)
    )


def _calculate(draw: Draw) -> Shape:
    first, second = draw.whole(100, 9999), draw.whole(100, 9999)
    sign = draw.pick("+-*")
    value = first + second if sign == "+" else first - second if sign == "-" else first * second
    expression = f"{first} {sign} {second}"
    tool = define(
        draw.pick(("calculator", "calculate", "evaluate")),
        "Evaluate an arithmetic expression.",
        {"expression": _text("The expression")},
        ["expression"],
    )
    request = draw.pick(
        (f"What is {expression}?", f"Use the calculator: {expression}", f"Calculate {expression}.")
    )
    answer = f"{expression} is {value}."
    return Shape(tool, request, {"expression": expression}, {"value": value}, answer, (str(value),))


def _clock(draw: Draw) -> Shape:
    place, hour = draw.place(), draw.clock()
    key = draw.pick(("city", "timezone", "place"))
    tool = define(
        draw.pick(("get_time", "local_time", "world_clock")),
        "Tell the local time of a city.",
        {key: _text("City")},
        [key],
    )
    request = draw.pick(
        (f"What time is it in {place}?", f"Local time in {place}?", f"Tell me the time in {place}.")
    )
    answer = f"It is {hour} in {place}."
    return Shape(tool, request, {key: place}, {"time": hour}, answer, (hour, place))


def _song(draw: Draw) -> Shape:
    title, artist = draw.phrase(1, 3), draw.full_name()
    tool = define(
        draw.pick(("play_song", "play_music", "player")),
        "Play a song.",
        {"title": _text("Title of the song"), "artist": _text("Who performs it")},
        ["title"],
    )
    request = draw.pick(
        (f'Play "{title}" by {artist}.', f'Put on "{title}" by {artist}.', f'Play "{title}".')
    )
    arguments = {"title": title}
    if artist in request:
        arguments["artist"] = artist
    answer = f"Now playing {title}."
    return Shape(tool, request, arguments, {"playing": True}, answer, (title,))


def _table(draw: Draw) -> Shape:
    house, people, day, hour = draw.title(), draw.whole(1, 12), draw.date(), draw.clock()
    tool = define(
        draw.pick(("book_table", "reserve_table", "restaurant_booking")),
        "Book a table in a restaurant.",
        {
            "restaurant": _text("Name of the restaurant"),
            "people": _whole("Number of guests"),
            "date": _text("Day"),
            "time": _text("Time"),
        },
        ["restaurant", "people", "date", "time"],
    )
    request = draw.pick(
        (
            f"Book a table for {people} at {house} on {day} at {hour}.",
            f"I need a table at {house} for {people} people, {day}, {hour}.",
            f"Reserve a table in the {house} on {day}, {hour}, for {people}.",
        )
    )
    number = draw.code()
    arguments = {"restaurant": house, "people": people, "date": day, "time": hour}
    answer = f"The table at {house} is booked. The code is {number}."
    return Shape(tool, request, arguments, {"code": number}, answer, (house, number))


def _route(draw: Draw) -> Shape:
    source, target, length = draw.place(), draw.place(), draw.whole(2, 3000)
    tool = define(
        draw.pick(("distance", "get_distance", "route_length")),
        "Distance between two places in kilometres.",
        {"origin": _text("Start"), "destination": _text("End")},
        ["origin", "destination"],
    )
    request = draw.pick(
        (
            f"How far is it from {source} to {target}?",
            f"What is the distance between {source} and {target}?",
            f"Distance from {source} to {target}?",
        )
    )
    arguments = {"origin": source, "destination": target}
    answer = f"It is {length} kilometres from {source} to {target}."
    return Shape(tool, request, arguments, {"kilometres": length}, answer, (str(length), target))


def _translate(draw: Draw) -> Shape:
    text, result = draw.phrase(1, 5), draw.phrase(1, 5)
    language = draw.pick(("French", "German", "Spanish", "Italian", "Polish", "Dutch"))
    tool = define(
        draw.pick(("translate", "translator", "translate_text")),
        "Translate a text.",
        {"text": _text("The text"), "language": _text("Target language")},
        ["text", "language"],
    )
    request = draw.pick(
        (
            f'Translate "{text}" into {language}.',
            f'What is "{text}" in {language}?',
            f'Say "{text}" in {language}.',
        )
    )
    arguments = {"text": text, "language": language}
    answer = f"In {language} it is: {result}"
    return Shape(tool, request, arguments, {"translation": result}, answer, (result, language))


SHAPES: tuple[Callable[[Draw], Shape], ...] = (
    _weather,
    _mail,
    _event,
    _convert,
    _search,
    _alarm,
    _stock,
    _order_state,
    _light,
    _calculate,
    _clock,
    _song,
    _table,
    _route,
    _translate,
)


def draw_shape(draw: Draw) -> Shape:
    """Draw an everyday tool or a random one."""
    return drawn_tool(draw) if draw.chance(0.45) else draw.pick(SHAPES)(draw)


def weather_in(draw: Draw, shape: Shape) -> tuple[str, Arguments]:
    """Return a second place for a tool that takes a place, for two calls in one answer."""
    key = next(iter(shape.arguments))
    place = draw.place()
    while place == shape.arguments[key]:
        place = draw.place()
    return place, {**shape.arguments, key: place}
