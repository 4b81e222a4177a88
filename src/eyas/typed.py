"""Output types of the offline API: the grammar of an answer, and how to parse its text.

Promises: a type is turned into a grammar before any work is done. A complete answer of that grammar can
be parsed, unless the type requires more than its JSON schema expresses (a validator, the number of a
Decimal's digits, the scheme of a URL, an IP network, a complex number, keys of a dict that are numbers)
or Python can hold less (a number beyond a float, a leap second). The error has a note with the text.
Does not know: engines, prompts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict
from typing import Literal as OneOf

import msgspec
from pydantic_core import from_json

from eyas import grammar
from eyas.core import RequestError
from eyas.outputs import Choice
from eyas.schemas import grammar_source, json_node, rust_pattern

_BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_NAIVE_DATETIME = (
    "^[1-9][0-9]{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    "T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?$"
)
"""Of the days that every month has."""
_UUID = "^[0-9a-f]{{8}}-[0-9a-f]{{4}}-{version}[0-9a-f]{{3}}-[89ab][0-9a-f]{{3}}-[0-9a-f]{{12}}$"


@dataclass(frozen=True, slots=True)
class Regex:
    """A regular expression that the whole text must match. The value is the text."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar in Lark, EBNF (GBNF) or llguidance's JSON form, told apart by syntax. The value is the
    text."""

    text: str


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON schema (an object, or its JSON text). The value consists of plain Python values."""

    schema: dict[str, Any] | bool | str


@dataclass(frozen=True, slots=True)
class Typed:
    """An output type. node: its grammar. parse: converts a complete text to the value. partial:
    converts the beginning of a text to plain Python values; None if it holds none yet."""

    node: grammar.Node
    parse: Callable[[str], Any]
    partial: Callable[[str], Any] = str


def typed(output: Any) -> Typed:
    """Convert the `output` argument of `LLM` to an output type.

    output: a pydantic class, a dataclass or anything else that msgspec or pydantic has a JSON schema
    of (TypedDict, Enum, list[Model], ...); a Literal; a compiled pattern; the text of a grammar; one
    of the classes above; or a node of `eyas.grammar`. A Literal of strings only is answered without
    quotes.

    Raises RequestError for anything else, GrammarError for what cannot be enforced.
    """
    match output:
        case Regex(pattern):
            return Typed(grammar.Regex(pattern), str)
        case re.Pattern():
            return Typed(grammar.Regex(rust_pattern(output, "output")), str)
        case Grammar(text) | str(text):
            return Typed(grammar_source(text, "output"), str)
        case JsonSchema(schema):
            return _json(schema, json.loads)
    if isinstance(output, grammar.Node):
        return Typed(output, str)
    if get_origin(output) is OneOf and all(isinstance(value, str) for value in get_args(output)):
        options = tuple(grammar.Literal(value) for value in get_args(output))
        return Typed(grammar.Choice(options), str)
    if not _is_for_pydantic(output):
        try:
            schema = msgspec.json.schema(output)
        except (TypeError, RuntimeError):
            pass  # pydantic may know the type
        else:
            return _json(
                _as_msgspec_reads(schema), lambda text: msgspec.json.decode(text, type=output)
            )
    return _typed_by_pydantic(output)


