"""A process that compiles for the xgrammar backend and may be killed at any time.

Promises: reads and writes one JSON value a line; says "ready" when it has read the vocabulary.
Does not know: requests, masks. Run as `python -m eyas.constraint.xgrammar_worker`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from types import ModuleType
from typing import IO, Any

import msgspec

from eyas import schemas
from eyas.constraint.freetext import free_text_grammar
from eyas.constraint.sources import check_source, checked_lark, parsed_json, spacing_of
from eyas.constraint.threads import give_way
from eyas.core import GrammarError, GrammarFault
from eyas.grammar import (
    COMPACT,
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
from eyas.white_space import is_plain

_LOOSE_CLASS = r"[^\"\\\r\n]"
"""The characters of strings with a length, with control characters, which JSON does not let in."""
_OTHER_CHARACTERS = r"[^\0-\u001f"
"""How classes of characters in strings begin otherwise."""
_LOOSE_ESCAPES = re.compile(r"^basic_escape ::= .*$", re.MULTILINE)
_ESCAPES = r'basic_escape ::= (([\"\\bfnrt]) | ("u00" [01] [A-Fa-f0-9]))'
"""The rule of escapes: only those that JSON needs, since others could spell a listed name as another.
"""


class Hello(msgspec.Struct):
    """The first line: the vocabulary, its bytes in base64. spacing: of schemas that do not set their
    own."""

    tokens: list[bytes]
    vocab_size: int
    stop_token_ids: list[int]
    spacing: Spacing


class Answer(msgspec.Struct):
    """The result of a compilation. error: the library's message; fault: where it is known already."""

    grammar: str | None = None
    error: str | None = None
    fault: GrammarFault | None = None


def format_of(node: Node, xgrammar: Any, spacing: Spacing) -> dict[str, Any]:
    """Return the tree as a structural tag's format. spacing: of schemas that do not set their own.
    GrammarError for what this library cannot express."""
    match node:
        case Literal(text):
            return {"type": "const_string", "value": text}
        case Marker():
            return _any_of(_marker_forms(node))
        case FreeText():
            return _free_text(node)
        case Json():
            return _ebnf(_schema_grammar(node, xgrammar, spacing))
        case Regex(pattern):
            return _ebnf(f"root ::= {_regex_rule(pattern)}\n")
        case Source():
            return _source(node, xgrammar)
        case Concat(parts):
            elements = [format_of(part, xgrammar, spacing) for part in parts]
            return {"type": "sequence", "elements": elements}
        case Choice(options):
            return _any_of([format_of(option, xgrammar, spacing) for option in options])
        case Repeat(part, least, most):
            if most == 0:
                return {"type": "const_string", "value": ""}
            most = -1 if most is None else most
            inner = format_of(part, xgrammar, spacing)
            return {"type": "repeat", "min": least, "max": most, "content": inner}
    raise AssertionError(node)


def _regex_rule(pattern: str) -> str:
    """The rule of a pattern, in which the library takes . for any character, and ignores anchors and
    operations on classes that it does not know."""
    try:
        return schemas.text_rule(pattern)
    except schemas.PatternFault as fault:
        begin = max(0, fault.position - 10)
        near = pattern[begin : fault.position + 10]
        message = f"the regular expression is refused at position {fault.position}, near {near!r}"
        raise GrammarError(f"{message}: {fault.message}", fault.fault) from None
    except ValueError as error:
        message = f"xgrammar cannot enforce {error}; use the llguidance backend"
        raise GrammarError(f"the regular expression is refused: {message}", "unsupported") from None


def _marker_forms(marker: Marker) -> list[dict[str, Any]]:
    forms: list[dict[str, Any]] = []
    if marker.token_id is not None:
        forms.append({"type": "token", "token": marker.token_id})
    if marker.is_text:
        forms.append({"type": "const_string", "value": marker.text})
    return forms


def _free_text(node: FreeText) -> dict[str, Any]:
    ends = [marker.text for marker in node.until if marker.is_text]
    without = [marker.text for marker in node.without]
    tokens = [
        {"type": "token", "token": marker.token_id}
        for marker in node.until
        if marker.token_id is not None
    ]
    forms: list[dict[str, Any]] = []
    if ends or not tokens:
        forms.append(_ebnf(free_text_grammar(ends, without)))
    if tokens:
        body = _ebnf(free_text_grammar((), [*without, *ends]))
        forms.append({"type": "sequence", "elements": [body, _any_of(tokens)]})
    return _any_of(forms)


_MARK = 77
"""Characters of white space that the library is asked for, to find the places where it may stand."""
_WHITE = rf"whitespace(?:_\d+)?\{{0,[ ]{_MARK}\}}"
_PLACE = re.compile(
    rf"""(?P<other>"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\])|(?P<ahead>\(=\({_WHITE})
    |(?P<white>\b{_WHITE})(?:\ "(?P<sign>[,:])"\ {_WHITE})?""",
    re.DOTALL | re.VERBOSE,
)
"""Texts and classes; what may follow a string; white space, perhaps with a separator in its middle."""
_SIGN = re.compile(r"(\{\d+,\d+\}|\[[^\]]*\])|([,:])")


