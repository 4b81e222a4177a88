"""The stream law: any way of cutting a token stream into steps shows the same text, tokens and reason.

The expectation is written anew here, from the whole text at once; the checker under test sees pieces.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eyas.core import Request, SamplingParams, TokenLogprob
from eyas.engine import stops
from eyas.engine.stops import Shown, StopChecker
from eyas.text import Detokenizer
from tests.laws.cases import NgramDrafter, walk_text
from tests.laws.drafters import RandomTrees
from tests.laws.world import EOS, MERGES, STOP_ID, VOCAB, Setting, new_engine, run, tokenizer
from tests.thorough import drawn

THOROUGH = settings(
    max_examples=drawn(200, 600),
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
MERGED = {merge.replace(" ", ""): 256 + i for i, merge in enumerate(MERGES)}
SMILE = [0xF0, 0x9F, 0x98, 0x80]
EURO = [0xE2, 0x82, 0xAC]
ALPHABET = [*b"aabbc", MERGED["ab"], MERGED["abc"], MERGED["the"], *SMILE, *EURO, 0xFF, VOCAB - 1]
STOP_STRINGS = st.one_of(
    st.text(alphabet="abc", min_size=1, max_size=5),
    st.sampled_from(["\u20ac", "a\u20ac", "\U0001f600", "\ufffd", "theab", "bthe", "<|stop|>"]),
)
TOKEN_RUNS = st.lists(
    st.one_of(
        st.sampled_from([[t] for t in ALPHABET]),
        st.sampled_from([EURO, SMILE, [*b"abab"], [MERGED["the"]]]),
        st.sampled_from([[97], [98], [EOS], [STOP_ID], [MERGED["abc"]]]),
    ),
    max_size=14,
).map(lambda runs: [token for run in runs for token in run])


@dataclass(frozen=True)
class Whole:
    """What a stream amounts to. num_taken: tokens that belong to the output."""

    text: str
    num_taken: int
    finish_reason: str | None
    stop_reason: str | int | None


def text_of(tokens: Sequence[int], skip: bool, *, final: bool) -> str:
    """The text that is certain once these tokens are there."""
    names = tokenizer()
    data = b"".join(names.token_bytes(t) for t in tokens if not (skip and t in names.special_ids))
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final)


def expect(params: SamplingParams, max_tokens: int, tokens: Sequence[int]) -> Whole:
    """The law, read off the whole token list."""
    skip, include = params.skip_special_tokens, params.include_stop_str_in_output
    ends = set() if params.ignore_eos else {EOS}
    for k in range(1, len(tokens) + 1):
        token = tokens[k - 1]
        if token in ends or token in params.stop_token_ids:
            kept = tokens[:k] if include else tokens[: k - 1]
            reason = None if token in ends else token
            return Whole(text_of(kept, skip, final=True), k, "stop", reason)
        before, now = (
            text_of(tokens[: k - 1], skip, final=False),
            text_of(tokens[:k], skip, final=False),
        )
        if k >= params.min_tokens:
            found = [
                (start + len(stop), start, stop)
                for stop in params.stop
                for start in range(len(now))
                if now.startswith(stop, start) and len(before) < start + len(stop) <= len(now)
            ]
            if found:
                end, start, stop = min(found)
                return Whole(now[: end if include else start], k, "stop", stop)
        if k >= max_tokens:
            return Whole(text_of(tokens[:k], skip, final=True), k, "length", None)
    return Whole(text_of(tokens, skip, final=False), len(tokens), None, None)


def feed(
    params: SamplingParams, max_tokens: int, pieces: Sequence[Sequence[int]]
) -> tuple[list[Shown], list[tuple[int, TokenLogprob]]]:
    """Push the pieces; every shown delta, and the tokens with their log-probabilities."""
    names = tokenizer()
    checker = StopChecker(
        params,
        frozenset({EOS}),
        max_tokens,
        Detokenizer(names, params.skip_special_tokens),
    )
    shown: list[Shown] = []
    position = 0
    for piece in pieces:
        logprobs = [TokenLogprob(t, -float(position + i), []) for i, t in enumerate(piece)]
        delta = checker.push(list(piece), logprobs)
        assert len(delta.token_ids) == len(delta.logprobs)
        shown.append(delta)
        position += delta.num_taken
        if delta.finish_reason is not None:
            break
        assert delta.num_taken == len(piece)
    paired = [p for d in shown for p in zip(d.token_ids, d.logprobs, strict=True)]
    return shown, paired


def cut(tokens: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    pieces, at = [], 0
    for size in [*sizes, len(tokens)]:
        pieces.append(list(tokens[at : at + size]))
        at += size
    return [piece for piece in pieces if piece]


@st.composite
def streams(draw: st.DrawFn) -> tuple[SamplingParams, int, list[int], list[list[int]]]:
    params = SamplingParams(
        stop=tuple(draw(st.lists(STOP_STRINGS, max_size=4))),
        stop_token_ids=draw(st.sampled_from([(), (STOP_ID,), (99,)])),
        ignore_eos=draw(st.booleans()),
        include_stop_str_in_output=draw(st.booleans()),
        skip_special_tokens=draw(st.booleans()),
        min_tokens=draw(st.sampled_from([0, 0, 1, 3, 6])),
    )
    tokens = draw(TOKEN_RUNS)
    sizes = draw(st.lists(st.integers(1, 5), max_size=30))
    return params, draw(st.sampled_from([6, 9, 100])), tokens, cut(tokens, sizes)


Stream = tuple[SamplingParams, int, list[int], list[list[int]]]


def assert_obeys(stream: Stream) -> None:
    params, max_tokens, tokens, pieces = stream
    whole = expect(params, max_tokens, tokens)
    for pushed in (pieces, [[t] for t in tokens], [tokens] if tokens else []):
        shown, paired = feed(params, max_tokens, pushed)
        text = "".join(d.text for d in shown)
        last = shown[-1] if shown else Shown()
        assert (last.finish_reason, last.stop_reason) == (whole.finish_reason, whole.stop_reason)
        assert sum(d.num_taken for d in shown) == whole.num_taken
        assert [t for t, _ in paired] == tokens[: len(paired)]
        assert [lp.logprob for _, lp in paired] == [-float(i) for i in range(len(paired))]
        if whole.finish_reason is not None:
            assert text == whole.text
            assert len(paired) == whole.num_taken
        else:
            assert whole.text.startswith(text)


@THOROUGH
@given(stream=streams())
def test_any_cutting_gives_what_the_whole_gives(stream: Stream) -> None:
    assert_obeys(stream)


@THOROUGH
@given(stream=streams())
def test_forgetting_what_was_shown_changes_nothing(stream: Stream) -> None:
    """As if every few characters were very many."""
    with mock.patch.object(stops, "_MOST_KEPT", 2):
        assert_obeys(stream)


@THOROUGH
@given(stream=streams())
def test_all_is_shown_but_what_may_begin_a_stop_string(
    stream: Stream,
) -> None:
    params, max_tokens, tokens, pieces = stream
    text, pushed = "", 0
    for delta, piece in zip(feed(params, max_tokens, pieces)[0], pieces, strict=False):
        text += delta.text
        pushed += len(piece)
        if delta.finish_reason is not None:
            return
        known = text_of(tokens[:pushed], params.skip_special_tokens, final=False)
        held = known[len(text) :]
        assert known == text + held
        endings = [n for stop in params.stop for n in range(len(stop)) if known.endswith(stop[:n])]
        assert len(held) == max(endings, default=0)


@THOROUGH
@given(stream=streams())
def test_what_is_held_back_comes_out_when_the_engine_ends_a_text(
    stream: Stream,
) -> None:
    params, _, tokens, pieces = stream
    names = tokenizer()
    checker = StopChecker(params, frozenset(), 1000, Detokenizer(names, params.skip_special_tokens))
    text, ids = "", []
    for piece in pieces:
        shown = checker.push(piece)
        text, ids = text + shown.text, ids + shown.token_ids
        if shown.finish_reason is not None:
            return
    shown = checker.finish()
    assert text + shown.text == text_of(tokens, params.skip_special_tokens, final=True)
    assert ids + shown.token_ids == tokens


@pytest.mark.parametrize(
    ("stop", "text", "shown", "reason"),
    [
        (("abc", "b"), "xabc", "xa", "b"),
        (("abc", "bc"), "xabc", "x", "abc"),
        (("ab", "abc"), "xabc", "x", "ab"),
        (("aab",), "aaab", "a", "aab"),
        (("abac", "ba"), "abac", "a", "ba"),
    ],
)
def test_the_stop_that_completes_first_wins(
    stop: tuple[str, ...], text: str, shown: str, reason: str
) -> None:
    for pieces in ([list(text.encode())], [[b] for b in text.encode()]):
        deltas, _ = feed(SamplingParams(stop=stop), 100, pieces)
        assert "".join(d.text for d in deltas) == shown
        assert deltas[-1].stop_reason == reason


def test_a_stop_string_at_the_length_limit_is_a_stop() -> None:
    deltas, _ = feed(SamplingParams(stop=("b",)), 2, [[97, 98, 99]])
    assert deltas[-1].finish_reason == "stop" and deltas[-1].num_taken == 2


def test_tokens_after_the_end_are_not_taken() -> None:
    deltas, paired = feed(SamplingParams(), 100, [[97, EOS, 98, 99]])
    assert deltas[0].num_taken == 2 and [t for t, _ in paired] == [97, EOS]


@pytest.mark.parametrize("seed", range(4))
def test_an_engine_streams_what_it_would_have_said_at_once(seed: int) -> None:
    """With wide trees, many tokens a step: concatenated deltas against the whole law."""
    params = SamplingParams(
        temperature=1.0,
        seed=seed,
        max_tokens=60,
        stop=("12v", "\u20ac", "on", "ing"),
        skip_special_tokens=False,
        logit_bias={0xE2: 2.0, 0xF0: 2.0},
    )
    requests = [
        Request(id=str(i), prompt_token_ids=walk_text(97 + i, 9, [0, 1]), params=params)
        for i in range(4)
    ]
    free = SamplingParams(
        temperature=1.0, seed=seed, max_tokens=60, logit_bias={0xE2: 2.0, 0xF0: 2.0}
    )
    endless = run(
        new_engine(Setting()),
        [Request(id=r.id, prompt_token_ids=r.prompt_token_ids, params=free) for r in requests],
    )
    for drafter in (RandomTrees(8, seed), NgramDrafter(6, min_match=1)):
        answers = run(new_engine(Setting(flights=seed % 2), drafter), requests)
        for key, answer in answers.items():
            whole = expect(params, 60, endless[key].token_ids)
            assert answer.text == whole.text
            assert answer.token_ids == endless[key].token_ids[: whole.num_taken]
            assert (answer.finish_reason, answer.stop_reason) == (
                whole.finish_reason,
                whole.stop_reason,
            )
