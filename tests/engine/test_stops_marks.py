"""Marks: where control tokens stand in a text, however the text is cut into steps."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eyas.core import Mark, SamplingParams
from eyas.engine import stops
from eyas.engine.stops import Shown, StopChecker
from eyas.text import Detokenizer
from tests.laws.world import EOS, STOP_ID, tokenizer
from tests.thorough import drawn

MARK_ID = STOP_ID + 1
MARKED = frozenset({STOP_ID, MARK_ID})
STOP_TEXT, MARK_TEXT = "<|stop|>", "<|mark|>"
EURO = [0xE2, 0x82, 0xAC]


def checker(params: SamplingParams, max_tokens: int = 100) -> StopChecker:
    names = tokenizer()
    return StopChecker(
        params,
        frozenset({EOS}),
        max_tokens,
        Detokenizer(names, params.skip_special_tokens),
        MARKED,
    )


def feed(
    params: SamplingParams, pieces: Sequence[Sequence[int]], *, max_tokens: int = 100
) -> list[Shown]:
    """What each piece showed, up to the end; a text that goes on is ended by the engine."""
    stops_here = checker(params, max_tokens)
    shown = []
    for piece in pieces:
        shown.append(stops_here.push(list(piece)))
        if shown[-1].finish_reason is not None:
            return shown
    return [*shown, stops_here.finish()]


def placed(shown: Sequence[Shown]) -> list[Mark]:
    """The marks with their offsets in the whole text."""
    marks, num_chars = [], 0
    for delta in shown:
        marks += [Mark(m.offset + num_chars, m.token_id, m.length) for m in delta.marks]
        num_chars += len(delta.text)
    return marks


def text_of(shown: Sequence[Shown]) -> str:
    return "".join(delta.text for delta in shown)


def plain(**changes: object) -> SamplingParams:
    return SamplingParams(**{"skip_special_tokens": False, **changes})


def test_a_shown_token_is_marked_where_its_text_stands() -> None:
    shown = feed(plain(), [[*b"ab", MARK_ID, *b"c", STOP_ID, MARK_ID]])
    assert text_of(shown) == f"ab{MARK_TEXT}c{STOP_TEXT}{MARK_TEXT}"
    assert placed(shown) == [Mark(2, MARK_ID, 8), Mark(11, STOP_ID, 8), Mark(19, MARK_ID, 8)]


def test_a_skipped_token_is_marked_with_no_length() -> None:
    shown = feed(plain(skip_special_tokens=True), [[*b"ab", MARK_ID, *b"c"], [MARK_ID, MARK_ID]])
    assert text_of(shown) == "abc"
    assert placed(shown) == [Mark(2, MARK_ID, 0), Mark(3, MARK_ID, 0), Mark(3, MARK_ID, 0)]
    assert [len(delta.marks) for delta in shown] == [1, 2, 0]


def test_offsets_are_of_the_deltas_own_text() -> None:
    shown = feed(plain(), [[*b"abc"], [*b"d", MARK_ID], [MARK_ID]])
    assert [delta.marks for delta in shown[:3]] == [
        [],
        [Mark(1, MARK_ID, 8)],
        [Mark(0, MARK_ID, 8)],
    ]


def test_tokens_that_nobody_asked_about_are_not_marked() -> None:
    unmarked = StopChecker(plain(), frozenset({EOS}), 9, Detokenizer(tokenizer(), False))
    assert unmarked.push([97, MARK_ID]).marks == []


def test_half_a_character_stands_before_its_mark() -> None:
    shown = feed(plain(), [[0xE2], [MARK_ID], [*b"a"]])
    assert text_of(shown) == f"\ufffd{MARK_TEXT}a"
    [mark] = placed(shown)
    assert text_of(shown)[mark.offset : mark.offset + mark.length].endswith(MARK_TEXT)


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_that_cuts_into_a_mark_takes_it_away(include: bool) -> None:
    params = plain(stop=("p|>b",), include_stop_str_in_output=include)
    shown = feed(params, [[*b"a", MARK_ID], [*b"c", STOP_ID], [*b"b"]])
    assert shown[-1].stop_reason == "p|>b"
    assert text_of(shown) == f"a{MARK_TEXT}c" + ("<|stop|>b" if include else "<|sto")
    expected = [Mark(1, MARK_ID, 8)] + ([Mark(10, STOP_ID, 8)] if include else [])
    assert placed(shown) == expected


def test_a_stop_string_that_is_the_marks_own_text_takes_it_away() -> None:
    shown = feed(plain(stop=(MARK_TEXT,)), [[*b"ab", STOP_ID, MARK_ID, *b"c"]])
    assert text_of(shown) == f"ab{STOP_TEXT}"
    assert placed(shown) == [Mark(2, STOP_ID, 8)]


def test_a_mark_is_held_back_with_its_text() -> None:
    held = checker(plain(stop=(f"{MARK_TEXT}xy",)))
    first = held.push([97, MARK_ID])
    assert (first.text, first.marks) == ("a", [])
    second = held.push([120])
    assert (second.text, second.marks) == ("", [])
    third = held.push([122])
    assert (third.text, third.marks) == (f"{MARK_TEXT}xz", [Mark(0, MARK_ID, 8)])


def test_a_marks_text_is_never_shown_without_it() -> None:
    """The end of the mark's text may begin a stop string: all of the mark waits."""
    held = checker(plain(stop=(">b",)))
    first = held.push([97, MARK_ID])
    assert (first.text, first.marks) == ("a", [])
    second = held.push([99])
    assert (second.text, second.marks) == (f"{MARK_TEXT}c", [Mark(0, MARK_ID, 8)])


