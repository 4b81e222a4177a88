"""Records with random field names, types and values, their schema, and their description in
words."""

from dataclasses import dataclass
from typing import Any

from builtin_model.families import names
from builtin_model.families.draw import Draw

_KEYS: dict[str, tuple[str, ...]] = {
    "name": tuple(
        "name owner author customer contact manager patient driver teacher student guest buyer "
        "seller director winner player".split()
    ),
    "place": tuple("city origin destination location town birthplace venue station office".split()),
    "word": tuple("title project product brand username team model nickname company label".split()),
    "code": tuple("id sku order_id ticket serial flight code reference account_number".split()),
    "date": tuple(
        "date due_date birthday deadline start_date end_date created release_date".split()
    ),
    "time": tuple("time start_time end_time departure arrival opens_at".split()),
    "email": tuple("email contact_email mail reply_to".split()),
    "phrase": tuple("note comment subject description summary message".split()),
    "integer": tuple(
        "age quantity year count floor seats score points pages number_of_rooms stock level".split()
    ),
    "number": tuple("price weight rating temperature height width total distance".split()),
    "boolean": tuple(
        "active paid member urgent available vegetarian verified shipped open".split()
    ),
    "enum": tuple("status priority size color category unit mode role".split()),
    "strings": tuple("tags items ingredients languages members topics colors".split()),
    "integers": tuple("scores sizes numbers grades lengths".split()),
    "object": tuple("address details profile settings info owner_details shipping".split()),
}
_KIND_POOL = (
    ("name",) * 4
    + ("place", "place", "word", "word", "word", "code", "code", "date", "time", "email")
    + ("phrase", "integer", "integer", "integer", "integer", "number", "number")
    + ("boolean", "boolean", "enum", "enum", "strings", "strings", "integers", "object")
)
_SIMPLE_POOL = tuple(kind for kind in _KIND_POOL if kind not in ("strings", "integers", "object"))
_ENUMS = (
    ("open", "closed", "pending"),
    ("low", "medium", "high"),
    ("small", "medium", "large"),
    ("red", "green", "blue", "yellow"),
    ("new", "used"),
    ("draft", "review", "done"),
    ("admin", "editor", "guest"),
    ("food", "tools", "books", "toys"),
    ("kg", "g", "lb"),
    ("paid", "unpaid", "refunded"),
)
_TYPE_WORDS = {
    "integer": ("integer", "whole number", "int"),
    "number": ("number", "decimal number", "float"),
    "boolean": ("boolean", "true or false", "bool"),
    "strings": ("list of strings", "array of strings"),
    "integers": ("list of integers", "array of integers"),
}


@dataclass(frozen=True)
class Field:
    """A field of a record: its key, kind, value, schema, and nested fields."""

    key: str
    kind: str
    value: Any
    schema: dict[str, Any]
    inner: tuple["Field", ...] = ()

    def spoken(self) -> str:
        """Return the value as a person writes it."""
        if self.value is None:
            return "unknown"
        if isinstance(self.value, bool):
            return "yes" if self.value else "no"
        if isinstance(self.value, list):
            return ", ".join(str(item) for item in self.value)
        return str(self.value)

    def type_words(self, draw: Draw) -> str:
        """Return the type as a person describes it."""
        if self.kind == "enum":
            return "one of " + ", ".join(self.schema["enum"])
        if self.kind == "object":
            return "object with " + " and ".join(field.key for field in self.inner)
        return draw.pick(_TYPE_WORDS.get(self.kind, ("string", "text")))


def spoken_key(key: str) -> str:
    """Return a key as separate words in lower case: "orderId" and "order_id" become "order id"."""
    words = "".join(f" {char.lower()}" if char.isupper() else char for char in key)
    return words.replace("_", " ").strip()


def _camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _value(draw: Draw, kind: str) -> Any:
    match kind:
        case "name":
            return draw.full_name() if draw.chance(0.5) else draw.first_name()
        case "place":
            return draw.place()
        case "word":
            return draw.title() if draw.chance(0.6) else draw.word()
        case "code":
            return draw.code()
        case "date":
            return draw.date()
        case "time":
            return draw.clock()
        case "email":
            return draw.email()
        case "phrase":
            return draw.phrase()
        case "integer":
            return draw.number()
        case "number":
            return draw.decimal()
        case "boolean":
            return draw.chance(0.5)
        case "strings":
            some = names.THINGS if draw.chance(0.4) else None
            count = draw.whole(1, 4)
            return draw.sample(some, count) if some else [draw.word() for _ in range(count)]
        case _:
            return [draw.number() for _ in range(draw.whole(1, 4))]


