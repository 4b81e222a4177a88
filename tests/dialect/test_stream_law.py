"""Every way of cutting a stream into pushes gives the same events as the whole stream."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.dialect.segment import merged
from tests.thorough import drawn

from .cases import FAMILIES, cases_of
from .streams import Outcome, outputs, pushed


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=drawn(40, 100), deadline=None)
@given(data=st.data())
def test_any_cut_gives_the_same_events(family: str, data: st.DataObject) -> None:
    case = data.draw(cases_of(family))
    ids = data.draw(outputs(case.tokenizer, case.pieces))
    stream = case.tokenizer.stream(ids)
    places = data.draw(st.lists(st.integers(0, max(0, len(stream.text) - 1))))
    splits = data.draw(st.sets(st.integers(0, 20)))
    segmenter = case.segmenter()
    events = pushed(segmenter, stream.cut(places, sorted(splits)))
    assert merged([*events, *segmenter.finish()]) == stream.at_once(case.segmenter())


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=drawn(40, 100), deadline=None)
@given(data=st.data())
def test_one_character_a_push_gives_the_same_events(family: str, data: st.DataObject) -> None:
    case = data.draw(cases_of(family))
    ids = data.draw(outputs(case.tokenizer, case.pieces))
    stream = case.tokenizer.stream(ids)
    segmenter = case.segmenter()
    events = pushed(segmenter, stream.cut(range(len(stream.text))))
    assert merged([*events, *segmenter.finish()]) == stream.at_once(case.segmenter())


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=drawn(40, 100), deadline=None)
@given(data=st.data())
def test_what_was_said_is_never_taken_back(family: str, data: st.DataObject) -> None:
    case = data.draw(cases_of(family))
    ids = data.draw(outputs(case.tokenizer, case.pieces))
    whole = Outcome.of(case.tokenizer.stream(ids).at_once(case.segmenter()))
    segmenter = case.segmenter()
    events = []
    for token in ids:
        events += pushed(segmenter, [case.tokenizer.stream([token])])
        assert Outcome.of(events).begins(whole)
