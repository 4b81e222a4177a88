"""A pattern allows exactly the texts that it matches, in every JSON spelling."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from eyas.core import GrammarError
from eyas.schemas import automata, prepare
from eyas.schemas.pattern_lengths import bounded, lengths, rotated
from eyas.schemas.pattern_parser import read
from eyas.schemas.pattern_tree import PatternFault, written
from tests.schemas.enforcing import allowed, lets_through, matcher, spellings
from tests.thorough import drawn

ATOMS = (
    *("a", "b", "0", ".", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", "é", "[é-ü]", "[^é]", r"\/"),
    *("[a-c]", "[^a]", r'[^"]', r"[^\\]", r'[^"\\]', r'[^"\n]', r"[^\\\n]", r"[\x00-\x1f]", r"\""),
    *(
        r"\\",
        '"',
        r"[^\w\\]",
        r"[^!-~]",
        r"[\x00-!]",
        r"[^,;]",
        r"[\w.-]",
        r"[^\s]",
        r"\n",
        r"\x41",
    ),
    *(r"[^\x00]", r"[\s\S]", r"[\x01-\x1f]", r"\u00e9", "-", "{", "}", "😀"),
)
TEXTS = (
    *("", "a", "b", "0", "é", '"', "\\", "\n", "\t", "\x01", "/", "A", "😀", " ", "-", "{", "ab"),
    *('a"', "a\\", '""', "\\\\", "\\n", "aab", "é\n", "\x1f", "\x7f", "0a0", "},"),
)


def _deeper(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    counts = st.sampled_from(("?", "*", "+", "{2}", "{0,2}", "{1,3}", "+?"))
    return st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("({}|{})".format, inner, inner),
        st.builds("(?:{}){}".format, inner, counts),
    )


patterns = st.builds(
    "{}{}{}".format,
    st.sampled_from(("", "^")),
    st.recursive(st.sampled_from(ATOMS), _deeper, max_leaves=4).map("(?:{})".format),
    st.sampled_from(("", "$")),
)


def in_python(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(re.sub(r"\$$", r"\\Z", pattern), re.ASCII)
    except re.error:
        assume(False)
        raise


@settings(max_examples=drawn(120, 250), deadline=None)
@given(patterns)
@example("^((A|[é-ü])|(é|[é-ü]))$")
def test_a_pattern_allows_what_it_matches(pattern: str) -> None:
    automaton = matcher(prepare({"type": "string", "pattern": pattern}, param="schema"))
    expected = in_python(pattern)
    for text in TEXTS:
        passed = ways_through(automaton, text)
        assert bool(passed) == (expected.search(text) is not None), (text, passed)


def ways_through(automaton: Any, text: str) -> list[str]:
    """Return the spellings of a text that a matcher accepts; none for None."""
    ways = ["".join(way) for way in itertools.product(*map(spellings, text))]
    return [way for way in ways if automaton and lets_through(automaton, f'"{way}"')]


@settings(max_examples=120, deadline=None)
@given(patterns, st.integers(0, 3), st.integers(0, 3))
@example("^(?:(?:a|b){2})$", 2, 2)
@example("^(?:a)", 1, 1)
@example("^|b$", 0, 1)
@example("^(?:a|b$)", 1, 2)
@example("^a", 2, 3)
@example("b$", 2, 3)
def test_lengths_hold_beside_a_pattern_that_may_imply_them(
    pattern: str, least: int, most: int
) -> None:
    assume(least <= most)
    schema = {"type": "string", "pattern": pattern, "minLength": least, "maxLength": most}
    automaton = matcher(prepare(schema, param="schema"))
    expected = in_python(pattern)
    low, high = lengths(read(pattern))
    for text in TEXTS:
        is_match = expected.search(text) is not None
        assert not is_match or low <= len(text) <= (len(text) if high is None else high)
        passed = ways_through(automaton, text)
        assert bool(passed) == (is_match and least <= len(text) <= most), (text, passed)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^[a-z]{3}$", (3, 3)),
        ("[a-z]{3}", (3, None)),
        (r"^(?:\S+\s+){0,99}\S+$", (1, None)),
        ("^$|(^ab?$)", (0, 2)),
        ("^(a|bcd)$", (1, 3)),
        ("^a|b$", (1, None)),
        ("^(){2,}$", (0, 0)),
        (r"^\p{L}{2}-\d{1,4}$", (4, 7)),
    ],
)
def test_a_pattern_tells_how_long_its_texts_are(
    pattern: str, expected: tuple[int, int | None]
) -> None:
    """Implied limits are left out: the backend is slow if it must check both."""
    assert lengths(read(pattern)) == expected
    least, most = expected
    schema = {"type": "string", "pattern": pattern, "minLength": least, "maxLength": most or 9}
    rest = json.loads(prepare(schema, param="schema"))
    assert "minLength" not in rest and ("maxLength" in rest) == (most is None)


@pytest.mark.parametrize(
    ("pattern", "least", "most", "expected"),
    [
        ("^[a-z]+$", 0, 64, "^[a-z]{1,64}$"),
        (r"^[^\d/]*$", 3, None, r"^[^\d/]{3,}$"),
        ("^[a-z]([-a-z0-9]*[a-z0-9])?$", 0, 63, r"^[a-z](?:[\-a-z0-9]{0,61}[a-z0-9])?$"),
        ("^[a-z]([-a-z0-9]*[a-z0-9])?$", 2, 63, r"^[a-z](?:[\-a-z0-9]{0,61}[a-z0-9])$"),
        ("^[a-z]([-a-z0-9]*[a-z0-9])?$", 0, 1, "^[a-z](?:)$"),
        ("^$|^a+$", 0, 9, "^$|^a{1,9}$"),
        ("^$|^a+$", 1, 9, "^a{1,9}$"),
        ("^(?:ab)*c$", 4, 8, "^(?:ab){2,3}c$"),
        ("^ab", 0, None, "^ab"),
        ("^ab", 0, 9, "^ab(?s:.){0,7}$"),
        ("^", 1, None, "^(?s:.)+$"),
        ("ab$", 3, 9, "^(?s:.){1,7}ab$"),
        ("$", 2, 3, "^(?s:.){2,3}$"),
        ("^ab", 0, 1, None),
        ("^a+", 0, 9, None),
        ("^(?:a|b$)", 0, 9, None),
        ("^a|b$", 0, 9, None),
        ("[a-z]+", 0, 9, None),
        ("[a-z]+", 0, 1, "^[a-z]{1}$"),
        ("[0-9]{5}", 5, 5, "^[0-9]{5}$"),
        ("a[bc]?", 0, 1, "^a[bc]{0}$"),
        ("ab|c", 0, 1, "^(?:c)$"),
        ("^a+b+$", 0, 9, None),
        ("^(?:a|bcd)$", 2, 2, None),
        ("^(?:ab)+$", 3, 3, None),
        ("^a+$", 0, 10**7, None),
    ],
)
def test_counts_of_a_pattern_say_its_lengths_where_one_alone_varies(
    pattern: str, least: int, most: int | None, expected: str | None
) -> None:
    found = bounded(read(pattern), least, most)
    assert (None if found is None else written(found)) == expected
    schema = {"type": "string", "pattern": pattern, "minLength": least}
    schema |= {} if most is None else {"maxLength": most}
    rest = json.loads(prepare(schema, param="schema"))
    if expected is not None:
        assert rest == {"type": "string", "pattern": expected}
    elif most is not None:
        assert rest["maxLength"] == most


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"^(?:\D+\d+){0,199}\D+$", r"^\D+(?:\d+\D+){0,199}$"),
        ("^(ab)*a", "^a(?:ba)*"),
        ("^(ab)*b$", "^(?:ab)*b$"),
        ("x(a(bc)+b)?|(aba)*ab", "x(?:ab(?:cb)+)?|a(?:baa)*b"),
    ],
)
def test_what_repeats_begins_behind_what_follows(pattern: str, expected: str) -> None:
    assert written(rotated(read(pattern))) == expected


QUOTED: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"type": "string", "pattern": r'^[^"]+$'}, [r'"a\\"', r'"\n"', r'"\u001f"'], [r'"\""']),
    ({"type": "string", "pattern": r"^[^\\]+$"}, [r'"a\""', r'"\t"'], [r'"\\"']),
    (
        {"type": "string", "pattern": r'^[^/\\:*?"<>|]+$'},
        ['"a.txt"', r'"\n"'],
        [r'"\\"', r'"\""', '"/"'],
    ),
    ({"type": "string", "pattern": r"^[\x00-\x1f]$"}, [r'"\n"', r'"\u0001"'], [r'"\\"', r'"\""']),
    ({"type": "string", "pattern": r'^(?:[^"]|\x00|[\x00-\x1f])$'}, [r'"\n"'], [r'"\""']),
    ({"type": "string", "pattern": r"^\P{P}$"}, ['"a"', r'"\n"'], [r'"\\"', r'"\""']),
    ({"type": "string", "pattern": r"^[^\p{P}]$"}, ['"a"', r'"\n"'], [r'"\\"', r'"\""']),
    ({"type": "string", "not": {"const": 'say "hi"'}}, ['"say"'], [r'"say \"hi\""']),
    ({"type": "string", "not": {"enum": ["\\", '"', "a"]}}, ['"b"'], [r'"\\"', r'"\""', '"a"']),
    ({"oneOf": [{"const": '"'}, {"type": "string"}]}, ['"a"'], [r'"\""']),
    ({"type": "object", "propertyNames": {"pattern": '^[^"]+$'}}, ['{"a":1}'], [r'{"\"":1}']),
    (
        {"patternProperties": {'^[^"]+$': {}}, "additionalProperties": False, "type": "object"},
        ['{"a":1}'],
        [r'{"\"":1}'],
    ),
    (
        {"type": "object", "properties": {'a"': {"type": "integer"}}, "minProperties": 1},
        [r'{"a\"":1}', '{"b":"x"}'],
        [r'{"a\"":"x"}'],
    ),
]


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"), QUOTED, ids=[str(q[0])[:60] for q in QUOTED]
)
def test_what_bars_a_quote_or_a_backslash_bars_it(
    schema: dict[str, Any], valid: list[str], invalid: list[str]
) -> None:
    assert allowed(schema, [*valid, *invalid]) == valid


@pytest.mark.parametrize(
    ("pattern", "valid", "invalid"),
    [
        (r"^[[(]a[\])]$", ["[a]", "(a)"], ["a", "{a}"]),
        ("^{[a-z]+}$", ["{ab}"], ["ab"]),
        ("^[^]*$", ["", "a\n"], []),
        (r"^(?<year>\d{4})-(?P<stop>\d)$", ["2020-1"], ["2020-", "2020"]),
        (r"^\uD83D\uDE00$", ["😀"], ["\ufffd"]),
        (r"^[^\uD800-\uDFFF]$", ["a", "é"], [""]),
        (r"^[\b]\cA$", ["\b\x01"], ["b"]),
        (r"^[\w-.]\:\_$", ["-:_", ".:_"], [",:_"]),
        (r"\Aa\z", ["a"], ["ba", "ab"]),
        ("(?i)^a(?-i)b$", ["ab", "Ab"], ["aB"]),
        ("^[a&&b]$", ["a", "b", "&"], ["c"]),
        ("^(.*)$", ["", "ab"], ["a\nb"]),
        (r"^a\\b$", ["a\\b"], ["ab", "a\b"]),
        (r"^\s$", [" ", "\n", "\u2028", "\ufeff"], ["a", "\x85"]),
        (r"^[\S\d]$", ["a", "\x85"], [" ", "\n", "\u2028", "\ufeff"]),
    ],
)
def test_patterns_of_the_standard_are_read_as_it_says(
    pattern: str, valid: list[str], invalid: list[str]
) -> None:
    texts = [json.dumps(text, ensure_ascii=False) for text in (*valid, *invalid)]
    assert allowed({"type": "string", "pattern": pattern}, texts) == texts[: len(valid)]
    named = {"type": "object", "patternProperties": {pattern: {}}, "additionalProperties": False}
    texts = [f"{{{text}:1}}" for text in texts]
    assert allowed(named, texts) == texts[: len(valid)]


@pytest.mark.parametrize(
    ("pattern", "fault", "words"),
    [
        ("^(?=a)a|b", "unsupported", "position 1: look-around"),
        ("^(?!(?!a)b)c", "unsupported", "position 1: look-around"),
        ("^(?!a)?b", "unsupported", "position 1: look-around"),
        ("a(?<!b)", "unsupported", "position 1: look-around"),
        (r"(a)\1", "unsupported", "position 3: backreferences"),
        (r"\bfoo", "unsupported", r"position 0: \b"),
        ("a^b", "unsupported", "position 1: ^"),
        ("(?:a$)*", "unsupported", "position 4: $"),
        ("a{,3}", "unsupported", "position 1: {,n} has two meanings; write {0,n}"),
        ("(?m)^a", "unsupported", "position 0: of the flags"),
        ("[[:alpha:]]", "unsupported", "position 1: classes with names"),
        ("[a-z&&[^b]]", "unsupported", "position 4: operations"),
        ("[]a]", "unsupported", "position 0: an empty class"),
        ("[a", "invalid", "position 0: the class is not closed"),
        ("(a", "invalid", "position 0: the parenthesis is not closed"),
        ("a)", "invalid", "position 1: the parenthesis closes nothing"),
        ("a**", "invalid", "position 2: there is nothing to repeat"),
        ("[z-a]", "invalid", "position 0: a range"),
        ("a{3,2}", "invalid", "position 1: {3,2}"),
        ("a\\", "invalid", "position 1: ends with a lone backslash"),
        (r"\ud800", "invalid", "position 0: half a surrogate pair"),
        (r"[\udc00]", "invalid", "position 0: halves of surrogate pairs"),
        (r"\q", "invalid", r"position 0: \q"),
        ("(" * 100 + ")" * 100, "too_complex", "position 81: nested too deeply"),
        ("a{10000000}", "too_complex", "position 1: repeats too often"),
    ],
)
def test_what_cannot_be_had_is_named_with_its_place(pattern: str, fault: str, words: str) -> None:
    inner = {"type": "string", "pattern": pattern}
    for schema, place in (
        (
            {"properties": {"a": {"properties": {"b": inner}}}},
            "#/properties/a/properties/b/pattern",
        ),
        ({"items": {"patternProperties": {pattern: {}}}}, "#/items/patternProperties/"),
    ):
        with pytest.raises(GrammarError) as caught:
            prepare(schema, param="schema")
        assert caught.value.fault == fault
        assert caught.value.message.startswith(f"schema: {place}")
        assert f"the pattern is refused: {words}" in caught.value.message


@pytest.mark.parametrize("pattern", ["^a(?!b)", r"(a)\1", r"\bfoo\b", "a^b"])
def test_lenient_leaves_out_patterns_that_cannot_be_enforced(pattern: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": pattern}},
        "patternProperties": {pattern: {"type": "null"}},
        "required": ["a"],
    }
    automaton = matcher(prepare(schema, param="schema", lenient=True))
    assert automaton is not None and lets_through(automaton, '{"a":"b","c":1}')
    assert not lets_through(automaton, '{"a":1}')


def test_lenient_leaves_out_steps_with_too_many_digits() -> None:
    schema = {"multipleOf": 1e-12, "type": "number", "allOf": [{"multipleOf": 0.5}]}
    automaton = matcher(prepare(schema, param="schema", lenient=True))
    assert automaton is not None and lets_through(automaton, "1.5")
    assert not lets_through(automaton, "1.25")


@settings(max_examples=drawn(80, 150), deadline=None)
@given(st.lists(patterns, min_size=1, max_size=2), st.lists(st.sampled_from(TEXTS), max_size=2))
def test_regions_part_all_texts(found: list[str], names: list[str]) -> None:
    """Each text except the names is in one region: that of the patterns that match it."""
    trees = [read(pattern) for pattern in found]
    regions = automata.regions(trees, names, automata.Budget())
    assume(regions is not None)
    assert regions is not None
    languages = {held: in_python(text) for held, text in regions.items()}
    for text in TEXTS:
        held = tuple(in_python(pattern).search(text) is not None for pattern in found)
        hits = [own for own, language in languages.items() if language.search(text)]
        assert hits == ([] if text in names else [held]), text


def test_what_grows_without_end_is_given_up_in_time() -> None:
    for pattern in ("(a|b)*a(a|b){30}", "^(.{1,1000}){1,1000}$", "(x+x+)+y"):
        assert automata.regions([read(pattern)], [], automata.Budget()) is None or len(pattern) < 12
    with pytest.raises(PatternFault):
        read("(?x)a")


NUL_PATTERNS = (
    *("^a\0b$", "^[\0a]$", "^[^\0]$", "^[\0-\x1f]$", "^[a\0]{2}$", "\0", "^\\\0|b$", "^a\0{2}$"),
    *("^[^a\0-c]$", "(?i:\0a)", "^[\\w\0]$", "^[\0-\U0010ffff]$", '^[\0"\\\\]$'),
)


@pytest.mark.parametrize("pattern", NUL_PATTERNS)
def test_a_character_nul_in_a_pattern_is_what_its_escape_is(pattern: str) -> None:
    escaped = pattern.replace("\\\0", "\0").replace("\0", "\\u0000")
    for schema in (
        lambda text: {"type": "string", "pattern": text},
        lambda text: {"properties": {"const": {"items": {"pattern": text}}}},
        lambda text: {"patternProperties": {text: {"type": "null"}}, "additionalProperties": False},
    ):
        assert prepare(schema(pattern), param="p") == prepare(schema(escaped), param="p")


@pytest.mark.parametrize(
    "schema",
    [
        {"const": {"pattern": "\0"}},
        {"enum": [{"pattern": "\0"}]},
        {"default": {"patternProperties": {"\0": 1}}},
        {"properties": {"\0": {}}},
        {"patternProperties": {"a": {"title": "\0"}}},
        {"required": ["\0"]},
    ],
)
def test_a_character_nul_anywhere_else_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match="holds a NUL character"):
        prepare(schema, param="p")
