"""Errors in grammars, described for the people who wrote them.

Promises: one of the four faults of `GrammarError`; the text names the place (position, line and column,
keyword), never the grammar around it.
Does not know: grammar libraries' types, only their messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from eyas.constraint.regexes import place_in
from eyas.core import GrammarError, GrammarFault, GrammarsBusy
from eyas.grammar import Json, Node, Regex, Source, leaves
from eyas.schemas import leading_back

_UNSUPPORTED = re.compile(
    r"unimplemented|not supported|unsupported|look-?around|backreference|not implemented"
    r"|not present in a registry|unknown format|not disjoint|are disjoint",
    re.IGNORECASE,
)
_TOO_COMPLEX = re.compile(
    r"too big|too large|too many|too complex|limit|fuel|current row has|expressions constructed"
    r"|unable to determine if regex is empty|stack level exceeded",
    re.IGNORECASE,
)
_SOURCE_PLACE = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ")
"""Where in its own sources a library found the fault."""
MAX_MESSAGE_CHARS = 400


def refused_leaf(root: Node, refusal: Callable[[Node], str | None]) -> GrammarError | None:
    """Return an error for the first leaf that `refusal` refuses. refusal: returns the library's
    message, or an empty one."""
    for leaf in leaves(root):
        words = refusal(leaf)
        if words:
            return described(leaf, words)
    return None


def named(error: GrammarError, param: str | None) -> GrammarError:
    """Return the error with the request's field in front."""
    message = f"{param}: {error.message}" if param else error.message
    return type(error)(message, error.fault, param=param)


def too_slow(deadline_seconds: float) -> GrammarError:
    """Return the error of a compilation that its deadline has ended."""
    words = f"compiling it took more than {deadline_seconds:g} seconds"
    return GrammarError(words + _remedy("too_complex"), "timeout")


def never_ends() -> GrammarError:
    """Return the error of a grammar whose every text goes on."""
    return GrammarError(
        "no output can match: a rule or a schema refers to itself on every path; give it an "
        "alternative that ends",
        "invalid",
    )


def stopping() -> GrammarsBusy:
    """Return the error of a compilation that the end of the engine prevents."""
    return GrammarsBusy("the engine is stopping; try again later", "timeout")


def described(node: Node | None, words: str) -> GrammarError:
    """Return a library's message about a node as an error."""
    words = _SOURCE_PLACE.sub("", words.replace("<non-verbose/>", "")).strip()
    fault = fault_of(words)
    match node:
        case Regex(pattern):
            message = _about_regex(pattern, words)
        case Json(schema):
            message = _about_schema(schema, words)
        case Source(syntax):
            message = _about_source(words, has_places=syntax == "lark")
        case _:
            message = f"the output cannot be compiled: {_first_line(words).partition(chr(34))[0]}"
    return GrammarError(message[:MAX_MESSAGE_CHARS] + _remedy(fault), fault)


def fault_of(words: str) -> GrammarFault:
    """Return the fault that a library's message means."""
    if _UNSUPPORTED.search(words):
        return "unsupported"
    return "too_complex" if _TOO_COMPLEX.search(words) else "invalid"


def _remedy(fault: GrammarFault) -> str:
    match fault:
        case "unsupported":
            return "; leave it out or write it in another way"
        case "too_complex":
            return "; make it smaller: fewer alternatives, lower repetition counts and lengths"
    return ""


def _first_line(words: str) -> str:
    return words.partition("\n")[0].strip()


def _about_regex(pattern: str, words: str) -> str:
    """Describe a refused regular expression, with the position in the user's pattern."""
    shown = re.search(r"regex parse error:\n {4}(.*)\n {4}( *)\^+\nerror: ([^\n]*)", words)
    if shown is None:
        return f"the regular expression is refused: {_about_pattern(words)}"
    position = place_in(pattern, len(shown[2]))
    near = pattern[max(0, position - 10) : position + 10]
    return f"the regular expression is refused at position {position}, near {near!r}: {shown[3]}"


def _about_pattern(words: str) -> str:
    """Return the library's reason without the pattern and the grammar that it quotes."""
    if "lookarounds not supported" in words:
        return r"\b, and ^ and $ except at the ends of the pattern, are not supported"
    reason = re.search(r"^error: ([^\n]*)", words, re.MULTILINE)
    if reason is not None:
        return reason[1]
    named = re.search(
        r"\(in regex\): ([^\n]*?)(?:; \w+)?(?: in regex [^\n]*)?$", words, re.MULTILINE
    )
    return named[1] if named else _first_line(words)


def _about_schema(schema: str, words: str) -> str:
    unknown = re.search(r"Unimplemented keys: \[([^\]]*)\]", words)
    if unknown:
        return f"the schema uses what cannot be enforced: {unknown[1].replace(chr(34), '')}"
    remote = re.search(r"Resource '([^']*)' is not present in a registry", words)
    if remote:
        return f"the schema refers to {remote[1]!r}, which is not fetched; put it under $defs"
    if "circular references" in words:
        place = leading_back(json.loads(schema))
        return (
            "the schema has keywords beside a $ref that leads back to where it stands"
            f"{f' ({place})' if place else ''}, which is not supported"
        )
    if "unable to determine if regex" in words.lower():
        return "the schema has patterns and lengths that are too much together"
    if "disjoint" in words:
        return (
            "the schema has patterns for names of properties that overlap, which is not supported"
        )
    contradiction = re.search(r"Unsatisfiable schema: ([^\n]*)", words)
    if contradiction:
        is_text = contradiction[1].startswith("Regex is empty")
        what = "pattern, length, format or values of a string" if is_text else contradiction[1]
        return f"no value satisfies the schema ({what}); look for parts that contradict each other"
    if "regex parse error" in words:
        return f"the schema has a pattern that is refused: {_about_pattern(words)}"
    return (
        f"the schema is refused: {re.sub(r' at line [0-9]+ column [0-9]+', '', _first_line(words))}"
    )


def _about_source(words: str, *, has_places: bool) -> str:
    found = re.match(r"(?:at )?(\d+)\((\d+)\): ([^\n]*)", words)
    if found is None:
        return f"the grammar is refused: {_first_line(words)}"
    place = f"line {found[1]}, column {found[2]}: " if has_places else ""
    reason = _about_pattern(words) if "(in regex)" in found[3] else found[3]
    return f"the grammar is refused: {place}{reason}"
