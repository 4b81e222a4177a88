"""From a request's fields to the grammar of its output.

Promises: every constraint of OpenAI's, vLLM's and SGLang's is one node of `eyas.grammar`; one that is
said twice counts once, two that differ are refused by name, and so is what cannot be kept.
Does not know: dialects, tools, how a grammar is enforced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import msgspec

from eyas.core import RequestError
from eyas.grammar import SPACED, Choice, Literal, Node, OutputSpec, Regex
from eyas.schemas import grammar_source
from eyas.server.free_text import Spelling
from eyas.server.json_schema import schema_node
from eyas.server.request_models import ConstraintFields, ResponseFormat, StructuredOutputs
from eyas.server.structural_tag import structural_tag
from eyas.white_space import read_optional


class Constraint(NamedTuple):
    """What the output must be, and the field that said so."""

    param: str
    node: Node


def constraint_of(
    fields: ConstraintFields, spelling: Spelling, prefix: str = ""
) -> Constraint | None:
    """What all the fields together ask for, None if nothing. RequestError (GrammarError for a schema
    that cannot be enforced) names the field. prefix: where the fields stand in the request."""
    found = list(_constraints_in(fields, spelling, prefix))
    for other in found[1:]:
        if other.node != found[0].node:
            raise RequestError(
                f"{other.param}: asks for something else than {found[0].param}; give one of them",
                param=other.param,
            )
    return found[0] if found else None


def constrained_output(constraint: Constraint | None, *, ignore_eos: bool) -> OutputSpec | None:
    """An output that is nothing but what the constraint says; None without one."""
    if constraint is None:
        return None
    return with_param(OutputSpec(root=constraint.node), constraint.param, ignore_eos=ignore_eos)


def with_param(output: OutputSpec, param: str, *, ignore_eos: bool) -> OutputSpec:
    """The output with the field that asked for it. RequestError where it would not end."""
    if ignore_eos:
        raise RequestError(f"ignore_eos: cannot go with {param}, which ends", param="ignore_eos")
    return msgspec.structs.replace(output, param=output.param or param)


def _constraints_in(
    fields: ConstraintFields, spelling: Spelling, prefix: str
) -> Iterator[Constraint]:
    whitespace = fields.guided_whitespace_pattern
    if whitespace is not None and fields.guided_json is None:
        _refuse(f"{prefix}guided_whitespace_pattern", "is for guided_json only")
    response_format: ResponseFormat | None = getattr(fields, "response_format", None)
    if response_format is not None:
        yield from _response_format(response_format, spelling)
    if (outputs := fields.structured_outputs) is not None:
        yield from _structured_outputs(outputs, spelling, f"{prefix}structured_outputs")
    if fields.guided_json is not None:
        white_space = _white_space(whitespace, f"{prefix}guided_whitespace_pattern")
        yield _schema(fields.guided_json, f"{prefix}guided_json", white_space)
    if fields.json_schema is not None:
        yield _schema(fields.json_schema, f"{prefix}json_schema")
    for name, pattern in (("guided_regex", fields.guided_regex), ("regex", fields.regex)):
        if pattern is not None:
            yield Constraint(prefix + name, Regex(pattern))
    for name, text in (("guided_grammar", fields.guided_grammar), ("ebnf", fields.ebnf)):
        if text is not None:
            yield Constraint(prefix + name, grammar_source(text, prefix + name))
    if fields.guided_choice is not None:
        yield Constraint(f"{prefix}guided_choice", _choice(fields.guided_choice))
    if fields.structural_tag is not None:
        param = f"{prefix}structural_tag"
        yield Constraint(param, structural_tag(fields.structural_tag, spelling, param))


def _response_format(asked: ResponseFormat, spelling: Spelling) -> Iterator[Constraint]:
    parts = {
        "json_object": ("schema_",),
        "json_schema": ("json_schema",),
        "structural_tag": ("format", "structures", "triggers"),
    }.get(asked.type, ())
    for name in ("json_schema", "schema_", "format", "structures", "triggers"):
        if getattr(asked, name) is not None and name not in parts:
            _refuse(f"response_format.{name.rstrip('_')}", f"does not go with type {asked.type!r}")
    match asked.type:
        case "json_object":
            yield _schema({"type": "object", **(asked.schema_ or {})}, "response_format")
        case "json_schema":
            wanted = asked.json_schema
            if wanted is None:
                _refuse("response_format.json_schema", "is required for type 'json_schema'")
            param = "response_format.json_schema.schema"
            yield _schema(wanted.schema_, param, lenient=wanted.strict is False)
        case "structural_tag":
            value = asked.model_dump(exclude_none=True)
            node = structural_tag(value, spelling, "response_format")
            yield Constraint("response_format", node)


def _structured_outputs(
    asked: StructuredOutputs, spelling: Spelling, param: str
) -> Iterator[Constraint]:
    if asked.disable_additional_properties:
        _refuse(
            f"{param}.disable_additional_properties",
            'is not supported; write "additionalProperties": false into the schema',
        )
    is_json = asked.json_ is not None or bool(asked.json_object)
    white_space = _white_space(asked.whitespace_pattern, f"{param}.whitespace_pattern")
    is_spaced = bool(asked.disable_any_whitespace)
    if (is_spaced or white_space is not None) and not is_json:
        is_pattern = asked.whitespace_pattern is not None
        name = "whitespace_pattern" if is_pattern else "disable_any_whitespace"
        _refuse(f"{param}.{name}", "is for json only")
    found = []
    if asked.json_ is not None:
        found.append(_schema(asked.json_, f"{param}.json", white_space, is_spaced=is_spaced))
    if asked.json_object:
        name, anything = f"{param}.json_object", {"type": "object"}
        found.append(_schema(anything, name, white_space, is_spaced=is_spaced))
    if asked.regex is not None:
        found.append(Constraint(f"{param}.regex", Regex(asked.regex)))
    if asked.choice is not None:
        found.append(Constraint(f"{param}.choice", _choice(asked.choice)))
    if asked.grammar is not None:
        name = f"{param}.grammar"
        found.append(Constraint(name, grammar_source(asked.grammar, name)))
    if asked.structural_tag is not None:
        name = f"{param}.structural_tag"
        found.append(Constraint(name, structural_tag(asked.structural_tag, spelling, name)))
    if not found:
        _refuse(param, "names no constraint; give json, regex, choice, grammar or structural_tag")
    yield from found


def _schema(
    value: Any,
    param: str,
    white_space: str | None = None,
    *,
    lenient: bool = False,
    is_spaced: bool = False,
) -> Constraint:
    """white_space: in place of what the schema says. is_spaced: usual separators and nothing else, if
    neither says anything."""
    node = schema_node(value, param, lenient=lenient)
    if white_space is not None:
        node = msgspec.structs.replace(node, white_space=white_space)
    elif is_spaced and node.white_space is None and node.separators is None:
        node = msgspec.structs.replace(node, separators=SPACED)
    return Constraint(param, node)


def _white_space(pattern: str | None, param: str) -> str | None:
    """A pattern as grammars take it."""
    try:
        return None if pattern is None else read_optional(pattern)
    except ValueError as error:
        _refuse(param, str(error))


def _choice(texts: list[str]) -> Node:
    options = tuple(Literal(text) for text in dict.fromkeys(texts))
    return options[0] if len(options) == 1 else Choice(options)


def _refuse(param: str, what: str) -> NoReturn:
    raise RequestError(f"{param}: {what}", param=param)
