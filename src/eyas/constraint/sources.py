"""Checks of the texts that users write, before a grammar library reads them.

Promises: no NUL, no half of a surrogate pair, no control token named, no option that would do nothing;
messages name the place.
Does not know: grammar libraries, trees.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from eyas.constraint.endless import check_ends, end_of_json
from eyas.constraint.expansion import check_expansion
from eyas.core import GrammarError
from eyas.grammar import Json, Spacing

MAX_SOURCE_CHARS = 256 * 1024
"""Of a user's own grammar; schemas have the compiler's limits."""


def parsed_json(text: str, what: str) -> Any:
    """Parse JSON. GrammarError says where it is malformed."""
    check_text(text, what)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise GrammarError(
            f"{what} holds half of a surrogate pair, which no text can spell; remove it", "invalid"
        ) from None
    except RecursionError:
        raise GrammarError(f"{what} is nested too deeply; flatten it", "too_complex") from None
    except ValueError as error:
        raise GrammarError(f"{what} is not valid JSON: {error}", "invalid") from None
    return value


def check_text(text: str, what: str) -> None:
    """Refuse NULs and halves of surrogate pairs. GrammarError names the place."""
    place = text.find("\0")
    if place >= 0:
        raise GrammarError(f"{what} holds a NUL character at position {place}", "invalid")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(
            f"{what} holds half of a surrogate pair at position {error.start}; remove it", "invalid"
        ) from None


def spacing_of(node: Json, default: Spacing) -> Spacing:
    """Return a schema's spacing. default: where the schema does not set it."""
    try:
        return node.spacing(default)
    except ValueError as error:
        message = f"the white space or the separators of a schema are no pattern of it: {error}"
        raise GrammarError(message, "invalid") from None


def check_source(text: str) -> None:
    """Check the characters and the length of a user's own grammar."""
    check_text(text, "the grammar")
    if len(text) > MAX_SOURCE_CHARS:
        raise GrammarError(
            f"the grammar has {len(text)} characters, at most {MAX_SOURCE_CHARS} are taken",
            "too_complex",
        )


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


_PIECE = re.compile(
    r"""(?P<skipped> (?:\#|//)[^\n]* | "(?:\\.|[^"\\\n])*" | /(?:\\.|[^/\\])+/ )
    | (?P<json> %(?:json|llguidance|regex)\b )
    | (?P<token> <[^<>\s]+> )
    | (?P<reference> @[A-Za-z0-9_\-]+ )
    | (?P<attribute> [\[,]\s*(?P<name>stop|temperature|max_tokens)\s*= )""",
    re.VERBOSE | re.DOTALL,
)
_REMEDIES = {
    "stop": "stop is not supported, since nothing that was sent is taken back; use suffix or lazy",
    "temperature": "temperature is not supported in a grammar; set the request's own",
    "max_tokens": "max_tokens would end a schema or a nested grammar anywhere; set the request's own",
}
_BODY_OF_GRAMMAR = re.compile(
    r"""(?:"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|[^\]"/\n])*\][ \t]*:[ \t]*(?:%json\b|%lark\b|@)"""
)
"""What follows an attribute of a rule that is a grammar of its own; all of it is on one line."""


def checked_lark(text: str, names: dict[str, str], json_text: Callable[[Any, str], str]) -> str:
    """Return a user's Lark with its references renamed and each schema as `json_text` writes it.
    Control tokens, options that would do nothing, grammars that no text ends and terminals that are too
    large are refused."""
    written, place = [], 0
    while found := _PIECE.search(text, place):
        end = found.end()
        if found["token"]:
            raise GrammarError(
                f"{_line_of(text, found.start())}: {found[0]} names a control token, which a grammar "
                "must not; spell it as a text in quotes",
                "unsupported",
            )
        if found["attribute"]:
            name = found["name"]
            if name != "max_tokens" or _BODY_OF_GRAMMAR.match(text, end):
                place_of_it = _line_of(text, found.start("name"))
                raise GrammarError(f"{place_of_it}: {_REMEDIES[name]}", "unsupported")
        if found["json"]:
            end = end_of_json(text, end)
        piece = text[found.start() : end]
        if found["json"] == "%llguidance" and end > found.end():
            options = parsed_json(text[found.end() : end], "%llguidance")
            _check_options(options, f"{_line_of(text, found.start())}: %llguidance")
        if found["json"] == "%json" and end > found.end():
            schema = parsed_json(text[found.end() : end], "%json")
            piece = f"%json {json_text(schema, f'{_line_of(text, found.start())}: %json')}"
        if found["reference"]:
            if piece[1:] not in names:
                raise GrammarError(
                    f"{_line_of(text, found.start())}: there is no grammar called {piece}",
                    "invalid",
                )
            piece = "@" + names[piece[1:]]
        written += [text[place : found.start()], piece]
        place = end
    whole = "".join([*written, text[place:]])
    check_ends(whole)
    check_expansion(whole)
    return whole


def _check_options(options: Any, what: str) -> None:
    """Refuse options that the library ignores. An option that is false asks for nothing, and no_forcing
    is always set."""
    if not isinstance(options, dict):
        return
    for name, value in options.items():
        if value is not False and name != "no_forcing":
            raise GrammarError(f"{what}: {name[:64]} is not supported; leave it out", "unsupported")


def _line_of(text: str, place: int) -> str:
    line = text.count("\n", 0, place)
    return f"line {line + 1}, column {place - text.rfind(chr(10), 0, place)}"
