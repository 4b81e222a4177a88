"""Output types of the offline API: what an answer must look like, and how its text is read back.

Promises: a type becomes a grammar before any work is done, and a whole answer of that grammar reads
back, unless the type asks for more than its JSON schema says (a Decimal, a datetime, a validator).
Does not know: engines, prompts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict
from typing import Literal as OneOf

import msgspec
from pydantic_core import from_json

from eyas import grammar
from eyas.core import RequestError
from eyas.outputs import Choice
from eyas.schemas import grammar_source, json_node, rust_pattern


@dataclass(frozen=True, slots=True)
class Regex:
    """A text that the whole pattern matches; read back as the text."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """A text of a grammar in Lark, EBNF (GBNF) or llguidance's JSON form, found by how it looks; read
    back as the text."""

    text: str


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """JSON of a schema (an object, or its JSON text); read back as plain Python values."""

    schema: dict[str, Any] | bool | str


@dataclass(frozen=True, slots=True)
class Typed:
    """node: what the answer must be. parse: its whole text as a value. partial: what the beginning of
    its text says, as plain Python values; None where it says nothing yet."""

    node: grammar.Node
    parse: Callable[[str], Any]
    partial: Callable[[str], Any] = str


def typed(output: Any) -> Typed:
    """What an `output=` argument asks for: a pydantic class, a dataclass, or anything else that msgspec
    or pydantic has a JSON schema of (TypedDict, Enum, list[Model], ...), a Literal, a compiled pattern,
    a grammar's text, one of the classes above, or a node of `eyas.grammar`. A Literal of strings alone
    is answered without quotes.

    RequestError for what is none of them, GrammarError for what cannot be enforced.
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
    if not _is_pydantic(output):
        try:
            schema = msgspec.json.schema(output)
        except (TypeError, RuntimeError):
            pass  # perhaps a pydantic class is among its parts
        else:
            return _json(schema, lambda text: msgspec.json.decode(text, type=output))
    return _by_pydantic(output)


def _json(schema: Any, parse: Callable[[str], Any]) -> Typed:
    return Typed(json_node(schema, param="output"), parse, _begun)


def _begun(text: str) -> Any:
    """The value of which JSON text is the beginning, as far as it goes: an open string is cut where it
    stands, a member without a value is left out."""
    try:
        return from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return None  # a word or a number that has only begun, or nothing at all


def _is_pydantic(output: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """Has the type a part that pydantic checks: a class or dataclass of its own, or a Field among the
    annotations? msgspec would leave out what it asks for."""
    if type(output).__module__.partition(".")[0] in ("pydantic", "annotated_types"):
        return True
    if hasattr(output, "__pydantic_validator__"):
        return True
    parts: list[Any] = list(get_args(output))
    if isinstance(output, type) and output not in seen:
        seen |= {output}
        if dataclasses.is_dataclass(output) or is_typeddict(output):
            with contextlib.suppress(NameError):  # a name in quotes that is not to be found
                parts += get_type_hints(output, include_extras=True).values()
    return any(_is_pydantic(part, seen) for part in parts)


def _by_pydantic(output: Any) -> Typed:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        if not isinstance(output, type) and get_origin(output) is None:
            raise TypeError("it is no type")
        adapter: TypeAdapter[Any] = TypeAdapter(output)  # pyrefly: ignore
        schema = adapter.json_schema()
    except (TypeError, NameError, PydanticUserError) as error:
        reason = str(error).partition("\n")[0]
        raise RequestError(
            f"output: no JSON schema can be made of {output!r} ({reason}); give a pydantic class, a "
            "dataclass, a Literal, a compiled pattern, Regex(...), Grammar(...) or JsonSchema(...)",
            param="output",
        ) from error
    return _json(schema, adapter.validate_json)


class OutputIncomplete(ValueError):
    """There is no whole answer: the text was cut off, or tools were called instead. choice: what there
    is of it."""

    def __init__(self, choice: Choice) -> None:
        reason = choice.finish_reason
        if choice.tool_calls:
            said = f"the model called {choice.tool_calls[0].name} instead of answering"
        else:
            detail = f" ({choice.error})" if choice.error else ""
            remedy = "; raise max_tokens" if reason == "length" else ""
            said = f"the output ended with {reason!r}{detail} before it was whole{remedy}"
        super().__init__(said)
        self.choice = choice
        self.text = choice.content
        self.reason = reason
