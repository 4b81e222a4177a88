"""Fill in JSON objects: described in words, by a schema, or in markdown fences."""

import json
from typing import Any

from builtin_model.families.draw import Draw
from builtin_model.families.example import Check, Example
from builtin_model.families.prose import draw_profile, joined
from builtin_model.families.records import (
    Field,
    draw_record,
    leaves,
    object_schema,
    record_value,
    told,
)

_WORDED = (
    "Create a JSON object with the fields {fields}. {told}",
    "Make a JSON object with these keys: {fields}.\n{told}",
    "Fill in a JSON object with {fields}.\n\n{told}",
    "Return a JSON object with the keys {fields}. Values: {told}",
    "I need JSON with {fields}. Here is the data:\n{told}",
    "{told}\n\nWrite this as a JSON object with the fields {fields}.",
    "{told}\nTurn it into JSON. Keys: {fields}.",
    "Output JSON with {fields} for this record:\n{told}",
    "Write a JSON object. Its fields are {fields}. {told}",
    "Given this:\n{told}\n\nGive me JSON with {fields}.",
)
_DESCRIBED = (
    "Return a JSON object describing {phrase}.",
    "Describe {phrase} as JSON.",
    "Write JSON for {phrase}.",
    "Create a JSON object for {phrase}.",
    "Give me a JSON object that describes {phrase}.",
)
_SYSTEM_SCHEMAS = (
    "Answer with a JSON object that follows this schema:\n{schema}",
    "You answer in JSON only. The schema is:\n{schema}",
    "Respond with JSON matching this JSON schema:\n\n{schema}",
    "Fill the following schema from the user's message.\n{schema}",
    "You extract data. Reply with JSON of this schema and nothing else:\n{schema}",
    "{schema}\n\nYour answer must be valid JSON under the schema above.",
)
_USER_SCHEMAS = (
    "Answer in JSON with this schema:\n{schema}\n\n{told}",
    "{told}\n\nGive the data as JSON. Schema: {schema}",
    "JSON schema:\n{schema}\nData:\n{told}",
)
_LEAD = (
    "",
    "",
    "",
    "Here is the data: ",
    "Record:\n",
    "Data:\n",
    "Please fill this in. ",
    "Note: ",
)
_FENCES = (
    " Put the JSON in a markdown code block.",
    " Wrap the JSON in ```json fences.",
    " Use markdown fences around the JSON.",
    "\nFormat the answer as:\n```json\n{{...}}\n```",
    " Answer inside a ```json code block.",
    " The JSON must be in a fenced code block.",
    " Enclose it in triple backticks with the json tag.",
)
_INDENTS = (" Indent it by two spaces.", " Pretty-print it with 2 spaces.", " Use an indent of 2.")
_INVENT = (
    "Make up a record that fits.",
    "Invent an example.",
    "Generate a random example.",
    "Give me any valid object.",
    "Create a sample.",
    "Fill it with values of your choice.",
)


def json_words(draw: Draw) -> Example:
    """Draw a request for a JSON object whose fields are described in words."""
    if draw.chance(0.12):
        return _imagined(draw)
    if draw.chance(0.4):
        user, fields = _prose(draw)
        return _filled(draw, "json_words", fields, user, None, fenced=False)
    fields = draw_record(draw, 1, 6)
    return _filled(draw, "json_words", fields, _worded(draw, fields), None, fenced=False)


def json_schema(draw: Draw) -> Example:
    """Draw a request for a JSON object by a schema, mostly in the system prompt."""
    if draw.chance(0.12):
        return _invented(draw)
    user, system, fields = _schema_task(draw)
    return _filled(draw, "json_schema", fields, user, system, fenced=False)


def json_fenced(draw: Draw) -> Example:
    """Draw one of both, with markdown fences around the JSON because the prompt asks for them."""
    fence = draw.pick(_FENCES).format()
    if draw.chance(0.5):
        if draw.chance(0.4):
            user, fields = _prose(draw)
        else:
            fields = draw_record(draw, 1, 5)
            user = _worded(draw, fields)
        return _filled(draw, "json_fenced", fields, user + fence, None, fenced=True)
    user, system, fields = _schema_task(draw)
    if system is not None and draw.chance(0.5):
        system += fence
    else:
        user += fence
    return _filled(draw, "json_fenced", fields, user, system, fenced=True)


def _schema_task(draw: Draw) -> tuple[str, str | None, tuple[Field, ...]]:
    if draw.chance(0.4):
        profile = draw_profile(draw)
        user, system = _with_schema(draw, profile.fields, profile.text)
        return user, system, profile.fields
    fields = draw_record(draw, 1, 7)
    user, system = _with_schema(draw, fields, _told(draw, fields, distractors=True))
    return user, system, fields


def _prose(draw: Draw) -> tuple[str, tuple[Field, ...]]:
    profile = draw_profile(draw)
    if draw.chance(0.3):
        request = draw.pick(_DESCRIBED).format(phrase=profile.phrase)
        return request, profile.phrase_fields
    listed = _listed(draw, profile.fields, typed=draw.chance(0.2))
    return draw.pick(_WORDED).format(fields=listed, told=profile.text), profile.fields