_SHORT_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\x([0-9a-fA-F]{2})")


def _text_of(grammar: Any) -> str:
    """The library's text of a grammar, with characters below 256 in four digits: it writes two, and
    reads more if digits follow."""
    return _SHORT_ESCAPE.sub(r"\1\\u00\2", str(grammar))


def _schema_grammar(node: Json, xgrammar: Any, default: Spacing) -> str:
    """Insert white space and separators, since the library has not all of them as options, and the
    rules of patterns, which it reads wrongly: it lets "11" through ^1(?:-1+)?$."""
    strings = _Strings(node.schema)
    schema = strings.named(_spelled(parsed_json(node.schema, "the schema")))
    spacing = spacing_of(node, default)
    grammar = xgrammar.Grammar.from_json_schema(
        json.dumps(schema),
        any_whitespace=True,
        max_whitespace_cnt=_MARK,
        separators=COMPACT,
        strict_mode=False,
    )
    text = _LOOSE_ESCAPES.sub(lambda _: _ESCAPES, _text_of(grammar))
    signs = {",": _in_ebnf(spacing.item), ":": _in_ebnf(spacing.key)}
    white = "eyas_white_space" if spacing.white_space else ""

    def spaced(found: re.Match[str]) -> str:
        if found["other"]:
            return _of_json(found["other"])
        if found["ahead"]:
            return r"(=([ \n\r\t]*"
        return f"{white} {signs[found['sign']]} {white}" if found["sign"] else white

    text = strings.put(_PLACE.sub(spaced, text))
    return f"{text}\n{white} ::= {_in_ebnf(spacing.white_space)}\n" if white else text


def _of_json(part: str) -> str:
    """Return a text of the grammar as it is, and a class of characters in strings without those that
    no JSON text has."""
    if part == _LOOSE_CLASS:
        part = rf"{_OTHER_CHARACTERS}\"\\]"
    if part.startswith(_OTHER_CHARACTERS):
        return f"{_OTHER_CHARACTERS}{schemas.NO_CHARACTERS}{part.removeprefix(_OTHER_CHARACTERS)}"
    return part


_BESIDE_VALUES = {"const", "enum", "type"}


def _spelled(schema: Any) -> Any:
    """Return the schema with objects and lists that it names by value as schemas of their members: the
    library writes such a value as one text, in which no white space may stand."""
    if not isinstance(schema, dict):
        return schema
    schema = schemas.with_children(schema, _spelled)
    values = [schema["const"]] if "const" in schema else schema.get("enum", ())
    parts = [value for value in values if isinstance(value, dict | list)]
    if not parts or not schema.keys() <= _BESIDE_VALUES:
        return schema
    plain = [value for value in values if not isinstance(value, dict | list)]
    options = [*([{"enum": plain}] if plain else []), *map(_literal, parts)]
    return options[0] if len(options) == 1 else {"anyOf": options}


def _literal(value: Any) -> dict[str, Any]:
    """Return the schema of one value."""
    if isinstance(value, dict):
        members = {name: _literal(member) for name, member in value.items()}
        closed = {"required": list(value), "additionalProperties": False}
        return {"type": "object", "properties": members, **closed}
    if isinstance(value, list):
        size = {"minItems": len(value), "maxItems": len(value), "items": False}
        return {"type": "array", "prefixItems": [_literal(item) for item in value], **size}
    return {"const": value}


class _Strings:
    """The patterns of one schema, and formats that a pattern describes. Each is named in the schema by
    a pattern for one text, whose place in the library's grammar its rule takes."""

    def __init__(self, schema_text: str) -> None:
        self._name = "eyas_string"
        while self._name in schema_text:
            self._name += "_"
        self._rules: dict[str, str] = {}

    def named(self, schema: Any) -> Any:
        """Return the schema with names in place of its patterns."""
        if not isinstance(schema, dict):
            return schema
        schema = schemas.with_children(schema, self.named)
        pattern = schema.get("pattern", schemas.NARROW_PATTERNS.get(schema.get("format", "")))
        if pattern is None:
            return schema
        try:
            rule = schemas.string_rule(pattern)
        except ValueError:  # of a lenient schema
            rule = schemas.ANY_STRING
        name = self._rules.setdefault(rule, f"{self._name}_{len(self._rules)}")
        rest = {keyword: value for keyword, value in schema.items() if keyword != "format"}
        return {**rest, "pattern": f"^{name}$"}

    def put(self, grammar: str) -> str:
        """Return the grammar with the rules in their places. GrammarError where one has none."""
        for rule, name in self._rules.items():
            place = f'Regex("^{name}$", json_string=true)'
            if place not in grammar:
                message = "xgrammar left a pattern out; use the llguidance backend"
                raise GrammarError(message, "unsupported")
            grammar = f"{grammar.replace(place, name)}\n{name} ::= {rule}\n"
        return grammar


