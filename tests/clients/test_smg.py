"""smg: a router in front of two servers, or a prefill and a decode server: streams, errors, affinity.

SMG finds out by itself what the servers are: it reads /v1/models, /server_info, /model_info and
/v1/loads.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

openai = pytest.importorskip("openai")
pytest.importorskip("smg")

SMG = Path(sys.executable).with_name("smg")
START_SECONDS = 120
RULES = " ".join(f"Rule {i}: speak of rivers and bridges, number {i}." for i in range(10))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


@contextmanager
def routing(*servers: str) -> Iterator[str]:
    """The address of a router that has registered both of its servers. servers: the options that name
    them."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        *(str(SMG), "launch", "--host", "127.0.0.1", "--port", url.rpartition(":")[2]),
        *("--policy", "cache_aware", "--log-level", "error", "--prometheus-port", str(free_port())),
        *("--health-check-endpoint", "/ready", *servers),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert process.poll() is None, "the router has ended"
            try:
                workers = get(f"{url}/workers")["workers"]
            except (urllib.error.URLError, TimeoutError):
                workers = []
            if sum(worker["is_healthy"] for worker in workers) == 2:
                break
            time.sleep(0.2)
        else:
            pytest.fail("the router has not registered both servers")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def router_url(server_urls: list[str]) -> Iterator[str]:
    """The address of a router in front of two servers."""
    with routing("--worker-urls", *server_urls) as url:
        yield url


@pytest.fixture(scope="module")
def pair_url(pair: tuple[str, str, str]) -> Iterator[str]:
    """The address of a router in front of a prefill and a decode server."""
    prefill, port, decode = pair
    with routing("--pd-disaggregation", "--prefill", prefill, port, "--decode", decode) as url:
        yield url


@pytest.fixture
def api(router_url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{router_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(api: Any, model: str, question: str, **fields: Any) -> Any:
    messages = [{"role": "system", "content": RULES}, {"role": "user", "content": question}]
    return api.chat.completions.create(
        model=model, messages=messages, max_tokens=8, temperature=0, **fields
    )


def num_prompt_tokens(server_url: str) -> int:
    """The prompts' tokens that a server has looked up in its cache."""
    with urllib.request.urlopen(f"{server_url}/metrics", timeout=30) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("eyas_prefix_cache_queries_total"):
                return int(float(line.rpartition(" ")[2]))
    raise AssertionError("the counter is missing")


def test_it_learns_what_the_servers_are(router_url: str, model: str) -> None:
    assert [card["id"] for card in get(f"{router_url}/v1/models")["data"]] == [model]
    for worker in get(f"{router_url}/workers")["workers"]:
        assert worker["model_id"] == model and worker["labels"]["max_running_requests"]
        assert worker["models"][0]["context_length"] > 0


def test_output_constraints_pass_through(api: Any, model: str) -> None:
    for _ in range(4):
        answer = api.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            extra_body={"regex": "(Paris|Amsterdam)"},
        )
        assert answer.choices[0].message.content in ("Paris", "Amsterdam")
    with pytest.raises(openai.BadRequestError, match=r"regex|pattern"):
        api.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            extra_body={"regex": "(Paris|Amsterdam}"},
        )


def test_streams_are_those_of_the_servers(api: Any, model: str, server_urls: list[str]) -> None:
    question = "Name a random city."
    texts = []
    for url in server_urls:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as direct:
            texts.append(chat(direct, model, question).choices[0].message)
    events = list(chat(api, model, question, stream=True))
    content = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert texts[0].content == texts[1].content == content
    assert [event.choices[0].finish_reason for event in events if event.choices][-1] is not None


def test_prompts_that_begin_alike_reach_one_server(
    api: Any, model: str, server_urls: list[str]
) -> None:
    chat(api, model, "What is number 0?")
    before = [num_prompt_tokens(url) for url in server_urls]
    shares, total = [], 0
    for i in range(1, 7):
        usage = chat(api, model, f"What is number {i}?").usage
        shares.append(usage.prompt_tokens_details.cached_tokens / usage.prompt_tokens)
        total += usage.prompt_tokens - 1  # the last token is not looked up
    assert min(shares) > 0.5, shares
    asked = [0, 0]
    while sum(asked) < total:  # the counters are those of the last heartbeat
        time.sleep(0.1)
        asked = [num_prompt_tokens(url) - old for url, old in zip(server_urls, before, strict=True)]
    assert min(asked) == 0


def test_a_pair_answers_as_one_server(
    pair_url: str, pair: tuple[str, str, str], server_url: str, model: str
) -> None:
    before = num_prompt_tokens(pair[0])
    shown: list[list[Any]] = []
    for url in (server_url, pair_url):
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as api:
            question = f"Name a random city, please. {RULES[:99]}"
            answer = chat(api, model, question, seed=5, n=2)
            constrained = chat(api, model, question, seed=5, extra_body={"regex": "Oslo, [a-z]{4}"})
            events = list(chat(api, model, question, seed=5, stream=True))
            text = "".join(e.choices[0].delta.content or "" for e in events if e.choices)
            completion = api.completions.create(
                model=model, prompt=["The Rhine", "A city:"], max_tokens=8, seed=2
            )
            choices = [*answer.choices, *constrained.choices, *completion.choices]
            shown.append([text, *(choice.model_dump() for choice in choices)])
            with pytest.raises(openai.BadRequestError, match="regex"):
                chat(api, model, question, extra_body={"regex": "(Paris|Oslo"})
    assert shown[0] == shown[1]
    while num_prompt_tokens(pair[0]) == before:  # the counters are those of the last heartbeat
        time.sleep(0.1)
