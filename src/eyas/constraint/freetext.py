"""Free text up to a marker, as a regular expression and as a grammar.

Promises: the text is UTF-8, so no token whose bytes are none can stand in it; the first marker ends it,
wherever tokens begin and end; what must not occur never does. Both are spelled out from the automaton
of Aho and Corasick ("Efficient string matching", 1975), without complements and without lazy matching,
so that libraries see at once which tokens may follow in plain text.
Of a marker that ends a text and one that must not occur, complete at the same letter, the first counts.
Does not know: grammar libraries' types.
"""

from __future__ import annotations

from collections.abc import Sequence

from eyas.core import GrammarError

_HALVES = r"\ud800-\udfff"
"""Of surrogate pairs: a grammar's negated class would let them in; a regular expression knows none."""
MAX_MARKER_CHARS, MAX_REGEX_CHARS, MAX_WORK_CHARS = 1024, 2**16, 2**22
"""Of all markers of a text together, of the expression that they come to, and of what is written on the
way to it: markers that overlap can multiply it."""
_END = "\0end"
"""Stands for the place after the text among the automaton's states, which hold no NUL."""


def free_text_regex(ends: Sequence[str], without: Sequence[str]) -> str:
    """Return a regular expression in Rust's syntax for any text up to the first of `ends`, or of any
    length where there are none; nothing in `without` occurs in it. The automaton's states are
    eliminated one by one, the longest first (Brzozowski and McCluskey, 1963)."""
    edges = _automaton(ends, without)
    size = 0
    ways: dict[str, dict[str, list[str]]] = {}
    for state, targets in edges.items():
        ways[state] = {target: [_class(*letters)] for target, letters in targets.items()}
        if not ends:
            ways[state][_END] = [""]
    for state in sorted((state for state in ways if state), key=len, reverse=True):
        out = ways.pop(state)
        again = _repeated(out.pop(state, []))
        for others in ways.values():
            before = others.pop(state, None)
            if before is None:
                continue
            for target, after in out.items():
                way = _either(before) + again + _either(after)
                size += len(way)
                if len(way) > MAX_REGEX_CHARS or size > MAX_WORK_CHARS:
                    raise _too_many()
                others.setdefault(target, []).append(way)
    root = ways[""]
    return _repeated(root.get("", [])) + _either(root.get(_END, []))


def free_text_grammar(ends: Sequence[str], without: Sequence[str]) -> str:
    """Return the same text as EBNF with the rule `root`."""
    edges = _automaton(ends, without)
    names = {state: f"s{number}" for number, state in enumerate(edges)}
    rules = ["root ::= s0"]
    for state, targets in edges.items():
        options = [] if ends else ['""']
        for target, (letters, is_negated) in targets.items():
            option = _class(letters, is_negated, "\\U{:08x}")
            options.append(option if target == _END else f"{option} {names[target]}")
        rules.append(f"{names[state]} ::= {' | '.join(options)}")
    return "\n".join(rules)


def _automaton(
    ends: Sequence[str], without: Sequence[str]
) -> dict[str, dict[str, tuple[list[str], bool]]]:
    """Return the edges from each state (what was read of a marker; "" first) to others: by letters, or
    by all letters but these."""
    texts = [text for text in (*ends, *without) if text]
    if sum(map(len, texts)) > MAX_MARKER_CHARS:
        raise _too_many()
    states = {text[:length]: None for text in texts for length in range(len(text))} or {"": None}
    all_states = {*states, *texts}
    letters = sorted({letter for text in texts for letter in text})
    edges: dict[str, dict[str, tuple[list[str], bool]]] = {}
    for state in sorted(states, key=len):
        if _holds(state, ends) or _holds(state, without):
            continue
        targets: dict[str, list[str]] = {}
        elsewhere: list[str] = []
        for letter in letters:
            text = state + letter
            target = next(text[i:] for i in range(len(text) + 1) if text[i:] in all_states)
            if target:
                elsewhere.append(letter)
            if _holds(target, ends):
                target = _END
            elif _holds(target, without):
                continue
            if target:
                targets.setdefault(target, []).append(letter)
        edges[state] = {"": (elsewhere, True)}
        edges[state] |= {target: (found, False) for target, found in targets.items()}
    reached, waiting = {""}, [""]
    while waiting:
        for target in edges.get(waiting.pop(), {}):
            if target not in reached:
                reached.add(target)
                waiting.append(target)
    if ends and _END not in reached:
        raise GrammarError("a text cannot end with a marker that it must not contain", "invalid")
    return {state: targets for state, targets in edges.items() if state in reached}


def _too_many() -> GrammarError:
    return GrammarError(
        "the texts that end free text, or must not stand in it, are too many or too long; give fewer, "
        "or let them begin alike",
        "too_complex",
    )


def _holds(state: str, texts: Sequence[str]) -> bool:
    return any(text and state.endswith(text) for text in texts)


def _class(letters: Sequence[str], is_negated: bool, form: str = "\\x{{{:x}}}") -> str:
    in_grammar = form.startswith("\\U")
    if not letters and not in_grammar:
        return r"(?s:.)"
    inner = "".join(form.format(ord(letter)) for letter in letters)
    negation = f"^{_HALVES if in_grammar else ''}" if is_negated else ""
    return f"[{negation}{inner}]"


def _either(ways: Sequence[str]) -> str:
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"


def _repeated(ways: Sequence[str]) -> str:
    return f"(?:{'|'.join(ways)})*" if ways else ""
