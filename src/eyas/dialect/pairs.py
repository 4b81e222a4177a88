"""The arguments of a call as pairs of keys and values, with strings without quotes, as GLM, DeepSeek-V4
and Qwen3-Coder write them.

Promises: the pairs satisfy the schemas of the properties; what cannot be enforced is refused for strict
functions. A value that is read becomes JSON.
Does not know: the markers of a family.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.core import GrammarError
from eyas.dialect.base import ToolSpec
from eyas.dialect.json_text import read_value
from eyas.dialect.segment import Reading, StreamReader, Writer, ignore
from eyas.dialect.tools import literal, one_of, parameters
from eyas.grammar import Concat, FreeText, Json, Literal, Marker, Node, Regex, Repeat
from eyas.schemas import unspelled, with_children

Schema = dict[str, Any] | bool

_KNOWN = {"type", "properties", "required", "additionalProperties"}
_KNOWN_OF_STRINGS = {"type", "enum", "const", "pattern", "minLength", "maxLength"}
_NOTES = {
    "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default",
    "examples", "deprecated", "readOnly", "writeOnly", "nullable",
}  # fmt: skip
_NUM_REFERENCES = 16


@dataclass(frozen=True)
class Pairs:
    """The pairs of one function.

    properties: schemas by key, in the order of the schema. extra: the schema of other keys; None if
    they are not allowed. definitions: targets of references.
    """

    tool: ToolSpec
    properties: dict[str, Schema]
    required: frozenset[str]
    extra: Schema | None
    definitions: dict[str, Any]

    @classmethod
    def of(cls, tool: ToolSpec) -> Pairs:
        schema = _with_named_root(unspelled(parameters(tool)))
        definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        resolved = _resolved(schema, definitions)
        resolved = resolved if isinstance(resolved, dict) else {}
        _refuse_unknown(tool, resolved, _KNOWN | _NOTES, "the arguments of a call")
        properties = resolved.get("properties") or {}
        required = frozenset(resolved.get("required") or ())
        extra = resolved.get("additionalProperties", not properties)
        absent = sorted(required - set(properties))
        if absent and extra is False and tool.strict:
            raise GrammarError(
                f"tools: the arguments of {tool.name!r} must have {absent[0]!r}, which they may not "
                "have; list it in properties, or leave additionalProperties out",
                "invalid",
                param="tools",
            )
        missing = dict.fromkeys(absent, True if extra is False else extra)
        return cls(
            tool,
            properties | missing,
            required,
            None if extra is False or properties else extra,
            definitions,
        )

    def is_text(self, key: str) -> bool:
        """Whether the value of this key is a string, written without quotes."""
        schema = self.properties.get(key, True if self.extra is None else self.extra)
        return _is_string(_resolved(schema, self.definitions))

    def grammar(
        self,
        key_to: Callable[[Node, bool], Node],
        key_ends: Sequence[Marker],
        close: Marker,
        *,
        gap: str = "\n",
    ) -> list[Node]:
        """Return the grammar of all pairs, in order. key_to: extends the node of a key to the beginning
        of its value; it is told whether that is a string. key_ends: the markers that may follow a key.
        close: the marker after a value. gap: the text after a pair. GrammarError for a key in which
        there is such a marker."""
        parts: list[Node] = []
        after = literal(gap)
        for key, schema in self.properties.items():
            if any(end.is_text and end.text in key for end in key_ends):
                raise GrammarError(
                    f"tools: the parameter {key!r} of {self.tool.name!r} cannot be written in this "
                    "model's calls; give it another name",
                    "unsupported",
                    param="tools",
                )
            before = key_to(Literal(key), self.is_text(key))
            pair = Concat((before, self._value(schema, close), *after))
            parts.append(pair if key in self.required else Repeat(pair, 0, 1))
        if self.extra is not None:
            key = Regex(r"[A-Za-z0-9_.-]{1,64}")
            before = key_to(key, _is_string(_resolved(self.extra, self.definitions)))
            pair = Concat((before, self._value(self.extra, close), *after))
            parts.append(Repeat(pair))
        return parts

    def _value(self, schema: Schema, close: Marker) -> Node:
        """Return the grammar of a value and the marker that ends it."""
        resolved = _resolved(schema, self.definitions)
        if isinstance(resolved, dict) and _is_string(resolved):
            return self._string(resolved, close)
        whole = schema if isinstance(schema, bool) else {**schema, **self.definitions}
        text = json.dumps(whole, ensure_ascii=False)
        return Concat((Json(text, lenient=not self.tool.strict), close))

    def _string(self, schema: dict[str, Any], close: Marker) -> Node:
        _refuse_unknown(self.tool, schema, _KNOWN_OF_STRINGS | _NOTES, "a string argument")
        listed = [schema["const"]] if "const" in schema else schema.get("enum")
        if listed is not None:
            writable = [text for text in listed if not (close.is_text and close.text in text)]
            if self.tool.strict and len(writable) < len(listed):
                raise _unsupported(self.tool, f"a value with {close.text!r}", "a string argument")
            if writable:
                return Concat((one_of([Literal(text) for text in writable]), close))
        pattern = _pattern(schema)
        if pattern is None or close.is_text:
            if self.tool.strict and schema.keys() & {"pattern", "minLength", "maxLength"}:
                raise _unsupported(self.tool, "pattern or length", "this string argument")
            return FreeText(until=(close,))
        return Concat((Regex(pattern), close))


def texts_of(tools: Sequence[ToolSpec], name: str) -> Callable[[str], bool]:
    """Return whether the value of a key is a string, for the function with this name; of one that is
    not among the tools, no value is."""
    pairs = next((Pairs.of(tool) for tool in tools if tool.name == name), None)
    return lambda key: pairs is not None and pairs.is_text(key)


def read_pairs(
    reader: StreamReader,
    writer: Writer,
    markers: tuple[Marker, tuple[Marker, ...], Marker],
    ends: tuple[Marker, ...],
    is_text: Callable[[str, Marker], bool],
) -> Reading[Marker | None]:
    """Read pairs through the marker that ends them, write them as a JSON object, and return the marker;
    None, with the object open, if the stream ends before.

    markers: before a key, the ones that may follow it, and the one after a value. ends: may end the
    pairs, also within a key. is_text: of a key and the marker after it, whether the value is a string.
    """
    begin, key_ends, close = markers
    writer.arguments("{")
    separator = ""
    while (found := (yield from reader.until((begin, *ends), ignore))) == begin:
        key, found = yield from reader.collect(*key_ends, *ends)
        if found is None or found not in key_ends:
            break
        write_key(writer, key, separator)
        separator = ", "
        found = yield from read_argument(reader, writer, close, is_text=is_text(key, found))
        if found is None:
            break
    if found is not None:
        writer.arguments("}")
    return found


def write_key(writer: Writer, key: str, separator: str) -> None:
    """Write the key of a pair as JSON. separator: the text after the pair before it."""
    writer.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")


def read_argument(
    reader: StreamReader, writer: Writer, close: Marker, *, is_text: bool
) -> Reading[Marker | None]:
    """Read a value through the marker after it, write it as JSON, and return the marker; None if the
    stream ends before."""
    if is_text:
        writer.arguments('"')
        found = yield from reader.until((close,), lambda text: writer.arguments(_escaped(text)))
        writer.arguments("" if found is None else '"')
        return found
    pieces: list[str] = []
    yield from reader.white()
    yield from read_value(reader, pieces.append)
    rest, found = yield from reader.collect(close)
    if found is not None:
        text = ("".join(pieces) + rest).strip()
        writer.arguments(text if _is_json(text) else json.dumps(text))
    return found


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _pattern(schema: dict[str, Any]) -> str | None:
    """Return a regular expression of the whole string; None if no single one expresses the schema."""
    pattern = schema.get("pattern")
    if schema.keys() & {"minLength", "maxLength"}:
        if pattern is not None:
            return None
        most = schema.get("maxLength", "")
        return f"(?s:.{{{schema.get('minLength', 0)},{most}}})"
    if pattern is None:
        return None
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern[begins : len(pattern) - ends]
    if ((begins or ends) and "|" in inner) or "^" in inner.replace("[^", "") or "$" in inner:
        return None
    return ("" if begins else "(?s:.*)") + f"(?:{inner})" + ("" if ends else "(?s:.*)")


def _is_string(schema: Schema) -> bool:
    if isinstance(schema, bool):
        return False
    if "const" in schema:
        return isinstance(schema["const"], str)
    if "enum" in schema:
        return bool(schema["enum"]) and all(isinstance(value, str) for value in schema["enum"])
    return schema.get("type") == "string"


def _resolved(schema: Schema, definitions: dict[str, Any]) -> Schema:
    """Follow a chain of references and return the schema at its end."""
    for _ in range(_NUM_REFERENCES):
        if isinstance(schema, bool) or "$ref" not in schema or len(schema.keys() - _NOTES) > 1:
            return schema
        found: Any = definitions
        for step in str(schema["$ref"]).removeprefix("#/").split("/"):
            found = found.get(step) if isinstance(found, dict) else None
        if not isinstance(found, (dict, bool)):
            return schema
        schema = found
    return schema


def _with_named_root(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with a definition of itself in place of references to its root: in a property's
    own schema "#" would be the property."""
    definitions = schema.get("$defs", {})
    name = "root"
    while name in definitions:
        name += "_"

    def renamed(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        part = with_children(part, renamed)
        return {**part, "$ref": f"#/$defs/{name}"} if part.get("$ref") == "#" else part

    found = renamed(schema)
    if found == schema:
        return schema
    whole = {keyword: value for keyword, value in found.items() if keyword != "$defs"}
    return {**found, "$defs": {**found.get("$defs", {}), name: whole}}


def _refuse_unknown(tool: ToolSpec, schema: Schema, known: set[str], what: str) -> None:
    unknown = sorted(schema.keys() - known) if isinstance(schema, dict) else []
    if unknown and tool.strict:
        raise _unsupported(tool, ", ".join(unknown), what)


def _unsupported(tool: ToolSpec, keywords: str, what: str) -> GrammarError:
    return GrammarError(
        f"tools: {tool.name!r} is strict, and {keywords} of {what} cannot be enforced in this model's "
        "calls; leave it out, or leave out strict",
        "unsupported",
        param="tools",
    )
