"""Grammar trees as llguidance's own text: named Lark grammars and JSON schemas.

Promises: parts that are regular become one terminal, so that their borders are found by matching and
not by the longest piece; a user's grammar keeps its own names, lines and columns, and never names a
control token.
Does not know: matchers, vocabularies, time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from eyas.constraint.ebnf import lark_of
from eyas.constraint.freetext import free_text_regex
from eyas.constraint.regexes import told
from eyas.constraint.sources import (
    check_source,
    check_text,
    checked_lark,
    parsed_json,
    spacing_of,
)
from eyas.core import GrammarError
from eyas.grammar import (
    Choice,
    Concat,
    FreeText,
    Json,
    Literal,
    Marker,
    Node,
    Regex,
    Repeat,
    Source,
    Spacing,
)
from eyas.schemas import json_node

_OPTIONS = '%llguidance {"no_forcing": true}'
"""Masks allow every spelling of a text; otherwise they would call the tokenizer for the usual one."""


def to_llguidance(root: Node, spacing: Spacing) -> str:
    """Return the JSON text that llguidance takes. spacing: of schemas that do not set their own.
    GrammarError (without a field) for what cannot be written."""
    return _Writer(spacing).document(root)


class _Writer:
    """Collects the rules, terminals and sub-grammars of one tree."""

    def __init__(self, spacing: Spacing) -> None:
        self._spacing = spacing
        self._rules: list[str] = []
        self._names: dict[str, str] = {}
        self._grammars: list[str] = []
        self._grammar_names: dict[Node, str] = {}

    def document(self, root: Node) -> str:
        start = self._expression(root)
        lark = "\n".join([_OPTIONS, f"start: {start}", *self._rules])
        return _document([_lark_grammar("eyas_output", lark), *self._grammars])

    def _expression(self, node: Node) -> str:
        """Return what stands for the node in a rule."""
        terminal = _terminal(node)
        if terminal is not None:
            return self._terminal(terminal)
        match node:
            case Marker():
                return self._marker(node)
            case FreeText(until, without):
                return self._free_text(until, without)
            case Json() | Source():
                return self._grammar(node)
            case Concat(parts):
                return self._series(parts)
            case Choice(options):
                return self._choice(options)
            case Repeat(part, least, most):
                return self._repeat(part, least, most)
        raise AssertionError(node)

    def _terminal(self, expression: str) -> str:
        return expression if expression == '""' else self._named("T", expression)

    def _named(self, prefix: str, expression: str) -> str:
        """Add a rule or, in capitals, a terminal. Equal ones share a name."""
        key = prefix + expression
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"{prefix}{len(self._names)}"
            self._rules.append(f"{name}: {expression}")
        return name

    def _marker(self, marker: Marker) -> str:
        """With a token id; without one it is a terminal."""
        forms = [f"<[{marker.token_id}]>"]
        if marker.is_text:
            forms.append(self._terminal(_string(marker.text)))
        return _any_of(forms)

    def _free_text(self, until: Sequence[Marker], without: Sequence[Marker]) -> str:
        ends = list(dict.fromkeys(marker.text for marker in until if marker.is_text))
        kept_out = list(dict.fromkeys(marker.text for marker in without))
        for text in (*ends, *kept_out):
            check_text(text, "a marker")
        forms = []
        if ends:
            forms.append(self._named("T", f"/{free_text_regex(ends, kept_out)}/"))
        body = self._named("T", f"/{free_text_regex((), [*ends, *kept_out])}/")
        ids = [marker.token_id for marker in until if marker.token_id is not None]
        if ids:
            forms.append(f"{body} {_any_of([f'<[{token}]>' for token in dict.fromkeys(ids)])}")
        return _any_of(forms) if forms else body

    def _grammar(self, node: Json | Source) -> str:
        name = self._grammar_names.get(node)
        if name is None:
            name = self._grammar_names[node] = f"eyas_{len(self._grammar_names)}"
            if isinstance(node, Json):
                self._grammars.append(json_grammar(name, node, self._spacing))
            else:
                self._grammars += _sources(name, node, self._spacing)
        return f"@{name}"

    def _series(self, parts: Sequence[Node]) -> str:
        pieces: list[str] = []
        run: list[str] = []
        for part in _flat(parts):
            terminal = _terminal(part)
            if terminal is not None:
                run.append(terminal)
                continue
            if run:
                pieces.append(self._terminal(_joined(run)))
                run = []
            pieces.append(self._expression(part))
        if run:
            pieces.append(self._terminal(_joined(run)))
        kept = [piece for piece in pieces if piece != '""']
        return f"({' '.join(kept)})" if kept else '""'

    def _choice(self, options: Sequence[Node]) -> str:
        if not options:
            raise GrammarError("a choice needs at least one option", "invalid")
        terminals = [(option, _terminal(option)) for option in options]
        regular = [terminal for _, terminal in terminals if terminal is not None]
        forms = [self._terminal(_any_of(regular))] if regular else []
        forms += [self._expression(option) for option, terminal in terminals if terminal is None]
        return _any_of(forms)

    def _repeat(self, part: Node, least: int, most: int | None) -> str:
        times = _times(least, most)
        return '""' if times is None else f"{self._named('r', self._expression(part))}{times}"


def json_grammar(name: str, node: Json, spacing: Spacing) -> str:
    """Return a schema with its node's options; the schema's text stays as it is, numbers included."""
    value = parsed_json(node.schema, "the schema")
    if value is False:
        raise GrammarError("the schema is false, so no output could match it", "invalid")
    if not isinstance(value, dict) and value is not True:
        raise GrammarError("a schema must be a JSON object", "invalid")
    return f'{{"name":{json.dumps(name)},"json_schema":{_with_options(node, spacing)}}}'


def _with_options(node: Json, default: Spacing) -> str:
    """Return the schema's text with the options that the library takes beside it."""
    options: dict[str, Any] = {"lenient": node.lenient, "whitespace_flexible": False}
    spacing = spacing_of(node, default)
    options |= {"item_separator": spacing.item, "key_separator": spacing.key}
    if spacing.white_space:  # the library lets it stand once between two parts, and be left out
        options["whitespace_pattern"] = spacing.white_space
    schema = node.schema.strip()
    schema = "{}" if schema == "true" else schema
    comma = "," if schema[1:-1].strip() else ""
    return f'{schema[:-1]}{comma}"x-guidance":{json.dumps(options)}}}'


