"""The Ray Serve application on a real cluster of this machine: two engines with the built-in model.

`make ray` installs Ray into an environment of its own and runs this; elsewhere it is skipped.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil
import pytest

ray = pytest.importorskip("ray", reason="`make ray` has it")
serve = pytest.importorskip("ray.serve")

openai = pytest.importorskip("openai")

WAIT_SECONDS = 300
RULES = " ".join(f"Rule {i}: speak of rivers and bridges, number {i}." for i in range(12))


def settings(**more: Any) -> dict[str, Any]:
    return {
        "engine": {"threads": 1, "max_num_seqs": 8},
        "server": {"stall_seconds": 600, "drain_seconds": 2, "log_level": "warning"},
        "cpus": 0.1,
        "min_replicas": 2,
        "max_replicas": 2,
        **more,
    }


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.3)
    pytest.fail(f"{what} did not happen")


def num_running() -> int:
    """The engines that Ray counts as running."""
    deployment = serve.status().applications["eyas"].deployments["Engine"]
    return deployment.replica_states.get("RUNNING", 0)


def engine_ids() -> set[int]:
    """The ids of the running engine processes."""
    handle = serve.get_deployment_handle("Engine", "eyas")
    return {handle.process_id.remote().result(timeout_s=60) for _ in range(12)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield
    serve.shutdown()
    ray.shutdown()


@pytest.fixture(scope="module")
def url(cluster: None) -> str:
    """The address of the application with two engines."""
    from eyas.deploy.ray import app

    serve.start(http_options={"host": "127.0.0.1", "port": 8123})
    serve.run(app(settings()), name="eyas")
    return "http://127.0.0.1:8123"


@pytest.fixture
def api(url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def chat(api: Any, question: str, **fields: Any) -> Any:
    messages = [{"role": "system", "content": RULES}, {"role": "user", "content": question}]
    return api.chat.completions.create(
        **{"model": "builtin", "messages": messages, "max_tokens": 8, "temperature": 0, **fields}
    )


def test_routes_are_those_of_the_server(url: str, api: Any) -> None:
    assert [card.id for card in api.models.list().data] == ["builtin"]
    question = [{"role": "user", "content": "What is the capital of France?"}]
    for _ in range(3):
        answer = api.chat.completions.create(
            model="builtin", messages=question, extra_body={"regex": "(Paris|Amsterdam)"}
        )
        assert answer.choices[0].message.content in ("Paris", "Amsterdam")
    with pytest.raises(openai.BadRequestError) as refused:
        api.chat.completions.create(
            model="builtin", messages=question, extra_body={"regex": "(Paris|Amsterdam}"}
        )
    assert refused.value.body["docs"]
    assert httpx.post(f"{url}/v1/nothing").status_code == 404


def test_streams_say_what_answers_say(api: Any) -> None:
    whole = chat(api, "Name a random city.").choices[0]
    events = [event for event in chat(api, "Name a random city.", stream=True) if event.choices]
    text = "".join(event.choices[0].delta.content or "" for event in events)
    assert len(events) > 2 and text == whole.message.content
    assert events[-1].choices[0].finish_reason == whole.finish_reason


def test_prompts_that_begin_alike_reach_one_engine(api: Any) -> None:
    chat(api, "What is number 0?")
    for i in range(1, 7):
        usage = chat(api, f"What is number {i}?").usage
        assert usage.prompt_tokens_details.cached_tokens > usage.prompt_tokens / 2


def test_a_client_that_leaves_ends_its_request(url: str) -> None:
    body = {"prompt": "One, two,", "max_tokens": 1900, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as response:
        assert response.status_code == 200
        next(response.iter_lines())
    handle = serve.get_deployment_handle("Engine", "eyas")

    def is_idle() -> bool:
        loads = [handle.record_autoscaling_stats.remote().result() for _ in range(8)]
        return all(load["num_running"] + load["num_waiting"] == 0 for load in loads)

    wait_until(is_idle, "the end of the request")


class Load:
    """Clients that stream answers, and what they saw."""

    def __init__(self, url: str, num_clients: int = 6) -> None:
        self.seen: Counter[str] = Counter()
        self.expected: dict[str, str] = {}
        self._url = url
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(num_clients)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        with openai.OpenAI(base_url=f"{self._url}/v1", api_key="none", max_retries=0) as api:
            while not self._ends.is_set():
                outcome = self._stream(api, f"Count to five ({number})")
                with self._lock:
                    self.seen[outcome] += 1

    def _stream(self, api: Any, prompt: str) -> str:
        text, reason = "", None
        try:
            for event in api.completions.create(
                model="builtin",
                prompt=prompt,
                max_tokens=48,
                temperature=0,
                stream=True,
                timeout=120,
                extra_body={"ignore_eos": True},
            ):
                text += event.choices[0].text
                reason = event.choices[0].finish_reason or reason
        except openai.APITimeoutError:
            return "hung"
        except openai.APIError as error:  # a status, or an error event
            return f"error: {getattr(error, 'code', None)}"
        if reason is None:
            return "ended without a finish reason"
        with self._lock:
            return "complete" if self.expected.setdefault(prompt, text) == text else "other text"

    def wait_for(self, outcome: str, count: int) -> None:
        start = self.seen[outcome]
        wait_until(lambda: self.seen[outcome] >= start + count, f"{count} of {outcome!r}")

    def end(self) -> Counter[str]:
        self._ends.set()
        for thread in self._threads:
            thread.join(180)
            assert not thread.is_alive(), "a client hangs"
        return self.seen


CLEAR = {"complete", "error: answer_lost", "error: engine_restarting", "error: engine_starting"}


def test_an_engine_that_is_killed_is_replaced_and_nobody_hangs(url: str) -> None:
    """Both kinds of death: the replica with its engine, and the engine process alone."""
    load = Load(url)
    load.wait_for("complete", 12)
    before = engine_ids()
    victim = before.pop()
    os.kill(psutil.Process(victim).ppid(), signal.SIGKILL)  # the replica; its engine ends with it
    wait_until(lambda: not psutil.pid_exists(victim), "the end of the engine")
    load.wait_for("complete", 12)
    wait_until(lambda: num_running() == 2 and len(engine_ids() - before) == 1, "a new engine")
    os.kill(engine_ids().pop(), signal.SIGKILL)
    wait_until(lambda: len(engine_ids() - {None}) == 2, "another engine in its place")
    load.wait_for("complete", 12)
    seen = load.end()
    assert set(seen) <= CLEAR, seen
    assert seen["complete"] >= 36


def test_the_number_of_engines_follows_their_queues(cluster: None, url: str) -> None:
    from eyas.deploy.ray import app

    scaled = settings(
        min_replicas=1, max_replicas=2, target_requests=2, upscale_delay=1, downscale_delay=2
    )
    serve.run(app(scaled), name="eyas")
    wait_until(lambda: num_running() == 1, "one engine")
    load = Load(url, num_clients=8)
    wait_until(lambda: num_running() == 2, "a second engine")
    load.wait_for("complete", 8)
    seen = load.end()
    wait_until(lambda: num_running() == 1, "one engine again")
    assert set(seen) <= CLEAR, seen
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as api:
        assert chat(api, "Say hello.").choices[0].finish_reason
