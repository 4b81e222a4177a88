"""An independent implementation of grammar trees: accepted token streams, and examples of them."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from random import Random

import jsonschema

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
)
from tests.gaps import GAPS, is_bounded, spaced

from .streams import FIRST_CONTROL, Letters

Ids = tuple[int, ...]


def accepts(node: Node, ids: list[int]) -> bool:
    """Whether the grammar accepts the whole stream."""
    return len(ids) in _ends(node, tuple(ids), 0)


def accepts_text(node: Node, text: str) -> bool:
    return accepts(node, [ord(character) for character in text])


def _run(ids: Ids, at: int) -> str:
    """Return the text from `at` to the next control token."""
    end = at
    while end < len(ids) and ids[end] < FIRST_CONTROL:
        end += 1
    return "".join(map(chr, ids[at:end]))


def _ends(node: Node, ids: Ids, at: int) -> set[int]:
    match node:
        case Literal(text):
            return {at + len(text)} if _run(ids, at).startswith(text) else set()
        case Marker(text, token_id):
            if at < len(ids) and ids[at] == token_id:
                return {at + 1}
            return {at + len(text)} if node.is_text and _run(ids, at).startswith(text) else set()
        case FreeText():
            return _free_ends(node, ids, at)
        case Json(schema):
            return _json_ends(schema, ids, at)
        case Regex(pattern):
            run = _run(ids, at)
            whole = re.compile(pattern)
            return {at + n for n in range(len(run) + 1) if whole.fullmatch(run[:n])}
        case Concat(parts):
            found = {at}
            for part in parts:
                found = {end for start in found for end in _ends(part, ids, start)}
            return found
        case Choice(options):
            return {end for option in options for end in _ends(option, ids, at)}
        case Repeat(part, least, most):
            return _repeat_ends(part, least, most, ids, at)
    raise AssertionError(node)


def _free_ends(node: FreeText, ids: Ids, at: int) -> set[int]:
    run = _run(ids, at)
    if not node.until:
        return {
            at + n
            for n in range(len(run) + 1)
            if not any(marker.text in run[:n] for marker in node.without)
        }
    places = [
        run.find(marker.text) + len(marker.text)
        for marker in node.until
        if marker.is_text and marker.text in run
    ]
    if places:
        text, end = run[: min(places)], at + min(places)
    else:
        text, end = run, at + len(run) + 1
        closing = {marker.token_id for marker in node.until}
        if end > len(ids) or ids[end - 1] not in closing:
            return set()
    return set() if any(marker.text in text for marker in node.without) else {end}


def _json_ends(schema: str, ids: Ids, at: int) -> set[int]:
    run = _run(ids, at)
    try:
        value, length = json.JSONDecoder().raw_decode(run)
    except ValueError:
        return set()
    is_one = is_bounded(run[:length]) and validator(schema).is_valid(value)
    return {at + length} if is_one else set()


def _repeat_ends(part: Node, least: int, most: int | None, ids: Ids, at: int) -> set[int]:
    found, reached, count = set(), {at}, 0
    while reached:
        if count >= least:
            reached = reached - found if count > least else reached
            found |= reached
        if count == most:
            break
        reached = {end for start in reached for end in _ends(part, ids, start)}
        count += 1
        if count > len(ids) + least + 1:
            break
    return found


@lru_cache(maxsize=256)
def validator(schema: str) -> jsonschema.Draft202012Validator:
    """Return what validates values against the schema, in JSON."""
    return jsonschema.Draft202012Validator(json.loads(schema))


def example(node: Node, tokenizer: Letters, pieces: tuple[str, ...], draw: Random) -> list[int]:
    """Return a stream that the grammar accepts. pieces: parts of free text and strings."""
    match node:
        case Literal(said):
            return tokenizer.encode_text(said)
        case Marker(said, token_id):
            ways = [[token_id]] if token_id is not None else []
            ways += [tokenizer.encode_text(said)] if node.is_text else []
            return draw.choice(ways)
        case FreeText(until):
            while True:
                ids = tokenizer.encode_text(_text(pieces, draw))
                if until:
                    ids += example(draw.choice(until), tokenizer, pieces, draw)
                if accepts(node, ids):
                    return ids
        case Json(schema):
            value = _value(json.loads(schema), pieces, draw)
            is_ascii, way = draw.random() < 0.5, draw.randrange(4)
            options = ({"separators": (",", ":")}, {}, {"indent": draw.choice([1, 2, 4, "\t"])})
            if way < 3:
                return tokenizer.encode_text(
                    json.dumps(value, ensure_ascii=is_ascii, **options[way])
                )
            return tokenizer.encode_text(
                spaced(lambda: draw.choice(GAPS), value, ensure_ascii=is_ascii)
            )
        case Regex(pattern):
            matching = [text for text in (*STRINGS, *CALL_IDS) if re.fullmatch(pattern, text)]
            return tokenizer.encode_text(draw.choice(matching))
        case Concat(parts):
            return [i for part in parts for i in example(part, tokenizer, pieces, draw)]
        case Choice(options):
            return example(draw.choice(options), tokenizer, pieces, draw)
        case Repeat(part, least, most):
            count = draw.randint(least, max(least, 2 if most is None else min(2, most)))
            return [i for _ in range(count) for i in example(part, tokenizer, pieces, draw)]
    raise AssertionError(node)


CALL_IDS = ("a1b2c3d4e", "000000000", "0", "12")
STRINGS = ("", "\n", "\n\n", " \t\n", "json", "JSON", "key", "a", "  a", "\n\nab", "<think>b")
STRINGS += ("</think>", "\n<think>a", "<think></think>b", "aa", "\n\n\nb")


def _text(pieces: tuple[str, ...], draw: Random) -> str:
    """Return text of markers, their prefixes, and other text that resembles a format."""
    parts = []
    for _ in range(draw.randint(0, 4)):
        piece = draw.choice([*pieces, "a", " ", "\n", "é", '"', "{", "}", "</"])
        parts.append(piece[: draw.randint(1, len(piece))] if draw.random() < 0.5 else piece)
    return "".join(parts)


def _value(schema: dict, pieces: tuple[str, ...], draw: Random) -> object:
    """Return a value of one of the small schemas in these tests."""
    if "enum" in schema:
        return draw.choice(schema["enum"])
    match schema.get("type"):
        case "string":
            return _text(pieces, draw)
        case "integer":
            return draw.randint(-99, 99)
        case "object":
            required = schema.get("required", [])
            return {
                key: _value(part, pieces, draw)
                for key, part in schema.get("properties", {}).items()
                if key in required or draw.random() < 0.5
            }
    return draw.choice([None, True, _text(pieces, draw), [_text(pieces, draw)]])