def draw_field(draw: Draw, taken: set[str], *, nested: bool, style: int, nullable: float) -> Field:
    """Draw a field whose key is not in `taken`; `style` 1 writes keys in camel case."""
    kind = draw.pick(_KIND_POOL if nested else _SIMPLE_POOL)
    key = draw.pick(_KEYS[kind]) if draw.chance(0.75) else draw.plain_word()
    if draw.chance(0.08):
        key = f"{draw.plain_word()}_{key}"
    key = _camel(key) if style == 1 else key
    while key in taken:
        key = draw.plain_word()
    taken.add(key)
    if kind == "object":
        count = draw.whole(2, 3)
        inner = tuple(
            draw_field(draw, taken, nested=False, style=style, nullable=0) for _ in range(count)
        )
        value = {field.key: field.value for field in inner}
        return Field(key, kind, value, object_schema(inner), inner)
    if kind == "enum":
        if draw.chance(0.7):
            options = draw.shuffled(draw.pick(_ENUMS))
        else:
            options = [draw.word() for _ in range(draw.whole(2, 4))]
        return Field(key, kind, draw.pick(options), {"type": "string", "enum": options})
    value = _value(draw, kind)
    schema: dict[str, Any] = {"type": kind}
    if kind in ("strings", "integers"):
        item = "string" if kind == "strings" else "integer"
        schema = {"type": "array", "items": {"type": item}}
    elif kind not in ("integer", "number", "boolean"):
        schema = {"type": "string"}
    if draw.chance(nullable):
        return Field(key, kind, None, {**schema, "type": [schema["type"], "null"]})
    return Field(key, kind, value, schema)


def object_schema(fields: tuple[Field, ...]) -> dict[str, Any]:
    """Return the JSON schema of a record; every field is required."""
    return {
        "type": "object",
        "properties": {field.key: field.schema for field in fields},
        "required": [field.key for field in fields],
    }


def draw_record(
    draw: Draw, low: int = 1, high: int = 6, *, nested: bool = True
) -> tuple[Field, ...]:
    """Draw the fields of a record."""
    taken: set[str] = set()
    style = int(draw.chance(0.25))
    nullable = draw.pick((0.0, 0.0, 0.0, 0.15))
    return tuple(
        draw_field(draw, taken, nested=nested, style=style, nullable=nullable)
        for _ in range(draw.whole(low, high))
    )


def record_value(fields: tuple[Field, ...]) -> dict[str, Any]:
    """Return the record as a JSON value, in the order of its fields."""
    return {field.key: field.value for field in fields}


def leaves(fields: tuple[Field, ...]) -> list[Field]:
    """Return the fields without nested fields."""
    found: list[Field] = []
    for field in fields:
        found.extend(field.inner if field.inner else (field,))
    return found


def told(draw: Draw, fields: list[Field]) -> str:
    """Return the values of fields in words, in a random layout."""
    style = draw.whole(0, 7)
    if style in (4, 5) and any(isinstance(field.value, list) for field in fields):
        style = 0
    pairs = [(spoken_key(field.key), field.spoken()) for field in fields]
    exact = [(field.key, field.spoken()) for field in fields]
    match style:
        case 0:
            return "\n".join(f"{key}: {value}" for key, value in exact)
        case 1:
            return "\n".join(f"{key.capitalize()}: {value}" for key, value in pairs)
        case 2:
            return "; ".join(f"{key} = {value}" for key, value in exact)
        case 3:
            return " ".join(f"The {key} is {value}." for key, value in pairs)
        case 4:
            parts = [f"{key} is {value}" for key, value in pairs]
            if len(parts) > 1 and draw.chance(0.5):
                return f"{', '.join(parts[:-1])} and {parts[-1]}"
            return ", ".join(parts)
        case 5:
            return ", ".join(f"{key} {value}" for key, value in pairs)
        case 6:
            return "\n".join(f"- {key}: {value}" for key, value in pairs)
        case _:
            return "".join(f"{key} -> {value}\n" for key, value in exact).rstrip()