def test_what_is_held_back_comes_with_its_marks_when_the_engine_ends_it() -> None:
    held = checker(plain(stop=(f"{MARK_TEXT}xy",)))
    held.push([97, MARK_ID, 120])
    last = held.finish()
    assert (last.text, last.marks) == (f"{MARK_TEXT}x", [Mark(0, MARK_ID, 8)])


def test_a_stop_token_is_no_mark() -> None:
    shown = feed(plain(stop_token_ids=(STOP_ID,)), [[*b"a", MARK_ID, STOP_ID, MARK_ID]])
    assert text_of(shown) == f"a{MARK_TEXT}" and placed(shown) == [Mark(1, MARK_ID, 8)]


RUNS = st.lists(
    st.sampled_from([[97], [98], [98], [*b"ab"], EURO, EURO[:1], [MARK_ID], [STOP_ID], [EOS]]),
    max_size=12,
).map(lambda runs: [token for run in runs for token in run])
STOPS = st.lists(
    st.sampled_from(["ab", "bb", "a\u20ac", ">b", "|>", "b<", "k|><", MARK_TEXT, f"{STOP_TEXT}a"]),
    max_size=3,
)


@settings(
    max_examples=drawn(150, 500),
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(
    tokens=RUNS,
    sizes=st.lists(st.integers(1, 4), max_size=20),
    stop=STOPS,
    skips=st.booleans(),
    include=st.booleans(),
    max_tokens=st.sampled_from([4, 100]),
    kept=st.sampled_from([2, 4096]),
)
def test_any_cutting_gives_the_marks_of_the_whole(
    tokens: list[int],
    sizes: list[int],
    stop: list[str],
    skips: bool,
    include: bool,
    max_tokens: int,
    kept: int,
) -> None:
    params = plain(skip_special_tokens=skips, stop=tuple(stop), include_stop_str_in_output=include)
    pieces, at = [], 0
    for size in [*sizes, len(tokens)]:
        pieces.append(tokens[at : at + size])
        at += size
    with mock.patch.object(stops, "_MOST_KEPT", kept):
        shown = feed(params, pieces, max_tokens=max_tokens)
    whole = feed(params, [tokens], max_tokens=max_tokens)
    assert text_of(shown) == text_of(whole)
    assert placed(shown) == placed(whole)
    assert shown[-1].finish_reason == whole[-1].finish_reason
    for delta in shown:
        offsets = [mark.offset for mark in delta.marks]
        assert offsets == sorted(offsets)
        assert all(0 <= mark.offset <= len(delta.text) for mark in delta.marks)
    text, names = text_of(whole), {STOP_ID: STOP_TEXT, MARK_ID: MARK_TEXT}
    marks = placed(whole)
    for mark in marks:
        spelled = text[mark.offset : mark.offset + mark.length]
        assert spelled.endswith("" if skips else names[mark.token_id])
    num_taken = sum(delta.num_taken for delta in whole)
    taken = [token for token in tokens[:num_taken] if token in MARKED]
    assert [mark.token_id for mark in marks] == taken[: len(marks)]
    if not stop:
        assert len(marks) == len(taken)


def test_a_mark_that_waits_moves_with_the_text_that_is_forgotten() -> None:
    with mock.patch.object(stops, "_MOST_KEPT", 2):
        held = checker(plain(stop=(f"{MARK_TEXT}xy",)))
        first = held.push([*b"abc", MARK_ID])
        assert (first.text, first.marks) == ("abc", [])
        second = held.push([*b"xz"])
        assert (second.text, second.marks) == (f"{MARK_TEXT}xz", [Mark(0, MARK_ID, 8)])
