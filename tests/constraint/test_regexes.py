"""How users' regular expressions are told to the library, and where its complaints point."""

from __future__ import annotations

import pytest

from eyas.constraint import Vocabulary, build_backend
from eyas.constraint.regexes import place_in, told
from eyas.core import GrammarError
from eyas.grammar import OutputSpec, Regex


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