def _json(schema: Any, parse: Callable[[str], Any]) -> Typed:
    def parse_with_note(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            error.add_note(f"the answer was: {text}")
            raise

    return Typed(json_node(schema, param="output"), parse_with_note, _parse_partial)


def _as_msgspec_reads(schema: Any) -> Any:
    """Return the JSON schema with a pattern for the strings that msgspec decodes as base64, and sets as
    lists, since it reads values that repeat as one."""
    if isinstance(schema, list):
        return [_as_msgspec_reads(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "string" and schema.get("contentEncoding") == "base64":
        others = {key: value for key, value in schema.items() if key != "contentEncoding"}
        return {**others, "pattern": _BASE64}
    return {key: _as_msgspec_reads(value) for key, value in _set_as_list(schema).items()}


def _set_as_list(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a set's schema without `uniqueItems`, unless values that repeat could leave too few."""
    is_set = schema.get("uniqueItems") is True and schema.get("minItems", 0) <= 1
    return {key: value for key, value in schema.items() if key != "uniqueItems" or not is_set}


def _parse_partial(text: str) -> Any:
    """Parse the beginning of a JSON text. An incomplete string is kept as far as it goes, a member
    without a value is left out. Returns None if there is no value yet."""
    try:
        return from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return None  # an incomplete word or number, or no text


def _is_for_pydantic(output: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """Whether msgspec would not enforce what a part of the type requires, but pydantic does: one of its
    classes or dataclasses, a Field in an annotation, a date with a time, a time, a Decimal, keys of a
    dict out of a few texts."""
    if any(output is kind for kind in (datetime, time, Decimal)):
        return True
    if isinstance(origin := get_origin(output), type) and issubclass(origin, Mapping):
        key = next(iter(get_args(output)), None)
        if isinstance(key, type) and issubclass(key, Enum):
            keys: tuple[Any, ...] = tuple(member.value for member in key)
        else:
            keys = get_args(key) if get_origin(key) is OneOf else ()
        if keys and all(isinstance(each, str) for each in keys):
            return True
    if type(output).__module__.partition(".")[0] in ("pydantic", "annotated_types"):
        return True
    if hasattr(output, "__pydantic_validator__"):
        return True
    parts: list[Any] = list(get_args(output))
    if isinstance(output, type) and output not in seen:
        seen |= {output}
        if dataclasses.is_dataclass(output) or is_typeddict(output):
            with contextlib.suppress(NameError):  # an annotation in quotes that cannot be resolved
                parts += get_type_hints(output, include_extras=True).values()
    return any(_is_for_pydantic(part, seen) for part in parts)


def _typed_by_pydantic(output: Any) -> Typed:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError
    from pydantic.json_schema import GenerateJsonSchema

    class ReadableSchemas(GenerateJsonSchema):
        def decimal_schema(self, schema: Any) -> dict[str, Any]:
            """Return the first of pydantic's forms, a number. The other one is any text."""
            return super().decimal_schema(schema)["anyOf"][0]

        def datetime_schema(self, schema: Any) -> dict[str, Any]:
            """Return a pattern for a datetime without an offset: JSON schema has no format for it."""
            if schema.get("tz_constraint") == "naive":
                return {"type": "string", "pattern": _NAIVE_DATETIME}
            return super().datetime_schema(schema)

        def uuid_schema(self, schema: Any) -> dict[str, Any]:
            """Return a pattern for a UUID of one version: JSON schema has no format for it."""
            version = schema.get("version")
            if version is None:
                return super().uuid_schema(schema)
            return {"type": "string", "pattern": _UUID.format(version=version)}

        def set_schema(self, schema: Any) -> dict[str, Any]:
            return _set_as_list(super().set_schema(schema))

        def frozenset_schema(self, schema: Any) -> dict[str, Any]:
            return _set_as_list(super().frozenset_schema(schema))

        def literal_schema(self, schema: Any) -> dict[str, Any]:
            for value in schema["expected"]:
                if isinstance(value, Enum) and not isinstance(value, (str, int)):
                    raise RequestError(
                        f"output: a Literal of {value} cannot be read from JSON; use "
                        f"{type(value).__name__} itself, or a Literal of texts",
                        param="output",
                    )
            return super().literal_schema(schema)

    try:
        if not isinstance(output, type) and get_origin(output) is None:
            raise TypeError("it is no type")
        adapter: TypeAdapter[Any] = TypeAdapter(output)  # pyrefly: ignore
        schema = adapter.json_schema(schema_generator=ReadableSchemas)
    except (TypeError, NameError, PydanticUserError) as error:
        reason = str(error).partition("\n")[0]
        raise RequestError(
            f"output: no JSON schema can be made of {output!r} ({reason}); give a pydantic class, a "
            "dataclass, a Literal, a compiled pattern, Regex(...), Grammar(...) or JsonSchema(...)",
            param="output",
        ) from error
    return _json(schema, adapter.validate_json)


class OutputIncomplete(ValueError):
    """The answer is not complete: the text was cut off, or the model called a tool instead.

    choice: the incomplete answer.
    """

    def __init__(self, choice: Choice) -> None:
        reason = choice.finish_reason
        if choice.tool_calls:
            message = f"the model called {choice.tool_calls[0].name} instead of answering"
        else:
            detail = f" ({choice.error})" if choice.error else ""
            remedy = "; raise max_tokens" if reason == "length" else ""
            message = f"the output ended with {reason!r}{detail} before it was whole{remedy}"
        super().__init__(message)
        self.choice = choice
        self.text = choice.content
        self.reason = reason
