"""Converts the fields that constrain a request's output to a grammar.

Promises: each constraint field of OpenAI, vLLM and SGLang becomes one node of `eyas.grammar`. Fields
that agree count as one; fields that differ are refused by name, and so is what cannot be enforced.
Does not know: dialects, tools, how a grammar is enforced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from eyas.core import field_error
from eyas.grammar import SPACED, Literal, Node, OutputSpec, Regex
from eyas.schemas import grammar_source
from eyas.server.constraints.free_text import ControlTokenSplitter, choice_of
from eyas.server.constraints.json_schema import schema_node
from eyas.server.constraints.structural_tag import structural_tag
from eyas.server.http.codes import Code
from eyas.server.request_models import ConstraintFields, ResponseFormat, StructuredOutputs
from eyas.white_space import read_optional


class Constraint(NamedTuple):
    """What the output must be, and the field that requires it."""

    param: str
    node: Node


def constraint_of(
    fields: ConstraintFields, splitter: ControlTokenSplitter, prefix: str = ""
) -> Constraint | None:
    """Return the constraint of all fields together, or None if there is none.

    prefix: the path of the fields in the request. RequestError names the field; GrammarError is one for
    a schema that cannot be enforced.
    """
    constraints = list(_constraints_in(fields, splitter, prefix))
    for other in constraints[1:]:
        if other.node != constraints[0].node:
            raise field_error(
                other.param,
                f"asks for something else than {constraints[0].param}; give one of them",
            )
    return constraints[0] if constraints else None


def constrained_output(constraint: Constraint | None, *, ignore_eos: bool) -> OutputSpec | None:
    """Return the specification of an output to which the constraint applies as a whole; None without
    one."""
    if constraint is None:
        return None
    return with_param(OutputSpec(root=constraint.node), constraint.param, ignore_eos=ignore_eos)


def with_param(output: OutputSpec, param: str, *, ignore_eos: bool) -> OutputSpec:
    """Return the output with the field that requires it. RequestError if ignore_eos would make it
    endless."""
    if ignore_eos:
        raise field_error("ignore_eos", f"cannot go with {param}, which ends")
    return msgspec.structs.replace(output, param=output.param or param)


def _constraints_in(
    fields: ConstraintFields, splitter: ControlTokenSplitter, prefix: str
) -> Iterator[Constraint]:
    whitespace = fields.guided_whitespace_pattern
    if whitespace is not None and fields.guided_json is None:
        raise field_error(f"{prefix}guided_whitespace_pattern", "is for guided_json only")
    response_format: ResponseFormat | None = getattr(fields, "response_format", None)
    if response_format is not None:
        yield from _response_format(response_format, splitter)
    if (outputs := fields.structured_outputs) is not None:
        yield from _structured_outputs(outputs, splitter, f"{prefix}structured_outputs")
    if fields.guided_json is not None:
        white_space = _white_space(whitespace, f"{prefix}guided_whitespace_pattern")
        yield _schema(fields.guided_json, f"{prefix}guided_json", white_space)
    if fields.json_schema is not None:
        yield _schema(fields.json_schema, f"{prefix}json_schema")
    for name, kind in _KINDS.items():
        if (value := getattr(fields, name)) is not None:
            yield _constraint(kind, value, prefix + name, splitter)


_KINDS = {
    "guided_regex": "regex",
    "regex": "regex",
    "guided_grammar": "grammar",
    "ebnf": "grammar",
    "guided_choice": "choice",
    "structural_tag": "structural_tag",
}
"""The kinds of constraints other than schemas, by their fields."""


def _constraint(kind: str, value: Any, param: str, splitter: ControlTokenSplitter) -> Constraint:
    match kind:
        case "regex":
            return Constraint(param, Regex(value))
        case "grammar":
            return Constraint(param, grammar_source(value, param))
        case "choice":
            return Constraint(param, choice_of([Literal(text) for text in value]))
    assert kind == "structural_tag"
    return Constraint(param, structural_tag(value, splitter, param))


def _response_format(
    response_format: ResponseFormat, splitter: ControlTokenSplitter
) -> Iterator[Constraint]:
    parts = {
        "json_object": ("schema_",),
        "json_schema": ("json_schema",),
        "structural_tag": ("format", "structures", "triggers"),
    }.get(response_format.type, ())
    for name in ("json_schema", "schema_", "format", "structures", "triggers"):
        if getattr(response_format, name) is not None and name not in parts:
            raise field_error(
                f"response_format.{name.rstrip('_')}",
                f"does not go with type {response_format.type!r}",
            )
    match response_format.type:
        case "json_object":
            yield _schema({"type": "object", **(response_format.schema_ or {})}, "response_format")
        case "json_schema":
            schema_format = response_format.json_schema
            if schema_format is None:
                raise field_error(
                    "response_format.json_schema",
                    "is required for type 'json_schema'",
                    code=Code.MISSING_REQUIRED_PARAMETER.word,
                )
            param = "response_format.json_schema.schema"
            yield _schema(schema_format.schema_, param, lenient=schema_format.strict is False)
        case "structural_tag":
            value = response_format.model_dump(exclude_none=True)
            node = structural_tag(value, splitter, "response_format")
            yield Constraint("response_format", node)


def _structured_outputs(
    outputs: StructuredOutputs, splitter: ControlTokenSplitter, param: str
) -> Iterator[Constraint]:
    if outputs.disable_additional_properties:
        raise field_error(
            f"{param}.disable_additional_properties",
            'is not supported; write "additionalProperties": false into the schema',
        )
    anything = {"type": "object"} if outputs.json_object else None
    schemas = {"json": outputs.json_, "json_object": anything}
    schemas = {name: schema for name, schema in schemas.items() if schema is not None}
    white_space = _white_space(outputs.whitespace_pattern, f"{param}.whitespace_pattern")
    only_usual_separators = bool(outputs.disable_any_whitespace)
    if (only_usual_separators or white_space is not None) and not schemas:
        is_pattern = outputs.whitespace_pattern is not None
        name = "whitespace_pattern" if is_pattern else "disable_any_whitespace"
        raise field_error(f"{param}.{name}", "is for json only")
    others = {kind: getattr(outputs, kind) for kind in dict.fromkeys(_KINDS.values())}
    others = {kind: value for kind, value in others.items() if value is not None}
    if not (schemas or others):
        raise field_error(
            param, "names no constraint; give json, regex, choice, grammar or structural_tag"
        )
    for name, schema in schemas.items():
        yield _schema(
            schema,
            f"{param}.{name}",
            white_space,
            only_usual_separators=only_usual_separators,
        )
    for kind, value in others.items():
        yield _constraint(kind, value, f"{param}.{kind}", splitter)


def _schema(
    value: Any,
    param: str,
    white_space: str | None = None,
    *,
    lenient: bool = False,
    only_usual_separators: bool = False,
) -> Constraint:
    """Return the constraint of a JSON schema.

    white_space: overrides what the schema says. only_usual_separators: allow only the usual
    separators, if neither `white_space` nor the schema says anything else.
    """
    node = schema_node(value, param, lenient=lenient)
    if white_space is not None:
        node = msgspec.structs.replace(node, white_space=white_space)
    elif only_usual_separators and node.white_space is None and node.separators is None:
        node = msgspec.structs.replace(node, separators=SPACED)
    return Constraint(param, node)


def _white_space(pattern: str | None, param: str) -> str | None:
    """Return the pattern in the form that grammars take."""
    try:
        return None if pattern is None else read_optional(pattern)
    except ValueError as error:
        raise field_error(param, str(error)) from error