def _listed(draw: Draw, fields: tuple[Field, ...], *, typed: bool) -> str:
    listed = []
    for field in fields:
        key = f'"{field.key}"' if draw.chance(0.15) else field.key
        needed = typed or field.kind in ("object", "strings", "integers")
        listed.append(f"{key} ({field.type_words(draw)})" if needed else key)
    joined = ", ".join(listed)
    if len(listed) > 1 and draw.chance(0.5):
        joined = f"{', '.join(listed[:-1])} and {listed[-1]}"
    return joined


def _worded(draw: Draw, fields: tuple[Field, ...]) -> str:
    listed = _listed(draw, fields, typed=draw.chance(0.45))
    return draw.pick(_WORDED).format(fields=listed, told=_told(draw, fields))


def _told(draw: Draw, fields: tuple[Field, ...], distractors: bool = False) -> str:
    found = leaves(fields)
    if distractors and draw.chance(0.25):
        taken = {field.key for field in found}
        extra = draw_record(draw, 1, 2, nested=False)
        found.extend(field for field in extra if field.key not in taken)
    return told(draw, draw.shuffled(found) if draw.chance(0.5) else found)


def _schema_text(draw: Draw, fields: tuple[Field, ...]) -> str:
    schema = object_schema(fields)
    if draw.chance(0.3):
        schema["additionalProperties"] = False
    if draw.chance(0.15):
        schema = {"title": draw.title(), **schema}
    return json.dumps(schema, indent=draw.pick((None, None, 2)), ensure_ascii=False)


def _with_schema(draw: Draw, fields: tuple[Field, ...], facts: str) -> tuple[str, str | None]:
    schema = _schema_text(draw, fields)
    if draw.chance(0.2):
        return draw.pick(_USER_SCHEMAS).format(schema=schema, told=facts), None
    return draw.pick(_LEAD) + facts, draw.pick(_SYSTEM_SCHEMAS).format(schema=schema)


def render_json(value: Any, *, indent: int | None, fenced: bool) -> str:
    """Return a JSON value as the model writes it."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return f"```json\n{text}\n```" if fenced else text


def _filled(
    draw: Draw,
    family: str,
    fields: tuple[Field, ...],
    user: str,
    system: str | None,
    *,
    fenced: bool,
) -> Example:
    indent = None
    if draw.chance(0.08):
        user, indent = user + draw.pick(_INDENTS), 2
    value = record_value(fields)
    keys = ", ".join(field.key for field in fields)
    parts = "; ".join(f"{field.key} is {field.spoken()}" for field in leaves(fields))
    reasoning = draw.pick(
        (f"The fields are {keys}.", f"Values: {parts}.", f"I need {keys}. {parts}.")
    )
    if fenced:
        reasoning += " The JSON goes into fences."
    answer = render_json(value, indent=indent, fenced=fenced)
    check = Check("json", value, fenced)
    return draw.example(family, user, answer, check, reasoning=reasoning, system=system)


def _whole_record(draw: Draw) -> tuple[Field, ...]:
    fields = draw_record(draw, 1, 5)
    while any(field.value is None for field in fields):
        fields = draw_record(draw, 1, 5)
    return fields


def _imagined(draw: Draw) -> Example:
    fields = _whole_record(draw)
    if draw.chance(0.4):
        return _imagined_thing(draw, draw_record(draw, 1, 4, nested=False))
    listed = _listed(draw, fields, typed=True)
    user = draw.pick(
        (
            f"Make up a JSON object with {listed}.",
            f"Invent a JSON object with the fields {listed}.",
            f"Give me an example of a JSON object with {listed}.",
            f"Generate random JSON with the keys {listed}.",
        )
    )
    answer = render_json(record_value(fields), indent=None, fenced=False)
    reasoning = f"Any values are fine. The fields are {', '.join(field.key for field in fields)}."
    check = Check("conforms", object_schema(fields))
    return draw.example("json_words", draw.polite(user), answer, check, reasoning=reasoning)


def _imagined_thing(draw: Draw, fields: tuple[Field, ...]) -> Example:
    keys = [field.key for field in fields]
    things = ("character", "person", "product", "user", "city", "book", draw.noun(), draw.word())
    thing = draw.pick(things)
    user = draw.pick(
        (
            f"Generate a {thing} with {joined(keys)} as JSON.",
            f"Make up a {thing} with {joined(keys)}. Answer in JSON.",
            f"Describe a {thing} in JSON with {joined(keys)}.",
            f"Invent a {thing} as a JSON object with {joined(keys)}.",
        )
    )
    value = {f.key: draw.title() if f.value is None else f.value for f in fields}
    schema = {"type": "object", "properties": {key: {} for key in keys}, "required": keys}
    answer = render_json(value, indent=None, fenced=False)
    reasoning = f"Any values are fine. The fields are {', '.join(keys)}."
    check = Check("conforms", schema)
    return draw.example("json_words", draw.polite(user), answer, check, reasoning=reasoning)


def _invented(draw: Draw) -> Example:
    fields = _whole_record(draw)
    text = _schema_text(draw, fields)
    user = draw.pick(_INVENT)
    system: str | None = draw.pick(_SYSTEM_SCHEMAS).format(schema=text)
    if draw.chance(0.3):
        user, system = f"{user} The schema is:\n{text}", None
    value = record_value(fields)
    answer = render_json(value, indent=None, fenced=False)
    reasoning = f"Any values are fine. The fields are {', '.join(field.key for field in fields)}."
    check = Check("conforms", object_schema(fields))
    return draw.example(
        "json_schema", draw.polite(user), answer, check, reasoning=reasoning, system=system
    )