def _in_ebnf(pattern: str) -> str:
    """White space or a separator, which is a text where it has no class."""
    if is_plain(pattern):
        return json.dumps(pattern)
    return _SIGN.sub(lambda found: found[1] or f'"{found[2]}"', pattern.replace("(?:", "("))


_DIRECTIVE = re.compile(r"(?m)^[ \t]*%llguidance[ \t]*\{[^{}]*\}")
"""The first line of guidance's grammars, which this library does not know; its options, once they are
checked, ask for nothing."""


def _source(node: Source, xgrammar: Any) -> dict[str, Any]:
    check_source(node.text)
    match node.syntax:
        case "ebnf":
            return _ebnf(_text_of(xgrammar.Grammar.from_ebnf(node.text)))
        case "lark":
            lark = _DIRECTIVE.sub("", checked_lark(node.text, {}, _refuse_schema), count=1)
            return _ebnf(_text_of(xgrammar.Grammar.from_lark(lark)))
    raise GrammarError(
        "llguidance's own grammars need that backend; write it as lark", "unsupported"
    )


def _refuse_schema(schema: Any, what: str) -> str:
    message = f"{what}: xgrammar ignores parts of it; use the llguidance backend, or json_schema"
    raise GrammarError(message, "unsupported")


def _ebnf(grammar: str) -> dict[str, Any]:
    return {"type": "grammar", "grammar": grammar}


def _any_of(forms: list[dict[str, Any]]) -> dict[str, Any]:
    if not forms:
        raise GrammarError("a choice needs at least one option", "invalid")
    return forms[0] if len(forms) == 1 else {"type": "or", "elements": forms}


def tokenizer_info(xgrammar: Any, hello: Hello) -> Any:
    """Return the library's view of a vocabulary whose control tokens are no UTF-8."""
    return xgrammar.TokenizerInfo(
        hello.tokens,
        xgrammar.VocabType.RAW,
        vocab_size=hello.vocab_size,
        stop_token_ids=hello.stop_token_ids,
    )


def _answer(line: bytes, compiler: Any, xgrammar: Any, spacing: Spacing) -> Answer:
    try:
        root = msgspec.json.decode(line, type=Node)
        form = {"type": "structural_tag", "format": format_of(root, xgrammar, spacing)}
        return Answer(grammar=compiler.compile_structural_tag(form).serialize_json())
    except GrammarError as error:
        return Answer(error=error.message, fault=error.fault)
    except RecursionError:
        return Answer(error="it is nested too deeply; flatten it", fault="too_complex")
    except Exception as error:  # the library raises what it likes
        return Answer(error=str(error) or type(error).__name__)


def light_library() -> Any:
    """xgrammar's compiler alone. The package imports torch and transformers, which a compiler has no
    use for: seconds of every start, and hundreds of megabytes for as long as it lives. Where its parts
    do not go without them, the whole package as it is."""
    spec = importlib.util.find_spec("xgrammar")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("xgrammar is not installed")
    part = ModuleType("xgrammar")
    part.__spec__, part.__path__ = spec, list(spec.submodule_search_locations)
    transformers: Any = ModuleType("transformers")
    transformers.PreTrainedTokenizerBase = transformers.PreTrainedTokenizerFast = type(None)
    stand_ins: dict[str, Any] = {"xgrammar": part, "torch": None, "transformers": transformers}
    sys.modules.update(stand_ins)
    try:
        import xgrammar.exception  # errors have their names
        import xgrammar.load_binding
        from xgrammar.compiler import GrammarCompiler
        from xgrammar.grammar import Grammar
        from xgrammar.tokenizer_info import TokenizerInfo, VocabType
    except Exception:
        for name in [n for n in sys.modules if n.split(".")[0] in stand_ins]:
            del sys.modules[name]
        import xgrammar

        return xgrammar
    vars(part).update(
        GrammarCompiler=GrammarCompiler,
        Grammar=Grammar,
        TokenizerInfo=TokenizerInfo,
        VocabType=VocabType,
    )
    return part


def serve(read: IO[bytes], write: IO[bytes]) -> None:
    """Answer requests until the input ends."""
    xgrammar = light_library()
    give_way()
    hello = msgspec.json.decode(read.readline(), type=Hello)
    compiler = xgrammar.GrammarCompiler(
        tokenizer_info(xgrammar, hello), max_threads=1, cache_enabled=False
    )
    write.write(b'"ready"\n')
    write.flush()
    for line in read:
        write.write(msgspec.json.encode(_answer(line, compiler, xgrammar, hello.spacing)) + b"\n")
        write.flush()


if __name__ == "__main__":
    # Whatever the library prints must not stand between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)
