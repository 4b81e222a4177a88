"""llguidance's matcher over single bytes, for tests of schemas."""

from __future__ import annotations

import json
from typing import Any

import llguidance

from eyas.schemas import prepare

BYTES = llguidance.LLTokenizer("byte")


def matcher(text: str) -> llguidance.LLMatcher | None:
    """Return the matcher of a prepared schema, or None if llguidance refuses it."""
    grammar = llguidance.LLMatcher.grammar_from_json_schema(text)
    if llguidance.LLMatcher.validate_grammar(grammar):
        return None
    return llguidance.LLMatcher(BYTES, grammar)


def lets_through(automaton: llguidance.LLMatcher, text: str) -> bool:
    data = list(text.encode())
    copy = automaton.deep_copy()
    return copy.try_consume_tokens(data) == len(data) and copy.is_accepting()


def allowed(schema: Any, texts: list[str]) -> list[str]:
    """Return the JSON texts that the schema's grammar accepts."""
    automaton = matcher(prepare(schema, param="schema"))
    assert automaton is not None
    return [text for text in texts if lets_through(automaton, text)]


def spellings(char: str) -> list[str]:
    """Return all spellings of a character in a JSON string."""
    short = {"\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r", '"': '"', "\\": "\\", "/": "/"}
    found = [f"\\u{ord(char):04x}"] if ord(char) < 0x10000 else [json.dumps(char)[1:-1]]
    if char in short:
        found.append(f"\\{short[char]}")
    if char not in '"\\' and ord(char) >= 0x20:
        found.append(char)
    return found


def check(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    """Assert that the schema's grammar accepts the valid values and not the invalid ones."""
    automaton = matcher(prepare(schema, param="schema"))
    assert automaton is not None
    taken = [value for value in (*valid, *invalid) if lets_through(automaton, json.dumps(value))]
    assert json.dumps(taken) == json.dumps(valid)
