"""The size of a grammar's terminals with the terminals that they name written out, as the library
writes them.

A terminal that names another twice, which names a third twice, and so on, is short to write and takes
the library minutes and gigabytes.

Promises: what passes here is compiled or refused by the library within seconds.
Does not know: rules, which are never written out; what is between quotes and slashes.
"""

from __future__ import annotations

import re

from eyas.constraint.endless import end_of_json
from eyas.core import GrammarError

MAX_CHARS = 1_000_000
"""Of all terminals together."""
MAX_SETS = 8
"""Intersections and complements of one terminal: the time for them doubles with each. But `& ~"word"`
adds no more than the word's letters, and is not counted."""
_PIECE = re.compile(
    r"""(?P<skipped> (?:\#|//)[^\n]* | :: | ~\s*\d )
    | (?P<barred> & [^\S\n]* ~ [^\S\n]* "(?:\\.|[^"\\\n])*"i?
        (?= [^\S\n]* (?: [&|)\n\#] | // | \Z ) ) )
    | (?P<text> "(?:\\.|[^"\\\n])*"i? | /(?:\\.|[^/\\])+/[imslux]* )
    | (?P<ignore> %ignore\b )
    | (?P<json> %(?:json|regex|llguidance)\b )
    | (?P<line> \n )
    | (?P<name> [A-Za-z_][\w\-]* )
    | (?P<set> [&~] )
    | (?P<head> : )""",
    re.VERBOSE,
)


class _Definition:
    """num_chars, num_sets: its own until it is finished, then with all that it names. is_written_out:
    it is a terminal, or a rule with attributes, which the library treats as one."""

    def __init__(self, is_written_out: bool = False) -> None:
        self.is_written_out = is_written_out
        self.num_chars = self.num_sets = 0
        self.names: list[str] = []


def check_expansion(lark: str) -> None:
    """Raise GrammarError (too_complex) where the terminals are too large."""
    terminals = {n: found for n, found in _definitions(lark).items() if found.is_written_out}
    missing: dict[str, int] = {}
    users: dict[str, list[str]] = {name: [] for name in terminals}
    for name, found in terminals.items():
        found.names = [other for other in found.names if other in terminals]
        missing[name] = len(found.names)
        for other in found.names:
            users[other].append(name)
    waiting = [name for name, num in missing.items() if not num]
    num_chars = 0
    while waiting:  # one that leads back to itself is never ready; the library refuses it
        name = waiting.pop()
        found = terminals[name]
        num_chars += found.num_chars
        if num_chars > MAX_CHARS:
            raise GrammarError(
                f"the grammar's terminals have more than {MAX_CHARS} characters when those that they "
                "name are written out (in EBNF every rule that never leads back to itself is a "
                "terminal); let them name each other less often",
                "too_complex",
            )
        if found.num_sets > MAX_SETS:
            raise GrammarError(
                f"a terminal of the grammar has more than {MAX_SETS} & and ~, with those of the "
                "terminals that it names; use fewer",
                "too_complex",
            )
        for user in users[name]:
            above = terminals[user]
            above.num_chars += found.num_chars
            above.num_sets += found.num_sets
            missing[user] -= 1
            if not missing[user]:
                waiting.append(user)


def _definitions(lark: str) -> dict[str, _Definition]:
    """Return what is defined: names that begin a line and have a colon behind them."""
    current = _Definition()
    found: dict[str, _Definition] = {}
    first, begin, before = "", 0, (0, 0, 0)
    is_line_new = True
    place = 0
    while piece := _PIECE.search(lark, place):
        place = piece.end()
        if piece["line"]:
            is_line_new = True
            continue
        if piece["ignore"]:
            current = found[f"{piece[0]} {place}"] = _Definition(True)
        elif piece["head"] and first:
            current.num_chars, current.num_sets = before[:2]  # the name was not the one before's
            del current.names[before[2] :]
            is_terminal = first.lstrip("_")[:1].isupper() or "[" in lark[begin : piece.start()]
            current, first = found.setdefault(first, _Definition(is_terminal)), ""
        elif piece["name"]:
            if is_line_new:
                first, begin = piece[0], place
                before = (current.num_chars, current.num_sets, len(current.names))
            current.names.append(piece[0])
        elif piece["set"]:
            current.num_sets += 1
        elif piece["text"] or piece["barred"] or piece["json"]:
            place = end_of_json(lark, place) if piece["json"] else place
            current.num_chars += place - piece.start()
        is_line_new = is_line_new and bool(piece["skipped"])
    return found
