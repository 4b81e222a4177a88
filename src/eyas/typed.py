"""Output types of the offline API: what an answer must look like, and how its text is read back.

Promises: a type becomes a grammar before any work is done, and a whole answer of that grammar reads
back, unless the type asks for more than its JSON schema says (a Decimal, a datetime, a validator).
Does not know: engines, prompts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args, get_origin
from typing import Literal as OneOf

import msgspec

from eyas import grammar
from eyas.core import RequestError
from eyas.outputs import Choice
from eyas.schemas import grammar_source, json_node


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
    """node: what the answer must be. parse: its text as a value."""

    node: grammar.Node
    parse: Callable[[str], Any]


def typed(output: Any) -> Typed:
    """What an `output=` argument asks for: a pydantic class, a dataclass (or anything else that msgspec
    reads: TypedDict, Enum, list[int], ...), a Literal, one of the classes above, or a node of
    `eyas.grammar`. A Literal of strings alone is answered without quotes.

    RequestError for what is none of them, GrammarError for what cannot be enforced.
    """
    match output:
        case Regex(pattern):
            return Typed(grammar.Regex(pattern), str)
        case Grammar(text):
            return Typed(grammar_source(text, "output"), str)
        case JsonSchema(schema):
            return Typed(json_node(schema, param="output"), json.loads)
    if isinstance(output, grammar.Node):
        return Typed(output, str)
    if get_origin(output) is OneOf and all(isinstance(value, str) for value in get_args(output)):
        options = tuple(grammar.Literal(value) for value in get_args(output))
        return Typed(grammar.Choice(options), str)
    if hasattr(output, "model_json_schema") and hasattr(output, "model_validate_json"):
        schema = output.model_json_schema()
        return Typed(json_node(schema, param="output"), output.model_validate_json)
    try:
        schema = msgspec.json.schema(output)
    except (TypeError, RuntimeError) as error:
        raise RequestError(
            f"output: no JSON schema can be made of {output!r}; give a pydantic class, a dataclass, a "
            "Literal, Regex(...), Grammar(...) or JsonSchema(...)",
            param="output",
        ) from error
    node = json_node(schema, param="output")
    return Typed(node, lambda text: msgspec.json.decode(text, type=output))


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
