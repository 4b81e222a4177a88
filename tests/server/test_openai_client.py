"""The real openai client finds what it expects: answers, streams, log-probabilities, errors."""

from __future__ import annotations

import openai
import pytest

from eyas.server.process.client import EngineOverloaded, EngineUnavailable
from tests.server.fakes import ANSWER, FakeClient, refusal

USER = [{"role": "user", "content": "What is the capital of France?"}]


def test_a_chat_answer_is_whole(api: openai.OpenAI, fake: FakeClient):
    answer = api.chat.completions.create(model="tiny", messages=USER, seed=7)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.refusal is None
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra["seed"] == 7
    assert answer.choices[0].logprobs is None
    request = fake.requests[-1]
    assert answer.usage.prompt_tokens == len(request.prompt_token_ids)
    assert answer.usage.completion_tokens == len(fake.tokenizer.encode_text(ANSWER))
    assert answer.usage.prompt_tokens_details.cached_tokens == 1
    shown = fake.tokenizer.decode(request.prompt_token_ids, skip_special=False)
    assert shown == (
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_chat_stream_adds_up_to_the_answer(api: openai.OpenAI, fake: FakeClient):
    chunks = list(
        api.chat.completions.create(
            model="tiny", messages=USER, stream=True, stream_options={"include_usage": True}
        )
    )
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == ANSWER
    assert all("\ufffd" not in text for text in texts)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(fake.tokenizer.encode_text(ANSWER))
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert all(chunk.usage is None for chunk in chunks[:-1])


@pytest.mark.parametrize("granularity", ["step", "token"])
def test_each_chunk_may_have_the_usage_so_far(
    api: openai.OpenAI, fake: FakeClient, granularity: str
):
    options = {"include_usage": True, "continuous_usage_stats": True}
    fields = {"stream_options": options, "stream_granularity": granularity}
    asked = {"model": "tiny", "stream": True, "extra_body": fields}
    chats = list(api.chat.completions.create(messages=USER, **asked))
    texts = list(api.completions.create(prompt=["a b", "c"], **asked))
    for chunks in (chats, texts):
        usages = [(each.usage.prompt_tokens, each.usage.completion_tokens) for each in chunks]
        assert len({num_prompt for num_prompt, _ in usages}) == 1
        assert usages == sorted(usages) and usages[0] < usages[-1] == usages[-2]
        assert chunks[0].usage.total_tokens == sum(usages[0])


def test_a_stream_has_no_usage_unless_asked(api: openai.OpenAI, fake: FakeClient):
    chunks = list(api.chat.completions.create(model="tiny", messages=USER, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices_are_told_apart(api: openai.OpenAI, fake: FakeClient, stream: bool):
    fake.answer = lambda request, index: f"choice {index}"
    texts = ["", "", ""]
    if stream:
        for chunk in api.chat.completions.create(model="tiny", messages=USER, n=3, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    else:
        answer = api.chat.completions.create(model="tiny", messages=USER, n=3)
        for choice in answer.choices:
            texts[choice.index] = choice.message.content
        assert answer.usage.prompt_tokens == len(fake.requests[-1].prompt_token_ids)
    assert texts == ["choice 0", "choice 1", "choice 2"]


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs_carry_tokens_and_bytes(api: openai.OpenAI, fake: FakeClient, stream: bool):
    options = {"model": "tiny", "messages": USER, "logprobs": True, "top_logprobs": 2}
    if stream:
        entries = [
            entry
            for chunk in api.chat.completions.create(**options, stream=True)
            for entry in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else ())
        ]
    else:
        entries = api.chat.completions.create(**options).choices[0].logprobs.content
    ids = fake.tokenizer.encode_text(ANSWER)
    assert [entry.logprob for entry in entries] == [-(i % 7) / 8 for i in ids]
    assert bytes(b for entry in entries for b in entry.bytes).decode() == ANSWER
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    assert entries[0].top_logprobs[0].token == entries[0].token


def test_openai_stream_helper_follows_the_stream(api: openai.OpenAI, fake: FakeClient):
    with api.chat.completions.stream(model="tiny", messages=USER) as stream:
        texts = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(texts) == final.choices[0].message.content == ANSWER


def test_parameters_reach_the_engine(api: openai.OpenAI, fake: FakeClient):
    api.chat.completions.create(
        model="tiny",
        messages=USER,
        temperature=0.5,
        top_p=0.9,
        frequency_penalty=0.25,
        presence_penalty=-0.25,
        logit_bias={"5": -100},
        max_completion_tokens=3,
        stop=["a", "b"],
        seed=-1,
        user="someone",
        metadata={"a": "b"},
        store=False,
        extra_body={
            "top_k": 7,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "min_tokens": 2,
            "ignore_eos": True,
            "stop_token_ids": [3],
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "cache_salt": "mine",
        },
    )
    request = fake.requests[-1]
    params = request.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 7, 0.1)
    assert (params.frequency_penalty, params.presence_penalty) == (0.25, -0.25)
    assert (params.repetition_penalty, params.min_tokens, params.max_tokens) == (1.1, 2, 3)
    assert params.logit_bias == {5: -100.0}
    assert (params.stop, params.stop_token_ids, params.seed) == (("a", "b"), (3,), -1)
    assert params.ignore_eos and params.include_stop_str_in_output
    assert not params.skip_special_tokens
    assert request.cache_salt == "mine"


def test_a_drawn_seed_is_told(api: openai.OpenAI, fake: FakeClient):
    first = api.chat.completions.create(model="tiny", messages=USER).choices[0]
    second = api.chat.completions.create(model="tiny", messages=USER).choices[0]
    assert first.model_extra["seed"] != second.model_extra["seed"]
    assert 0 <= first.model_extra["seed"] < 2**53


def test_tools_and_results_are_shown_to_the_model(api: openai.OpenAI, fake: FakeClient):
    tool = {
        "type": "function",
        "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}},
    }
    messages = [
        *USER,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    api.chat.completions.create(model="tiny", messages=messages, tools=[tool], tool_choice="auto")
    shown = fake.tokenizer.decode(fake.requests[-1].prompt_token_ids, skip_special=False)
    assert '{"type": "function", "function": {"name": "get_weather", "parameters"' in shown
    assert '"arguments": {"city": "Paris"}}\n</tool_call>' in shown
    assert "<tool_response>\nsunny\n</tool_response>" in shown
    api.chat.completions.create(model="tiny", messages=USER, tools=[tool], tool_choice="none")
    shown = fake.tokenizer.decode(fake.requests[-1].prompt_token_ids, skip_special=False)
    assert "get_weather" not in shown


def test_an_answer_of_the_client_goes_back_as_it_is(api: openai.OpenAI, fake: FakeClient):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    fake.answer = lambda request, index: '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    said = api.chat.completions.create(model="tiny", messages=USER, tools=[tool]).choices[0].message
    assert said.tool_calls is not None
    result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "sunny"}
    as_sent = {"annotations": [], "audio": None, "function_call": None, "refusal": None}
    for message in (said, said.model_dump(), {**said.model_dump(), **as_sent, "refusal": ""}):
        messages = [*USER, message, result]
        api.chat.completions.create(model="tiny", messages=messages, tools=[tool])
        shown = fake.tokenizer.decode(fake.requests[-1].prompt_token_ids, skip_special=False)
        assert '{"name": "f", "arguments": {}}\n</tool_call>' in shown
        assert "annotations" not in shown and "sunny" in shown
    for field in ({"annotations": [{}]}, {"audio": {"id": "x"}}, {"function_call": {}}):
        messages = [*USER, {"role": "assistant", "content": "x", **field}]
        with pytest.raises(openai.BadRequestError) as refused:
            api.chat.completions.create(model="tiny", messages=messages)
        assert refused.value.param == f"messages[1].{next(iter(field))}"


def test_an_unknown_field_that_is_null_says_nothing(api: openai.OpenAI, fake: FakeClient):
    nothing = {"audio": None, "verbosity": None, "functions": None, "whatever": None}
    api.chat.completions.create(model="tiny", messages=USER, extra_body=nothing)
    with pytest.raises(openai.BadRequestError) as refused:
        api.chat.completions.create(model="tiny", messages=USER, extra_body={"verbosity": "much"})
    assert refused.value.param == "verbosity"


def test_a_refusal_of_the_assistants_reads_as_text(api: openai.OpenAI, fake: FakeClient):
    part = {"type": "refusal", "refusal": "I will not."}
    messages = [*USER, {"role": "assistant", "content": [part]}, *USER]
    api.chat.completions.create(model="tiny", messages=messages)
    shown = fake.tokenizer.decode(fake.requests[-1].prompt_token_ids, skip_special=False)
    assert "<|im_start|>assistant\nI will not.<|im_end|>" in shown
    messages = [{"role": "user", "content": [part]}]
    with pytest.raises(openai.BadRequestError) as refused:
        api.chat.completions.create(model="tiny", messages=messages)
    assert refused.value.param == "messages[0].content"


def test_the_models_are_listed(api: openai.OpenAI, fake: FakeClient):
    assert [model.id for model in api.models.list()] == ["tiny"]
    assert api.models.retrieve("tiny").model_extra["max_model_len"] == 512
    with pytest.raises(openai.NotFoundError):
        api.models.retrieve("large")


def test_errors_are_the_exceptions_of_the_client(api: openai.OpenAI, fake: FakeClient):
    with pytest.raises(openai.NotFoundError) as missing:
        api.chat.completions.create(model="other", messages=USER)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        api.chat.completions.create(model="tiny", messages=USER, temperature=-1)
    assert bad.value.param == "temperature"
    long = [{"role": "user", "content": "word " * 2000}]
    with pytest.raises(openai.BadRequestError) as too_long:
        api.chat.completions.create(model="tiny", messages=long)
    assert too_long.value.code == "context_length_exceeded"
    assert "512" in too_long.value.message
    fake.failure = EngineOverloaded()
    with pytest.raises(openai.RateLimitError) as busy:
        api.chat.completions.create(model="tiny", messages=USER)
    assert busy.value.response.headers["retry-after"] == "1"
    fake.failure = EngineUnavailable()
    with pytest.raises(openai.InternalServerError) as gone:
        api.chat.completions.create(model="tiny", messages=USER, stream=True)
    assert gone.value.status_code == 503
    fake.failure = refusal()
    with pytest.raises(openai.BadRequestError) as refused:
        api.chat.completions.create(model="tiny", messages=USER, stream=True)
    assert refused.value.param == "stop"
    fake.failure = RuntimeError("secret detail")
    with pytest.raises(openai.InternalServerError) as broken:
        api.chat.completions.create(model="tiny", messages=USER)
    assert "secret" not in broken.value.message


def test_an_error_of_the_engine_reaches_the_client_before_and_in_the_stream(
    api: openai.OpenAI, fake: FakeClient
):
    fake.error_after = 0
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError, match="a fake error"):
            api.chat.completions.create(model="tiny", messages=USER, stream=stream)
    fake.error_after = 3
    with pytest.raises(openai.APIError, match="a fake error"):
        list(api.chat.completions.create(model="tiny", messages=USER, stream=True))
    with pytest.raises(openai.InternalServerError, match="a fake error"):
        api.chat.completions.create(model="tiny", messages=USER)


def test_what_a_request_itself_makes_impossible_is_not_tried_again(
    api: openai.OpenAI, fake: FakeClient
):
    """Clients try again after a 500; a grammar that is over a limit stays over it."""
    fake.error_after, fake.error_param = 3, "regex"
    fake.error_code = "grammar_limit_exceeded"
    with pytest.raises(openai.BadRequestError, match="a fake error") as refused:
        api.chat.completions.create(model="tiny", messages=USER)
    assert refused.value.param == "regex" and refused.value.type == "invalid_request_error"
    with pytest.raises(openai.APIError, match="a fake error") as late:
        list(api.chat.completions.create(model="tiny", messages=USER, stream=True))
    assert late.value.type == "invalid_request_error"


def test_completions_take_every_kind_of_prompt(api: openai.OpenAI, fake: FakeClient):
    ids = fake.tokenizer.encode_text("Hello")
    for prompt, expected in (
        ("Hello", [ids]),
        (["Hello", "Hello"], [ids, ids]),
        (ids, [ids]),
        ([ids, ids], [ids, ids]),
    ):
        fake.requests.clear()
        answer = api.completions.create(model="tiny", prompt=prompt, max_tokens=400, n=2)
        assert [request.prompt_token_ids for request in fake.requests] == expected
        assert [choice.index for choice in answer.choices] == list(range(2 * len(expected)))
        assert all(choice.text == ANSWER for choice in answer.choices)
        assert answer.usage.prompt_tokens == sum(map(len, expected))
        texts = [""] * len(answer.choices)
        for chunk in api.completions.create(
            model="tiny", prompt=prompt, max_tokens=400, n=2, stream=True
        ):
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert texts == [ANSWER] * len(texts)


def test_completions_stop_after_sixteen_tokens_by_default(api: openai.OpenAI, fake: FakeClient):
    answer = api.completions.create(model="tiny", prompt="Hello")
    assert answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"


def bytes_of(token: str) -> bytes:
    """Of a token in a completion's log-probabilities."""
    if not token.startswith("bytes:"):
        return token.encode()
    return bytes(int(pair, 16) for pair in token.removeprefix("bytes:").split("\\x")[1:])


def test_completion_logprobs_line_up_with_the_text(api: openai.OpenAI, fake: FakeClient):
    answer = api.completions.create(model="tiny", prompt="Hello", max_tokens=400, logprobs=2)
    logprobs = answer.choices[0].logprobs
    ids = fake.tokenizer.encode_text(ANSWER)
    assert len(logprobs.tokens) == len(logprobs.text_offset) == len(ids)
    assert logprobs.token_logprobs == [-(i % 7) / 8 for i in ids]
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert token.startswith("bytes:") or ANSWER[offset:].startswith(token)
    assert b"".join(map(bytes_of, logprobs.tokens)).decode() == ANSWER
    assert any(token.startswith("bytes:") for token in logprobs.tokens)
    for token, own, top in zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
    ):
        assert top.get(token, own) == own


