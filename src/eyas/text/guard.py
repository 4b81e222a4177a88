"""Keeps content apart from the template while a chat template renders: one guard per request.

Promises: after `break_up`, no string of a request contains the text of a control token, nor a part of
one that adjacent text could complete. After `audit_view`, no string contains a character with which a
control token begins or ends, so every control token of the rendered text comes from the template.
`restore` undoes both. The inserted nonces are random digits, which the author of the content cannot
know; digits survive trimming, case changes, JSON and URL encoding.
Does not know: templates, token ids.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from typing import Any

from eyas.core import field_error
from eyas.text.trie import any_of

MAX_DEPTH = 100
"""Enough for the 96 levels that a schema may have (`eyas.schemas`), three levels inside of tools."""
_NUM_NONCE_DIGITS = 18

STRUCTURAL_KEYS = frozenset(
    {
        *("role", "content", "name", "type", "text", "arguments", "parameters", "properties"),
        *("description", "tool_calls", "tool_call_id", "function", "id", "index", "required"),
        *("items", "enum", "reasoning_content", "reasoning", "thinking", "additionalProperties"),
        *("strict", "default", "title", "format", "anyOf", "oneOf", "allOf", "const", "return"),
        *("refusal", "messages", "tools"),
    }
)
"""Keys that templates look up by name. They stay unchanged."""

STRUCTURAL_VALUES = {
    "type": frozenset(
        {"function", "text", "string", "number", "integer", "boolean", "array", "object", "null"}
    ),
    "role": frozenset(
        {"system", "developer", "user", "assistant", "tool", "function", "ipython", "environment"}
    ),
}
"""Values that templates compare with, by their key. They stay unchanged."""


def map_strings(
    value: Any,
    change: Callable[[str], str],
    param: str,
    *,
    key: str | None = None,
    depth: int = 0,
) -> Any:
    """Return a copy of plain JSON data with `change` applied to every string, keys included, except for
    STRUCTURAL_KEYS and STRUCTURAL_VALUES. RequestError if it is nested too deep; param: its field."""
    if depth > MAX_DEPTH:
        raise field_error(
            param, f"the values in it are nested more than {MAX_DEPTH} deep; flatten them"
        )
    if isinstance(value, str):
        return value if value in STRUCTURAL_VALUES.get(key or "", ()) else change(value)
    if isinstance(value, dict):
        return {
            (name if name in STRUCTURAL_KEYS else change(name)): map_strings(
                item, change, param, key=name, depth=depth + 1
            )
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        # Pass the key on: the entries of "type": ["string", "null"] are types as well.
        return [map_strings(item, change, param, key=key, depth=depth + 1) for item in value]
    return value


def _alphanumeric(text: str) -> str:
    return "".join(character for character in text.casefold() if character.isalnum())


class ControlTokenPatterns:
    """The texts of a tokenizer's control tokens, prepared for `ContentGuard`. Built once per
    tokenizer."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = sorted(set(texts), key=len, reverse=True)
        long = [text for text in self.texts if len(text) > 1]
        self.single = frozenset(text for text in self.texts if len(text) == 1)
        self._joined = "\n".join(long)
        self._cores = "\n".join(sorted({_alphanumeric(text) for text in long}))
        self.max_core = max((len(core) for core in self._cores.split("\n")), default=0)
        # Matches where a token's text begins, ignoring case, which a template may change.
        self.inside = re.compile(f"(?={any_of(long)})", re.IGNORECASE)
        self.tails = frozenset(text[k:].casefold() for text in long for k in range(1, len(text)))
        self.heads = frozenset(text[:k].casefold() for text in long for k in range(1, len(text)))
        self.max_affix = max((len(text) - 1 for text in long), default=0)
        self.borders = frozenset(
            character
            for text in self.texts
            for character in (text[0], text[-1])
            if not character.isalnum() and not character.isspace()
        )
        self.first_of_tail = frozenset(tail[0] for tail in self.tails)
        self.last_of_head = frozenset(head[-1] for head in self.heads)

    def contains_token(self, text: str) -> bool:
        """Whether a control token occurs in `text`."""
        return self.inside.search(text) is not None or not self.single.isdisjoint(text)

    def is_within_a_token(self, text: str) -> bool:
        """Whether adjacent text of the template could complete `text` to a control token."""
        if len(text) > 4 * self.max_core + 64:
            return False
        core = _alphanumeric(text)
        return core in self._cores if core else text in self._joined


class ContentGuard:
    """The nonces of one request: one to break up control tokens, and one for each border character."""

    def __init__(self, patterns: ControlTokenPatterns, forbidden: Iterable[str]) -> None:
        """forbidden: strings that must not contain the nonces: all strings of the request."""
        self._patterns = patterns
        seen = "\n".join(forbidden)
        while True:
            stem = str(
                10 ** (_NUM_NONCE_DIGITS - 1) + secrets.randbelow(9 * 10 ** (_NUM_NONCE_DIGITS - 1))
            )
            if stem not in seen:
                break
        # The stem and five digits: a fixed width, so that adjacent nonces stay distinguishable.
        self._mark = f"{stem}00000"
        codes = sorted(patterns.borders | patterns.single)
        self._code_of = {text: f"{stem}{index:05d}" for index, text in enumerate(codes, start=1)}
        self._text_of = {code: text for text, code in self._code_of.items()}
        self._text_of[self._mark] = ""
        self._codes = re.compile(f"{stem}[0-9]{{5}}")
        self._borders = re.compile(any_of(self._code_of))
        self._singles = re.compile(any_of(patterns.single))
        self.num_changes = 0

    def break_up(self, text: str) -> str:
        """Insert nonces into every control token in `text`, and into a part of one at its begin or
        end."""
        patterns, mark = self._patterns, self._mark
        positions: set[int] = {match.start() + 1 for match in patterns.inside.finditer(text)}
        body = text.strip()
        if body:
            offset = text.find(body[0])
            if patterns.is_within_a_token(body):
                positions |= set(range(offset + 1, offset + len(body) + 1))
            if body[0].casefold() in patterns.first_of_tail and self._begins_with_a_tail(body):
                positions.add(offset)
            if body[-1].casefold() in patterns.last_of_head and self._ends_with_a_head(body):
                positions.add(offset + len(body))
        if positions:
            pieces, begin = [], 0
            for position in sorted(positions):
                pieces.append(text[begin:position])
                begin = position
            text = mark.join([*pieces, text[begin:]])
            self.num_changes += 1
        if patterns.single:
            text = self._singles.sub(lambda match: self._code_of[match[0]], text)
        return text

    def audit_view(self, text: str) -> str:
        """Replace the characters of `text` with which a control token begins or ends by nonces."""
        changed = self._borders.sub(lambda match: self._code_of[match[0]], self.break_up(text))
        self.num_changes += changed != text
        return changed

    def restore(self, text: str) -> str:
        """Return the text with which `break_up` or `audit_view` was called."""
        return self._codes.sub(lambda match: self._text_of.get(match[0], match[0]), text)

    def _begins_with_a_tail(self, body: str) -> bool:
        head = body[: self._patterns.max_affix].casefold()
        return any(head[:length] in self._patterns.tails for length in range(1, len(head) + 1))

    def _ends_with_a_head(self, body: str) -> bool:
        tail = body[-self._patterns.max_affix :].casefold()
        return any(tail[-length:] in self._patterns.heads for length in range(1, len(tail) + 1))