def _users_schemas(spacing: Spacing) -> Callable[[Any, str], str]:
    """Return a function that writes a schema inside a user's grammar, where it is enforced like any
    other."""
    return lambda schema, what: _with_options(json_node(schema, param=what), spacing)


def _terminal(node: Node) -> str | None:
    """Return a terminal's expression, or None where the node is more than a regular text."""
    match node:
        case Literal(text):
            return _string(text)
        case Marker(text, token_id):
            return _string(text) if token_id is None else None
        case Regex(pattern):
            return _regex(pattern)
        case Concat(parts):
            inner = [_terminal(part) for part in parts]
            return None if None in inner else _joined([text for text in inner if text])
        case Choice(options) if options:
            inner = [_terminal(option) for option in options]
            return None if None in inner else _any_of([text for text in inner if text])
        case Repeat(part, least, most):
            inner_part, times = _terminal(part), _times(least, most)
            if inner_part is None:
                return None
            return '""' if times is None else f"({inner_part}){times}"
    return None


def _flat(parts: Sequence[Node]) -> Iterator[Node]:
    for part in parts:
        if isinstance(part, Concat):
            yield from _flat(part.parts)
        else:
            yield part


def _joined(pieces: Sequence[str]) -> str:
    kept = [piece for piece in pieces if piece != '""']
    return " ".join(kept) if kept else '""'


def _any_of(forms: Sequence[str]) -> str:
    return forms[0] if len(forms) == 1 else f"({' | '.join(forms)})"


def _times(least: int, most: int | None) -> str | None:
    """None: not once."""
    if least < 0 or (most is not None and most < least):
        raise GrammarError(f"a part cannot repeat {least} to {most} times", "invalid")
    if most == 0:
        return None
    return f"{{{least},{'' if most is None else most}}}" if (least, most) != (0, None) else "*"


def _string(text: str) -> str:
    check_text(text, "a literal text")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _regex(pattern: str) -> str:
    check_text(pattern, "the regular expression")
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise GrammarError(
            f"the regular expression ends with a lone backslash at position {len(pattern) - 1}",
            "invalid",
        )
    if not pattern:
        return '""'
    return told(pattern)


def _lark_grammar(name: str, text: str) -> str:
    return json.dumps({"name": name, "lark_grammar": text})


def _document(grammars: Sequence[str]) -> str:
    return f'{{"grammars":[{",".join(grammars)}]}}'


def _sources(name: str, node: Source, spacing: Spacing) -> list[str]:
    """Return the grammars of a user's source, the first of them called `name`."""
    check_source(node.text)
    schema_text = _users_schemas(spacing)
    if node.syntax == "ebnf":
        return [_lark_grammar(name, checked_lark(lark_of(node.text), {}, schema_text))]
    if node.syntax == "lark":
        return [_lark_grammar(name, checked_lark(node.text, {}, schema_text))]
    return _from_llguidance(name, node.text, schema_text)


def _from_llguidance(name: str, text: str, schema_text: Callable[[Any, str], str]) -> list[str]:
    value = parsed_json(text, "the grammar")
    parts = value.get("grammars") if isinstance(value, dict) else None
    shape = '{"grammars": [{"name": ..., "lark_grammar": ...} or {..., "json_schema": ...}]}'
    if not isinstance(parts, list) or not parts or not all(isinstance(p, dict) for p in parts):
        raise GrammarError(f"the grammar is not of the form {shape}", "invalid")
    others = sorted(key for key in value if key != "grammars" and value[key] is not None)
    if others:
        raise GrammarError(
            f"{others[0]} is not supported in a grammar; leave it out", "unsupported"
        )
    names = {
        part["name"]: f"{name}_{i}" if i else name
        for i, part in enumerate(parts)
        if isinstance(part.get("name"), str)
    }
    written = []
    for i, part in enumerate(parts):
        own = f"{name}_{i}" if i else name
        lark, schema = part.get("lark_grammar"), part.get("json_schema")
        if isinstance(lark, str) and schema is None:
            written.append(_lark_grammar(own, checked_lark(lark, names, schema_text)))
        elif isinstance(schema, (dict, bool)) and lark is None:
            text = schema_text(schema, f"grammars[{i}].json_schema")
            written.append(f'{{"name":{json.dumps(own)},"json_schema":{text}}}')
        else:
            raise GrammarError(f"the grammar is not of the form {shape}", "invalid")
    return written
