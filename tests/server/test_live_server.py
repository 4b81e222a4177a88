"""The API law, live: the built-in model behind `eyas serve`, talked to with the openai client."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

import eyas.text
from eyas import LLM, SamplingParams
from tests.server.conftest import CHECKPOINT, NEEDS_CHECKPOINT

USER = [{"role": "user", "content": "What is the capital of France?"}]

pytestmark = NEEDS_CHECKPOINT


@pytest.fixture(scope="module")
def offline() -> Iterator[LLM]:
    with LLM("builtin") as llm:
        yield llm


@pytest.fixture
def api(live_api: openai.OpenAI) -> openai.OpenAI:
    return live_api


@pytest.fixture
def url(live_url: str) -> str:
    return live_url


def streamed(api: openai.OpenAI, **fields: object) -> str:
    chunks = api.chat.completions.create(model="builtin", stream=True, **fields)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def whole(api: openai.OpenAI, **fields: object) -> list[str]:
    answer = api.chat.completions.create(model="builtin", **fields)
    return [choice.message.content for choice in answer.choices]


@pytest.mark.parametrize("temperature", [0, 0.7, 1.3])
def test_a_stream_is_the_whole_answer_and_the_offline_one(
    api: openai.OpenAI, offline: LLM, temperature: float
):
    fields = {"temperature": temperature, "top_p": 0.95, "seed": 11, "max_tokens": 40}
    texts = whole(api, messages=USER, **fields)
    assert streamed(api, messages=USER, **fields) == texts[0]
    assert offline.chat(USER, SamplingParams(**fields))[0].text == texts[0]


def test_choices_differ_and_the_first_is_the_only_one(api: openai.OpenAI):
    fields = {"messages": USER, "temperature": 1.5, "seed": 3, "max_tokens": 30}
    three = whole(api, n=3, extra_body={"ignore_eos": True}, **fields)
    assert len(set(three)) == 3
    assert whole(api, n=1, extra_body={"ignore_eos": True}, **fields) == three[:1]


def test_a_stop_string_is_never_shown(api: openai.OpenAI):
    fields = {"messages": USER, "temperature": 0, "max_tokens": 40}
    full = whole(api, **fields)[0]
    stop = full[len(full) // 2 :][:3]
    assert whole(api, stop=[stop], **fields)[0] == full[: full.index(stop)]
    assert streamed(api, stop=[stop], **fields) == full[: full.index(stop)]
    kept = whole(api, stop=stop, extra_body={"include_stop_str_in_output": True}, **fields)
    assert kept[0] == full[: full.index(stop)] + stop


def test_logprobs_are_of_the_tokens_that_were_chosen(api: openai.OpenAI):
    fields = {"model": "builtin", "messages": USER, "temperature": 0, "max_tokens": 20}
    answer = api.chat.completions.create(**fields, logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    text = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert text.startswith(answer.choices[0].message.content)
    for entry in entries:
        assert entry.top_logprobs[0].token == entry.token
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob, abs=1e-6)


def test_echo_scores_the_prompt(api: openai.OpenAI):
    answer = api.completions.create(
        model="builtin", prompt="The capital of France", echo=True, logprobs=1, max_tokens=0
    )
    assert answer.choices[0].text == "The capital of France"
    scored = answer.choices[0].logprobs.token_logprobs
    assert scored[0] is None and all(value <= 0 for value in scored[1:]) and len(scored) > 1


def test_echo_scores_a_prompt_that_fills_the_context(url: str):
    room = httpx.get(f"{url}/v1/models").json()["data"][0]["max_model_len"]
    body = {"prompt": [300 + k % 50 for k in range(room)], "echo": True, "max_tokens": 0}
    for fields in ({}, {"logprobs": 1}):
        answer = httpx.post(f"{url}/v1/completions", json={**body, **fields}, timeout=300).json()
        assert answer["usage"] == {
            **answer["usage"],
            "prompt_tokens": room,
            "completion_tokens": 0,
            "total_tokens": room,
        }
        assert answer["choices"][0]["finish_reason"] == "length"
    assert len(answer["choices"][0]["logprobs"]["token_logprobs"]) == room
    longer = {**body, "prompt": [*body["prompt"], 300]}
    assert httpx.post(f"{url}/v1/completions", json=longer).status_code == 400


def test_many_clients_at_once_get_what_each_gets_alone(api: openai.OpenAI):
    requests = [
        {
            "messages": [{"role": "user", "content": f"Specify a random city, number {k}."}],
            "temperature": (k % 3) / 2,
            "seed": k,
            "max_tokens": 8 + k,
        }
        for k in range(12)
    ]
    alone = [whole(api, **request)[0] for request in requests]
    with ThreadPoolExecutor(12) as threads:
        together = list(threads.map(lambda request: streamed(api, **request), requests))
    assert together == alone


def test_a_client_that_leaves_frees_its_place(api: openai.OpenAI, url: str):
    stream = api.chat.completions.create(
        model="builtin",
        messages=USER,
        max_tokens=1500,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    stream.close()
    text = ""
    while not re.search(r'^eyas_num_requests_running\{model_name="builtin"\} 0.0$', text, re.M):
        time.sleep(0.1)
        text = httpx.get(f"{url}/metrics").text
    assert 'eyas_kv_cache_usage_perc{model_name="builtin"} 0.0' in text


def test_a_prompt_beyond_the_context_is_refused(api: openai.OpenAI):
    with pytest.raises(openai.BadRequestError) as refused:
        whole(api, messages=[{"role": "user", "content": "long words " * 2000}])
    assert refused.value.code == "context_length_exceeded"


def test_control_tokens_in_any_role_are_text(url: str):
    def count(content: str) -> int:
        messages = [{"role": role, "content": content} for role in ("system", "user", "assistant")]
        messages += [{"role": "tool", "content": content}, {"role": "user", "content": content}]
        found = httpx.post(f"{url}/tokenize", json={"messages": messages}).json()
        tokenizer = eyas.text.Tokenizer.from_directory(CHECKPOINT.parent)
        return sum(token in tokenizer.control_ids for token in found["tokens"])

    tokenizer = eyas.text.Tokenizer.from_directory(CHECKPOINT.parent)
    harmless = count("0 0")
    for token in tokenizer.control_tokens:
        assert count(f"x {token.text} y") == harmless, token.text
