"""The regular expression of free text against what it means, letter by letter."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from eyas.constraint.freetext import free_text_grammar, free_text_regex
from eyas.core import GrammarError

_MARKERS = st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3)
_TEXTS = st.text("ab<c", max_size=12)


def _matches(pattern: str, text: str) -> bool:
    python = re.sub(r"\\x\{([0-9a-f]+)\}", lambda found: f"\\U{int(found[1], 16):08x}", pattern)
    return re.fullmatch(python, text) is not None


def _first_end(text: str, ends: list[str]) -> int | None:
    """The length of the text up to and with the first marker that is complete."""
    found = [text.index(end) + len(end) for end in ends if end in text]
    return min(found, default=None)


@given(_MARKERS.filter(bool), _MARKERS, _TEXTS)
def test_the_text_goes_on_to_the_first_marker_and_no_further(
    ends: list[str], without: list[str], text: str
) -> None:
    is_whole = _first_end(text, ends) == len(text)
    is_clean = not any(word in text[:-1] for word in without)
    try:
        matches = _matches(free_text_regex(ends, without), text)
    except GrammarError:
        matches = False  # there is no such text
    assert matches == (is_whole and is_clean)


@given(_MARKERS, _TEXTS)
def test_the_text_never_holds_what_it_must_not(without: list[str], text: str) -> None:
    expected = not any(word in text for word in without)
    assert _matches(free_text_regex((), without), text) == expected


def test_long_markers_stay_short() -> None:
    markers = [
        "<|channel|>final<|message|>",
        "<|start|>assistant<|channel|>commentary to=",
        "</think>",
    ]
    assert len(free_text_regex(markers, ())) < 40_000
    assert free_text_grammar(["ab"], ()).splitlines()[0] == "root ::= s0"
