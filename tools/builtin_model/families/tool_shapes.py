"""Random tools with their requests, and the data that every tool has."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from builtin_model.families.draw import Draw
from builtin_model.families.example import Tool
from builtin_model.families.records import Field, draw_record, spoken_key

Arguments: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """A tool with a request for it, the correct call, its result, and the answer to give."""

    tool: Tool
    request: str
    arguments: Arguments
    result: Any
    answer: str
    needed: tuple[str, ...]

    @property
    def name(self) -> str:
        """The tool's name."""
        return str(self.tool["function"]["name"])


def define(name: str, description: str, schemas: dict[str, Any], required: list[str]) -> Tool:
    """Return a tool in the format of chat requests."""
    parameters = {"type": "object", "properties": schemas, "required": required}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


_ACTIONS = (
    "book reserve update delete register archive assign print lock paint repair measure scan "
    "collect publish cancel label"
).split()


def _argument_schema(field: Field) -> dict[str, Any]:
    return {**field.schema, "description": f"The {spoken_key(field.key)}"}


def drawn_tool(draw: Draw) -> Shape:
    """Draw a tool with a random name, parameters and request."""
    action = draw.pick(_ACTIONS)
    thing = draw.noun() if draw.chance(0.5) else draw.plain_word()
    fields = draw_record(draw, 1, 4, nested=False)
    while any(field.value is None for field in fields):
        fields = draw_record(draw, 1, 4, nested=False)
    schemas = {field.key: _argument_schema(field) for field in fields}
    given = list(fields)
    required = [field.key for field in fields]
    if len(fields) > 2 and draw.chance(0.25):
        left_out = given.pop(draw.whole(0, len(given) - 1))
        required.remove(left_out.key)
    tool = define(f"{action}_{thing}", f"{action.capitalize()} a {thing}.", schemas, required)
    told = [f"{spoken_key(field.key)} {field.spoken()}" for field in given]
    style = draw.whole(0, 3)
    head = f"{action.capitalize()} the {thing}"
    if style == 0:
        request = f"{head} with {' and '.join(told)}."
    elif style == 1:
        request = f"{head}: " + "; ".join(f"{field.key} = {field.spoken()}" for field in given)
    elif style == 2:
        lines = "\n".join(f"{spoken_key(field.key)}: {field.spoken()}" for field in given)
        request = f"{head}.\n{lines}"
    else:
        request = f"Please {head[0].lower()}{head[1:]}, {', '.join(told)}."
    arguments = {field.key: field.value for field in given}
    code = draw.code()
    answer = f"Done. The reference is {code}."
    return Shape(tool, request, arguments, {"reference": code}, answer, (code,))
