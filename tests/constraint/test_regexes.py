"""How users' regular expressions are told to the library, and where its complaints point."""

from __future__ import annotations

import re
from typing import Any

import pytest

from eyas.constraint import Vocabulary, build_backend
from eyas.constraint.regexes import place_in, told
from eyas.core import GrammarError
from eyas.grammar import Json, OutputSpec, Regex
from eyas.schemas import prepare, rust_pattern
from eyas.text import Tokenizer
from tests.constraint.walking import compiled, ends, tokens_of


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"(a|b)/\d", r"/(?:a|b)\/[0-9]/"),
        (r"(?P<x>a)(?<y>b)(?i:c)(?i)", r"/(?:a)(?:b)(?i:c)(?i)/"),
        (r"[(][^(](a)", r"/[(][^(](?:a)/"),
        (r"[](][^](](a)", r"/[](][^](](?:a)/"),
        (r"[[:alpha:](](a)", r"/[[:alpha:](](?:a)/"),
        (r"[\](]\((a)", r"/[\](]\((?:a)/"),
        (r"[\w](a)\\d", r"/[[0-9A-Za-z_]](?:a)\\d/"),
        ("(?ix) [a # ]\n(] (b)", "/(?ix) [a # ]\n(] (b)/"),
        (r"[-\d][^-\w][a-c-\d]", r"/[-[0-9]][^-[0-9A-Za-z_]][a-c-[0-9]]/"),
        (r"[\d--[1]][+-/](a)[+-[](a)", r"/[[0-9]--[1]][+-\/](?:a)[+-[](?:a)/"),
    ],
)
def test_groups_capture_nothing_and_classes_are_ascii(pattern: str, expected: str) -> None:
    assert told(pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "taken"),
    [
        (r"\w", "kKsS5"),
        (r"(?i)\w", "kK\u212asS\u017f5"),
        ("(?i)k", "kK\u212a"),
        ("(?i)[s-t]", "sS\u017f"),
        (r"(?i)\W", "é-"),
        ("(?i)[^k]", "sS\u017f5é-"),
    ],
)
def test_case_is_folded_alike_in_patterns_and_schemas(
    llguidance_backend: Any, tokenizer: Tokenizer, pattern: str, taken: str
) -> None:
    schema = prepare({"type": "string", "pattern": f"^{pattern}$"}, param="schema")
    plain, quoted = (compiled(llguidance_backend, node) for node in (Regex(pattern), Json(schema)))
    for char in "kK\u212asS\u017f5é-":
        assert ends(plain, tokens_of(tokenizer, char)) == (char in taken)
        assert ends(quoted, tokens_of(tokenizer, f'"{char}"')) == (char in taken)


@pytest.mark.parametrize("flags", [0, re.ASCII])
@pytest.mark.parametrize(
    ("pattern", "taken"),
    [
        (r"\s", " \t"),
        (r"\S", "aé-5"),
        (r"\D", "aé- "),
        (r"\W", "- \u2028"),
        (r"[^\s]", "aé-5"),
        (r"[^\d]", "aé- "),
        (r"[^\w]", "- \u2028"),
        (r"[^\w\-]", " \u2028"),
    ],
)
def test_a_compiled_pattern_allows_nothing_that_python_refuses(
    llguidance_backend: Any, tokenizer: Tokenizer, pattern: str, taken: str, flags: int
) -> None:
    """In ASCII patterns é is no letter, and all of Unicode's white space but ASCII's is none."""
    python = re.compile(pattern, flags)
    grammar = compiled(llguidance_backend, Regex(rust_pattern(python, "output")))
    for char in "aé5- \t\x1c\x85\xa0\u2028\ufeff\u0665²":
        is_taken = ends(grammar, tokens_of(tokenizer, char))
        assert python.fullmatch(char) or not is_taken
        assert is_taken or char not in taken


@pytest.mark.parametrize("pattern", ["é", "k", "a(?i:k)b", "(?is)k"])
def test_letters_of_ascii_in_any_case_are_refused(pattern: str) -> None:
    """Rust counts the sign for kelvin as a k, and Python does not in ASCII patterns."""
    flags = re.ASCII if "(?i:" in pattern else re.ASCII | re.IGNORECASE
    with pytest.raises(GrammarError, match="IGNORECASE beside ASCII"):
        rust_pattern(re.compile(pattern, flags), "output")
    assert rust_pattern(re.compile(r"\(?i:", re.ASCII), "output") == r"\(?i:"


def test_a_place_is_found_again() -> None:
    pattern = r"\d/(a(?P<x>b|"
    shown = told(pattern)[1:-1]
    for part in ("a", "b"):
        assert place_in(pattern, shown.index(part)) == pattern.rindex(part)
    assert place_in(pattern, shown.index("(")) == pattern.index("(")
    assert place_in(pattern, len(shown)) == len(pattern)


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        (r"\d/\w(b|c}", 5),
        ("((a))(?P<name>b)[z-a]", 17),
        ("(a)b)", 4),
        (r"[+-\d]+", 3),
        (r"(a)[A-\w]", 6),
        (r"[\x{41}-\D]", 8),
        (r"(?x)[+ - \d]", 9),
    ],
)
def test_a_complaint_points_into_the_users_pattern(pattern: str, position: int) -> None:
    letters = [bytes([i]) for i in range(256)]
    backend = build_backend(
        "llguidance",
        Vocabulary([*letters, b"end"], frozenset({256}), (256,), 257, lambda text: []),
    )
    with pytest.raises(GrammarError, match=rf"^regex: .* at position {position}, near") as caught:
        backend.compile(OutputSpec(root=Regex(pattern), param="regex"))
    assert caught.value.fault == "invalid"
