"""The state that all rewrites of one schema share.

Does not know: any keyword but $ref.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from eyas.core import GrammarError
from eyas.schemas import automata, charsets
from eyas.schemas.keywords import Schema
from eyas.schemas.limits import MAX_CASES, MAX_SCHEMAS, MAX_SECONDS, fail
from eyas.schemas.look_ahead import split_look_aheads
from eyas.schemas.pattern_lengths import bounded, lengths, rotated
from eyas.schemas.pattern_parser import read
from eyas.schemas.pattern_tree import Chars, Node, PatternFault, written
from eyas.schemas.references import References

_NUL = Chars(((0, 0),), charsets.shown(0))
"""Patterns lose NUL where the backend would quote it wrongly; their complements must not gain it."""


class Context:
    """The state of preparing one schema.

    param: the request's field, for errors. draft: the year or number of the schema's draft.
    lenient: keywords that cannot be enforced are left out instead of refused. schemas: all schema
    objects reachable from the root, set by `check_document`. paths: for each definition of the
    result, its path in the document.
    """

    def __init__(self, document: Schema, param: str, draft: int, lenient: bool) -> None:
        self.param = param
        self.draft = draft
        self.lenient = lenient
        self.references = References(document, draft, param)
        self.paths: dict[str, str] = {"#": "#"}
        self.schemas: list[dict[str, Any]] = []
        self._patterns: dict[str, Node] = {}
        self._apart: dict[tuple[str, str], bool] = {}
        self._automata_budget = automata.Budget()
        self._proof_budget = automata.Budget()
        self._cases_left = MAX_CASES
        self._ends = time.thread_time() + MAX_SECONDS
        self._schemas_left = MAX_SCHEMAS

    @property
    def root(self) -> Schema:
        """The document with absolute references."""
        return self.references.root

    def resolve(self, schema: dict[str, Any], path: str) -> tuple[Any, str]:
        """Return the target of the schema's $ref, and its path."""
        return self.references.resolve(schema["$ref"], path)

    def check_time(self) -> None:
        """Raise GrammarError (timeout) after MAX_SECONDS of the thread's processor time."""
        if time.thread_time() > self._ends:
            message = (
                f"{self.param}: preparing the schema took more than {MAX_SECONDS:g} seconds; make it "
                "smaller: fewer choices, conditions and patterns"
            )
            raise GrammarError(message, "timeout", param=self.param)

    def count(self) -> None:
        """Count one rewritten schema against MAX_SCHEMAS."""
        self.check_time()
        self._schemas_left -= 1
        if self._schemas_left < 0:
            message = f"{self.param}: has more than {MAX_SCHEMAS} schemas; make it smaller"
            raise GrammarError(message, "too_complex", param=self.param)

    def spend(self, path: str, amount: int = 1) -> None:
        """Count cases that are written out against MAX_CASES."""
        self.check_time()
        self._cases_left -= amount
        if self._cases_left < 0:
            message = (
                "takes too many cases to write out; use fewer oneOf, not, if and dependencies, or "
                "tell options apart by one required property with different const values"
            )
            raise fail(self.param, path, message, "too_complex")

    def pattern(self, text: str, path: str) -> str:
        """Return a pattern of the schema in the backend's syntax."""
        return written(self._read(text, path))

    def name_pattern(self, text: str, path: str) -> str:
        """Return a pattern for names in the backend's syntax, with its look-aheads written out."""
        rest, look_aheads = split_look_aheads(text)
        if not look_aheads:
            return self.pattern(text, path)
        found = None
        with suppress(GrammarError):
            nodes = [self._read(part, path) for part in (rest, *(p for p, _ in look_aheads))]
            found = automata.regions((*nodes, _NUL), (), self._automata_budget)
        if found is None:
            return self.pattern(text, path)
        return found.get((True, *(must for _, must in look_aheads), False), r"[^\s\S]")

    def unmatched(self, text: str, path: str) -> str | bool | None:
        """Return a pattern, in the backend's syntax, for the texts without NUL that a pattern does not
        match; False if there are none, None if that takes too long or cannot be written."""
        nodes = (self._read(text, path), _NUL)
        found = automata.regions(nodes, (), self._automata_budget)
        return None if found is None else found.get((False, False), False)

    def may_match(self, text: str, value: str) -> bool:
        """Whether a pattern may match a text. False only if it certainly does not."""
        node = self._bound_of(text)
        return node is None or automata.matches(node, value, self._proof_budget) is not False

    def are_patterns_apart(self, one: str, other: str) -> bool:
        """Whether certainly no text matches both patterns."""
        key = (one, other)
        if key not in self._apart:
            nodes = [self._bound_of(text) for text in key]
            self._apart[key] = None not in nodes and automata.are_apart(
                [node for node in nodes if node is not None], self._proof_budget
            )
        return self._apart[key]

    def _bound_of(self, text: str) -> Node | None:
        """Return a pattern that matches at least the texts of this one, without its look-aheads; None
        for one that cannot be read."""
        try:
            return self._read(split_look_aheads(text)[0], "#")
        except GrammarError:
            return None

    def pattern_with_lengths(
        self, text: str, path: str, least: int, most: int | None
    ) -> tuple[str, int | None, int | None]:
        """Return the pattern for texts of `least` to `most` characters, and the minLength and maxLength
        that must stand beside it (None where the pattern implies them)."""
        node = self._read(text, path)
        narrowed = bounded(node, least, most)
        if narrowed is not None:
            return written(narrowed), None, None
        low, high = lengths(node)
        above = None if most is None or (high is not None and high <= most) else most
        return written(node), least if least > low else None, above

    def _read(self, text: str, path: str) -> Node:
        if text not in self._patterns:
            self.check_time()
            try:
                self._patterns[text] = rotated(read(text))
            except PatternFault as fault:
                message = f"the pattern is refused: {fault}"
                raise fail(self.param, path, message, fault.fault) from None
        return self._patterns[text]

    def unsupported(self, path: str, message: str) -> GrammarError:
        """Return the error for a keyword that cannot be enforced."""
        return fail(self.param, path, message, "unsupported")

    def invalid(self, path: str, message: str) -> GrammarError:
        """Return the error for a malformed keyword."""
        return fail(self.param, path, message, "invalid")
