"""Patterns of white space: what is read of them, and what they may never do."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.config import GrammarConfig
from eyas.grammar import Json, Spacing
from eyas.white_space import (
    ENDLESS_CHARS,
    MAX_CHARS,
    WHITE_SPACE,
    is_plain,
    read_optional,
    read_separator,
    read_white_space,
)

TEXTS = ["".join(chars) for length in range(5) for chars in product(" \t\n\r", repeat=length)]
OPTIONAL = [
    *("", "[ ]?", " ?", r"[ \n]?", r"\s*", r"[\s]*", r"[\n\t ]*", r"[ \t\n\r]*", "[\n\t ]*"),
    *(
        r"[\n ]{0,8}",
        r"[ ]{,1}",
        r"\n?[ ]*",
        r"( |\n *)?",
        r"(?:\r?\n[ \t]{0,8})?",
        r"\ ?",
        "[ ]??",
    ),
    *(r"[\x20\x0A\x0D\x09]{0,3}", r"\u0020?", r"\x{9}*", WHITE_SPACE),
]
OTHERS = [
    *(" ", "[ ]+", "[ ]{1,2}", "(", "x+", "x*", "(?P<a", "()", "[]*", r"[^ ]*", r"\S*", "|", " |"),
    *(
        "^ ?$",
        "(?=x)",
        "(?i: ?)",
        " ?+",
        " ?{2}",
        r"\x41?",
        r"\x{110000}?",
        "{2}",
        "*",
        "[ ]{2,1}?",
    ),
    *("(a?|b?)" * 22 + "(?=x)", "((a?|b?){4}){5}(?=x)", "[ ]*" * 60 + "x", "(" * 200, "( ?" * 20),
    *(
        "[ ]{0,9999}",
        r"(\s*){0,9}",
        "(( ?){0,8}|\t{0,8}){0,16}",
        "(\r?\n)*",
        " ?" * 200,
        r"\s*\s*\s*\s*\s*",
    ),
]
SPACE = st.sampled_from([" ", r"\t", r"\n", "[ \t]", r"[\n\r]", r"\s", r"(\n| \t)"])
SPACES = st.recursive(
    SPACE,
    lambda inner: (
        st.builds("({}){}".format, inner, st.sampled_from(["?", ""]))
        | st.builds("{}{}".format, SPACE, st.sampled_from(["*", "+", "{0,2}", "{1,3}", "{2}"]))
        | st.builds("({}|{})".format, inner, inner)
        | st.builds("{}{}".format, inner, inner)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize("pattern", OPTIONAL)
def test_a_pattern_allows_what_it_says(pattern: str) -> None:
    found = read_optional(pattern)
    said = pattern.replace("{,", "{0,").replace(r"\x{9}", r"\x09")
    for text in TEXTS:
        assert bool(re.fullmatch(found, text)) == bool(re.fullmatch(said, text)), text
    assert read_optional(found) == found, "what was read reads back"
    assert not re.fullmatch(found, " " * (MAX_CHARS + 1))


@pytest.mark.parametrize("pattern", OTHERS)
def test_no_other_pattern_is_taken_and_none_is_run(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"^(must|allows|has|repeats) "):
        read_optional(pattern)


def test_what_has_no_end_gets_one() -> None:
    for pattern in (r"\s*", r"\s{0,}", r"[ \t\n\r]*", r"(\s\s)*"):
        found = read_white_space(pattern)
        assert found.most <= ENDLESS_CHARS
        assert re.fullmatch(found.pattern, "\n" + " " * (ENDLESS_CHARS - 1))
        assert not re.fullmatch(found.pattern, " " * (ENDLESS_CHARS + 1))


@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(pattern=SPACES)
def test_drawn_patterns_mean_the_same(pattern: str) -> None:
    found = read_white_space(pattern)
    matching = [text for text in TEXTS if re.fullmatch(pattern, text)]
    assert matching == [text for text in TEXTS if re.fullmatch(found.pattern, text)]
    assert found.alone == {text for text in matching if len(text) == 1}
    assert found.is_optional == ("" in matching)
    assert all(found.least <= len(text) <= found.most for text in matching)


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (",", [","]),
        (", ", [", "]),
        (",\n", [",\n"]),
        (r"\s{0,2},\s{0,2}", [",", " ,", "\t, \n"]),
        (r",[ ]?", [",", ", "]),
        (r"( |\n)?,", [",", " ,", "\n,"]),
    ],
)
def test_a_separator_is_a_sign_with_white_space(pattern: str, texts: list[str]) -> None:
    found = read_separator(pattern, ",")
    assert is_plain(found) == (found == pattern == texts[0])
    assert read_separator(found, ",") == found
    for text in texts:
        assert re.fullmatch(found, text)
    for text in ("", " ", ",,", ";", ",   ", ":"):
        assert not re.fullmatch(found, text)


@pytest.mark.parametrize("pattern", ["", " ", ":", ";", ",,", ",|, ", "(,)", ",x", ", *" * 9, "."])
def test_no_other_separator_is_taken(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"^(must|allows|has|repeats) "):
        read_separator(pattern, ",")


def test_the_longest_patterns_read_back() -> None:
    for pattern in (r"\s?" * 85, r" ?" * 128, "(( ?))" * 40, "( |" * 8 + " " + ")?" * 8):
        found = Json("{}", white_space=read_optional(pattern)).spacing(Spacing())
        assert found.white_space == read_optional(pattern)
        assert found.item == ","


def test_settings_are_checked_when_they_are_made() -> None:
    assert GrammarConfig().spacing == Spacing(WHITE_SPACE)
    assert GrammarConfig(white_space="").spacing == Spacing("")
    assert GrammarConfig(white_space="[ ]*").spacing == Spacing("[ ]{0,32}")
    assert GrammarConfig(any_white_space=False).spacing == Spacing("", ", ", ": ")


def test_a_schema_may_say_its_own_spacing() -> None:
    default = Spacing("[ ]{0,1}")
    assert Json("{}").spacing(default) is default
    assert Json("{}", white_space="").spacing(default) == Spacing("")
    assert Json("{}", separators=(", ", ": ")).spacing(default) == Spacing("", ", ", ": ")
    with pytest.raises(ValueError, match="must be"):
        Json("{}", separators=(";", ":")).spacing(default)