def test_echo_repeats_the_prompt_and_scores_it(api: openai.OpenAI, fake: FakeClient):
    prompt = "The capital"
    for max_tokens in (0, 400):
        answer = api.completions.create(
            model="tiny", prompt=prompt, max_tokens=max_tokens, echo=True, logprobs=1, n=2
        )
        text = prompt + (ANSWER if max_tokens else "")
        for choice in answer.choices:
            assert choice.text == text
            logprobs = choice.logprobs
            assert logprobs.token_logprobs[0] is None
            assert all(value is not None for value in logprobs.token_logprobs[1:])
            for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
                assert token.startswith("bytes:") or text[offset:].startswith(token)
        assert (answer.usage.completion_tokens == 0) == (max_tokens == 0)
    chunks = api.completions.create(
        model="tiny", prompt=prompt, max_tokens=400, echo=True, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == prompt + ANSWER


def test_prompt_logprobs_come_with_the_answer(api: openai.OpenAI, fake: FakeClient):
    answer = api.chat.completions.create(
        model="tiny", messages=USER, extra_body={"prompt_logprobs": 1}
    )
    scored = answer.model_extra["prompt_logprobs"]
    ids = fake.requests[-1].prompt_token_ids
    assert scored[0] is None and len(scored) == len(ids)
    assert scored[1][str(ids[1])]["logprob"] == -(ids[1] % 7) / 8
