"""The stream law for written answers: usage and log-probabilities follow from the tokens alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eyas.core import Delta, Request, SamplingParams, TokenLogprob
from eyas.dialect import Wanted
from eyas.dialect.choose import family_dialect
from eyas.engine.stops import Shown, StopChecker
from eyas.server.chat import PreparedChat
from eyas.server.chat_format import ChatFormat
from eyas.server.completions import CompletionFormat, _LogprobWriter
from eyas.server.formats import ChoiceOutput
from eyas.server.request_models import CompletionBody
from eyas.text import Detokenizer, Tokenizer
from tests.server.conftest import NEEDS_CHECKPOINT
from tests.text import small_tokenizers as small
from tests.thorough import drawn

EOS = "<|im_end|>"
PIECES = (
    *("<think>", "</think>", "\n", "\n\n", "x\n", " ", "a", "ab", " city", "Paris", "é", "🎉"),
    *("<", "</", "think", ">", "<|im|>"),
)
STOPS = st.lists(
    st.sampled_from(
        ["\n\n\n", "\n\n", "ab", "bP", "a</", " c", "</t", "é", "city\n", "<|im|>", "yP", "s a"]
    ),
    max_size=3,
)
THOROUGH = settings(
    max_examples=drawn(100, 300),
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@cache
def tokenizer(kind: str) -> Tokenizer:
    spec = small.chatml_spec() if kind == "bytes" else small.byte_fallback(prepend="first")
    return Tokenizer(spec)


def ids_of(names: Tokenizer, pieces: Sequence[str]) -> list[int]:
    """Tokens that begin and end where the pieces do not: some are split into the bytes they spell."""
    ids: list[int] = []
    for piece in pieces:
        control = names.control_id(piece)
        ids += names.encode_text(piece, continues=True) if control is None else [control]
    return ids


def deltas_of(
    names: Tokenizer, params: SamplingParams, ids: Sequence[int], sizes: Sequence[int]
) -> list[Delta]:
    """What an engine says whose steps give so many tokens each."""
    eos = names.control_id(EOS)
    checker = StopChecker(
        params,
        frozenset() if eos is None else frozenset({eos}),
        1000,
        Detokenizer(names, params.skip_special_tokens, continues=True),
        names.control_ids,
    )
    deltas: list[Delta] = []

    def tell(shown: Shown) -> None:
        logprobs = shown.logprobs if params.logprobs is not None else None
        deltas.append(
            Delta(
                request_id="r",
                token_ids=shown.token_ids,
                text=shown.text,
                marks=shown.marks,
                logprobs=logprobs,
                finish_reason=shown.finish_reason,
                stop_reason=shown.stop_reason,
            )
        )

    at = 0
    for size in [*sizes, *[1] * len(ids)]:
        piece = list(ids[at : at + size])
        if not piece:
            break
        scored = [TokenLogprob(i, -float(at + k), []) for k, i in enumerate(piece)]
        tell(checker.push(piece, scored))
        at += size
        if deltas[-1].finish_reason is not None:
            return deltas
    tell(checker.finish())
    return deltas


def chat_format(names: Tokenizer, params: SamplingParams, *, shows: bool, streams: bool):
    request = Request(id="r", prompt_token_ids=[1], params=params, with_marks=True)
    dialect = family_dialect("qwen3", names)
    chat = PreparedChat(
        request,
        lambda: dialect.segmenter(Wanted(), [1]),
        shows_reasoning=shows,
        streams_reasoning=streams,
    )
    return ChatFormat(names, "r", "tiny", chat, True)


def streamed(answer_format: ChatFormat, deltas: Sequence[Delta]) -> dict[str, Any]:
    """What a stream adds up to: the text of each part, its log-probabilities, all of them in order, the
    usage."""
    parts: dict[str, Any] = {}
    scored: list[bytes] = []
    for delta in deltas:
        for chunk in answer_format.chunks(0, delta):
            choice = chunk["choices"][0]
            names = set(choice["delta"]) & {"content", "reasoning"}
            assert len(names) < 2
            name = names.pop() if names and choice["delta"].get("role") is None else "none"
            text, entries = parts.setdefault(name, ("", []))
            entries += [bytes(raw) for raw in (choice["logprobs"] or {}).get("content", [])]
            parts[name] = (text + (choice["delta"].get(name) or ""), entries)
            scored += [bytes(raw) for raw in (choice["logprobs"] or {}).get("content", [])]
    return {**parts, "scored": scored, "usage": answer_format.ending({})[0]["usage"]}


def cuts(num_tokens: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, 6), max_size=num_tokens)


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@THOROUGH
@given(data=st.data())
def test_any_cutting_gives_the_same_usage_and_log_probabilities(
    kind: str, data: st.DataObject
) -> None:
    names = tokenizer(kind)
    pieces = data.draw(st.lists(st.sampled_from([*PIECES, EOS]), max_size=16))
    reasoning = data.draw(st.sampled_from([[], ["<think>", "\n", "a", "\n", "</think>"]]))
    ids = ids_of(names, [*reasoning, *pieces])
    params = SamplingParams(
        stop=tuple(data.draw(STOPS)),
        include_stop_str_in_output=data.draw(st.booleans()),
        skip_special_tokens=data.draw(st.booleans()),
        logprobs=0,
    )
    how = {"shows": data.draw(st.booleans()), "streams": data.draw(st.booleans())}
    each = deltas_of(names, params, ids, [])
    expected = streamed(chat_format(names, params, **how), each)
    wide = deltas_of(names, params, ids, data.draw(cuts(len(ids))))
    assert streamed(chat_format(names, params, **how), wide) == expected
    whole = ChoiceOutput(0)
    for delta in wide:
        whole.add(delta)
    assert streamed(chat_format(names, params, **how), [whole.joined()]) == expected
    answer_format = chat_format(names, params, **how)
    response = answer_format.response([whole], {})
    assert response["usage"] == expected["usage"]
    (choice,) = map(msgspec.json.decode, response["choices"])
    scored = [msgspec.json.decode(raw) for raw in expected["scored"]]
    assert scored == choice["logprobs"]["content"]
    plain = chat_format(names, SamplingParams(stop=params.stop), **how)
    unscored = streamed(plain, wide)["usage"]
    assert unscored == expected["usage"]


def test_a_token_counts_where_its_text_stands() -> None:
    """Two tokens of reasoning, of which the second ends in what may begin a stop string."""
    names = tokenizer("bytes")
    ids = [names.control_id("<think>"), *names.encode_text("ab"), *names.encode_text("\n\n")]
    ids += [names.control_id("</think>"), *names.encode_text("Paris"), names.control_id(EOS)]
    params = SamplingParams(stop=("\n\n\n", "b\n\nx"), logprobs=0)
    for sizes in ([], [2], [3, 2], [len(ids)]):
        answer_format = chat_format(names, params, shows=True, streams=True)
        parts = streamed(answer_format, deltas_of(names, params, ids, sizes))
        place = 1 + len(names.encode_text("ab"))
        assert parts["usage"] == {"completion_tokens_details": {"reasoning_tokens": place}}
        assert parts["reasoning"][0] == "ab" and parts["content"][0] == "Paris"
        assert len(parts["reasoning"][1]) == len(names.encode_text("ab"))
        assert len(parts["content"][1]) == len(names.encode_text("Paris"))


def test_reasoning_that_is_held_back_keeps_the_order_of_its_tokens() -> None:
    """Those that show as nothing between it and the answer too."""
    names = tokenizer("bytes")
    ids = ids_of(names, ["<think>", "a", "\n", "</think>", "\n", "Paris", EOS])
    params = SamplingParams(stop=("\n\n\n",), logprobs=0)
    for sizes in ([], [2], [3, 2], [len(ids)]):
        answer_format = chat_format(names, params, shows=True, streams=False)
        parts = streamed(answer_format, deltas_of(names, params, ids, sizes))
        assert parts["reasoning"][0] == "a" and len(parts["reasoning"][1]) == 1
        logprobs = [msgspec.json.decode(raw)["logprob"] for raw in parts["scored"]]
        assert logprobs == [-float(k) for k in range(len(ids))]


def test_offsets_of_tokens_are_places_in_the_text() -> None:
    """Of a tokenizer that leaves out the first space of a text that nothing precedes."""
    names = tokenizer("pieces")
    ids = names.encode_text(" city, please", continues=True)
    body = CompletionBody(prompt="x", logprobs=0, max_tokens=50)
    params = SamplingParams(logprobs=0, max_tokens=50)
    request = Request(id="r", prompt_token_ids=[1], params=params)
    deltas = deltas_of(names, params, ids, [])
    choice = ChoiceOutput(0)
    for delta in deltas:
        choice.add(delta)
    answer_format = CompletionFormat(names, "r", "tiny", [request], body)
    written = answer_format._choice(choice, [choice])
    assert written["text"] == " city, please"
    lengths = [len(names.decode([i], continues=True)) for i in ids]
    assert written["logprobs"]["text_offset"] == [sum(lengths[:k]) for k in range(len(ids))]


@pytest.mark.parametrize("text", ["a日b", "日本", "é🎉x"])
def test_what_is_left_of_a_character_stands_before_the_next_token(text: str) -> None:
    names = tokenizer("bytes")
    whole = names.encode_text(text)
    params = SamplingParams(logprobs=0)
    for left_out in range(len(whole)):  # the rest of a character becomes U+FFFD
        ids = [token for place, token in enumerate(whole) if place != left_out]
        writer = _LogprobWriter(names, params, offset=0, continues=True)
        entries = [TokenLogprob(token, -1.0, []) for token in ids]
        written = writer.write(entries)
        assert written is not None
        shown = names.decode(ids, continues=True)
        for token, place in zip(written["tokens"], written["text_offset"], strict=True):
            if not token.startswith("bytes:"):
                assert shown[place : place + len(token)] == token, (ids, written)


@NEEDS_CHECKPOINT
@pytest.mark.parametrize("num_top", [0, 1, 3])
def test_the_likeliest_tokens_of_a_text_hold_the_chosen_one(
    live_api: openai.OpenAI, num_top: int
) -> None:
    """Also where it is none of them, as at OpenAI, and those of an echoed prompt."""
    answer = live_api.completions.create(
        model="builtin",
        prompt="The capital of France is",
        temperature=2,
        seed=7,
        logprobs=num_top,
        max_tokens=20,
        echo=True,
        extra_body={"ignore_eos": True},
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens and logprobs.top_logprobs
    assert logprobs.token_logprobs is not None
    others = 0
    for token, logprob, top in zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
    ):
        if logprob is not None:
            assert top[token] == logprob
            assert num_top <= len(top) <= num_top + 1
            others += len(top) > num_top
    assert others > 0


THINK = {"enable_thinking": True}
QUESTION = [{"role": "user", "content": "Who are you?"}]


@NEEDS_CHECKPOINT
@pytest.mark.parametrize("stop", [["\n\n\n"], ["\n\n"], ["\n<"], ["\n\nz", "x"], None])
def test_a_live_stream_counts_as_the_whole_answer_does(
    live_api: openai.OpenAI, stop: list[str] | None
) -> None:
    fields: dict[str, Any] = {
        "model": "builtin",
        "messages": QUESTION,
        "temperature": 0,
        "max_tokens": 60,
        "stop": stop,
        "logprobs": True,
        "extra_body": {"chat_template_kwargs": THINK},
    }
    whole = live_api.chat.completions.create(**fields)
    parts: dict[str, list[str]] = {"reasoning": [], "content": [], "none": []}
    usage = None
    for chunk in live_api.chat.completions.create(
        **fields, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            said = choice.delta.model_dump(exclude_none=True)
            kind = next((name for name in ("reasoning", "content") if said.get(name)), "none")
            scored = choice.logprobs.content if choice.logprobs else []
            parts[kind] += [entry.token for entry in scored]
    assert usage is not None and usage.completion_tokens == whole.usage.completion_tokens
    assert usage.completion_tokens_details == whole.usage.completion_tokens_details
    scored = [entry.token for entry in whole.choices[0].logprobs.content]
    assert len(scored) == whole.usage.completion_tokens == sum(map(len, parts.values()))
    message = whole.choices[0].message.model_dump()
    assert "".join(parts["content"]).strip() == (message["content"] or "").strip()
