"""Grammars that no text ends, such as a rule that refers to itself on every path.

Promises: what is refused here can never end. What this reader does not know (imports, nested grammars,
attributes) counts as ending.
Does not know: what is between quotes and slashes.
"""

from __future__ import annotations

import json
import re

from eyas.constraint.faults import never_ends

_PIECE = re.compile(
    r"""(?P<skipped> \s+ | (?:\#|//)[^\n]* | ->\s*\w+ )
    | (?P<rule> ^[?!]?(?P<name>[a-z_]\w*)(?:\.-?\d+)?[ \t]*: )
    | (?P<terminal> ^_?[A-Z]\w*(?:\.-?\d+)?[ \t]*: )
    | (?P<text> "(?:\\.|[^"\\\n])*"i? | /(?:\\.|[^/\\\n])+/[imslux]* | (?:_?[A-Z]\w*)
        | @[\w\-]+ | \.\. )
    | (?P<reference> [a-z_]\w* )
    | (?P<json> %(?:json|regex|llguidance)\b ) | (?P<ignore> ^%ignore\b )
    | (?P<count> [*+?] | ~\s*\d+(?:\.\.\d+)? | \{\s*\d*\s*(?:,\s*\d*\s*)?\} )
    | (?P<sign> [|()\[\]] )""",
    re.VERBOSE | re.MULTILINE,
)

_LEAST = re.compile(r"(?:~|\{)\s*(\d*)")


def check_ends(lark: str) -> None:
    """Raise GrammarError (invalid) where no text of the grammar ever ends."""
    rules = _rules(lark)
    if rules is None or "start" not in rules:
        return
    ending: set[str] = set()
    users: dict[str, list[tuple[str, set[str]]]] = {name: [] for name in rules}
    waiting = [
        name for name, options in rules.items() if not all(o & rules.keys() for o in options)
    ]
    for name, options in rules.items():
        for option in options:
            needed = option & rules.keys()  # what is left of it
            for other in needed:
                users[other].append((name, needed))
    while waiting:
        name = waiting.pop()
        if name not in ending:
            ending.add(name)
            for user, needed in users[name]:
                needed.discard(name)
                if not needed:
                    waiting.append(user)
    if "start" not in ending:
        raise never_ends()


def end_of_json(text: str, place: int) -> int:
    """Return where the JSON value after a keyword ends; malformed values are left to the compiler."""
    begin = place + len(text[place:]) - len(text[place:].lstrip())
    try:
        return json.JSONDecoder().raw_decode(text, begin)[1]
    except (ValueError, RecursionError):
        return place


def _rules(lark: str) -> dict[str, list[set[str]]] | None:
    """Return for each rule and each group the rules that its alternatives need, or None where that is
    unclear."""
    rules: dict[str, list[set[str]]] = {}
    open_ones: list[tuple[list[set[str]], list[str]]] = []
    options: list[set[str]] = []
    items: list[str] = []
    last: str | None = None
    place = 0
    while place < len(lark):
        found = _PIECE.match(lark, place)
        if found is None:
            return None
        place = found.end()
        sign = found["sign"]
        if found["rule"] or found["terminal"]:
            if open_ones:
                return None
            options.append(set(items))
            options, items, last = [], [], None
            rules[found["name"] or found["terminal"]] = options
        elif found["reference"]:
            last = found["reference"]
            items.append(last)
        elif found["count"]:
            if last is not None and _may_be_none(found):
                items.pop()
            last = None
        elif sign == "|":
            options.append(set(items))
            items, last = [], None
        elif sign in ("(", "["):
            open_ones.append((options, items))
            options, items, last = [], [], None
        elif sign:
            if not open_ones:
                return None
            last = f"({place}"
            rules[last] = [*options, set(items)]
            options, items = open_ones.pop()
            if sign == ")":
                items.append(last)
            else:
                last = None
        elif not found["skipped"]:
            last = None
            place = end_of_json(lark, place) if found["json"] else place
    if open_ones:
        return None
    options.append(set(items))
    return rules


def _may_be_none(found: re.Match[str]) -> bool:
    """Whether a count allows zero repetitions."""
    least = _LEAST.match(found["count"])
    return found["count"] in ("*", "?") or (least is not None and int(least[1] or 0) == 0)
