"""No client stops the others, in the HTTP process or in the engine's queue."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from eyas.core import GrammarError
from eyas.schemas import prepare
from eyas.schemas.prepare import LruCache
from eyas.server.http.errors import ApiError
from eyas.server.http.thread_pool import FairThreadPool
from eyas.server.options import ServerOptions
from tests.server.conftest import NEEDS_CHECKPOINT, serving
from tests.server.fakes import FakeClient, live_server
from tests.server.test_limits import CHAT, until

SLOW = {
    "type": "object",
    "properties": {"kind": {"type": "string"}, "value": {"type": "string"}},
    "allOf": [
        {
            "if": {"properties": {"kind": {"const": f"k{i:03d}"}}, "required": ["kind"]},
            "then": {"properties": {"value": {"const": f"value {i}"}}},
        }
        for i in range(120)
    ],
}


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, **fields}


def schema_hits(url: str) -> float:
    text = httpx.get(f"{url}/metrics").text
    line = next(
        each for each in text.splitlines() if each.startswith("eyas_prepared_schema_hits_t")
    )
    return float(line.rpartition(" ")[2])


def test_clients_with_slow_schemas_do_not_stop_plain_chats(directory: Path) -> None:
    """12 connections send large schemas, each time others, while chats are answered."""
    is_over = threading.Event()

    def attack(url: str, number: int) -> set[int]:
        seen = set()
        with httpx.Client(base_url=url, timeout=300) as http:
            count = 0
            while not is_over.is_set():
                schema = {**SLOW, "title": f"{number} {count}"}
                count += 1
                seen.add(http.post(CHAT, json=chat(json_schema=schema)).status_code)
        return seen

    with (
        live_server(FakeClient(directory)) as server,
        ThreadPoolExecutor(12) as threads,
    ):
        attackers = [threads.submit(attack, server.url, number) for number in range(12)]
        try:
            assert until(lambda: server.service.prepare_pool.num_waiting > 4)
            for _ in range(2):
                with httpx.Client(base_url=server.url, timeout=300) as http:
                    assert http.get("/health").status_code == 200
                    for _ in range(3):
                        response = http.post(CHAT, json=chat())
                        assert response.status_code == 200, response.text
                        # Whoever has been served since, the large ones still wait their turn.
                        assert server.service.prepare_pool.num_waiting > 0
        finally:
            is_over.set()
        assert set().union(*(each.result() for each in attackers)) <= {200, 503}


def test_a_schema_is_prepared_once(directory: Path) -> None:
    schema = {"type": "object", "properties": {"only here": {"type": "string"}}}
    wrong = {"type": "strin", "title": "only here"}
    with live_server(FakeClient(directory)) as server:
        for body, status in ((chat(json_schema=schema), 200), (chat(json_schema=wrong), 400)):
            answers = [httpx.post(server.url + CHAT, json=body) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [status] * 2
            if status == 400:
                assert answers[0].json() == answers[1].json()
            before = schema_hits(server.url)
            assert httpx.post(server.url + CHAT, json=body).status_code == status
            assert schema_hits(server.url) == before + 1


def test_a_schema_that_takes_too_long_is_its_senders_fault(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = {"type": "object", "properties": {"slow": {"type": "string"}}}
    monkeypatch.setattr("eyas.schemas.context.MAX_SECONDS", -1.0)
    with live_server(FakeClient(directory)) as server:
        answer = httpx.post(server.url + CHAT, json=chat(json_schema=schema))
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["param"] == "json_schema"
        assert "preparing the schema took more than" in error["message"]
        monkeypatch.undo()
        assert httpx.post(server.url + CHAT, json=chat(json_schema=schema)).status_code == 200


def test_a_refusal_is_kept_by_field() -> None:
    for param in ("one", "two", "one"):
        with pytest.raises(GrammarError, match=f"^{param}: ") as refused:
            prepare({"type": "wrong"}, param=param)
        assert refused.value.param == param and refused.value.fault == "invalid"


def test_a_memo_is_bounded() -> None:
    memo: LruCache[str] = LruCache(max_entries=3, max_bytes=100)
    for k in range(5):
        memo.put(bytes([k]), str(k), 10)
    assert [memo.get(bytes([k])) for k in range(5)] == [None, None, "2", "3", "4"]
    memo.put(b"large", "x", 95)
    assert len(memo) == 1 and memo.num_bytes == 95
    memo.put(b"larger", "x", 101)
    assert memo.get(b"larger") is None and memo.get(b"large") == "x"
    assert (memo.num_hits, memo.num_misses) == (4, 3)


class Blocked:
    """Workers of one thread, which is taken until `free` is called."""

    def __init__(self, timeout_seconds: float = 300, max_waiting_bytes: int = 2**30) -> None:
        self.workers = FairThreadPool(timeout_seconds, max_waiting_bytes, num_threads=1)
        self.order: list[str] = []
        self._gate = threading.Event()
        self.tasks: list[asyncio.Task[Any]] = []

    async def take(self) -> None:
        self.tasks.append(asyncio.create_task(self.workers.run(self._gate.wait, "first")))
        await asyncio.sleep(0)

    async def ask(self, name: str, client: str, size: int) -> asyncio.Task[Any]:
        task = asyncio.create_task(self.workers.run(lambda: self.order.append(name), client, size))
        self.tasks.append(task)
        await asyncio.sleep(0)
        return task

    async def free(self) -> list[Any]:
        self._gate.set()
        return await asyncio.gather(*self.tasks, return_exceptions=True)


def test_small_work_passes_large_work() -> None:
    async def run() -> list[str]:
        blocked = Blocked()
        await blocked.take()
        for k in range(5):
            await blocked.ask(f"large {k}", f"stranger {k}", 100_000)
        for k in range(3):
            await blocked.ask(f"small {k}", f"chat {k}", 200)
        await blocked.free()
        return blocked.order

    assert asyncio.run(run()) == [
        *("small 0", "small 1", "small 2"),
        *(f"large {k}" for k in range(5)),
    ]


def test_who_has_asked_for_much_waits_behind_who_has_asked_for_little() -> None:
    async def run() -> list[str]:
        blocked = Blocked()
        await blocked.take()
        for k in range(4):
            await blocked.ask(f"a{k}", "a", 10_000)
        for k in range(2):
            await blocked.ask(f"b{k}", "b", 10_000)
        await blocked.free()
        return blocked.order

    assert asyncio.run(run()) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_where_memory_is_full_the_last_in_turn_is_told_to_come_again() -> None:
    async def run() -> tuple[list[Any], list[str]]:
        blocked = Blocked(max_waiting_bytes=300_000)
        await blocked.take()
        for k in range(4):
            await blocked.ask(f"large {k}", f"stranger {k}", 100_000)
        await blocked.ask("small", "chat", 200)
        results = await blocked.free()
        return results, blocked.order

    results, order = asyncio.run(run())
    assert order == ["small", "large 0", "large 1"]
    refused = [each for each in results if isinstance(each, ApiError)]
    assert [each.status for each in refused] == [503, 503]
    assert all(each.retry_after for each in refused)


def test_waiting_too_long_is_nobodys_fault_and_frees_its_place() -> None:
    async def run() -> tuple[Any, list[str]]:
        blocked = Blocked(timeout_seconds=0.05)
        await blocked.take()
        (late,) = await asyncio.gather(
            await blocked.ask("late", "chat", 200), return_exceptions=True
        )
        assert blocked.workers.num_waiting == 0
        await blocked.free()
        blocked.tasks.clear()
        blocked.workers._timeout_seconds = 300
        await blocked.ask("next", "chat", 200)
        await blocked.free()
        return late, blocked.order

    late, order = asyncio.run(run())
    assert isinstance(late, ApiError) and late.status == 503 and late.retry_after
    assert order == ["next"]


def test_who_leaves_while_waiting_takes_no_thread_along() -> None:
    async def run() -> list[str]:
        blocked = Blocked()
        await blocked.take()
        leaving = [await blocked.ask(f"gone {k}", "a", 100) for k in range(3)]
        staying = await blocked.ask("stays", "b", 100_000)
        leaving[1].cancel()
        await blocked.free()
        assert staying.done()
        return blocked.order

    assert asyncio.run(run()) == ["gone 0", "gone 2", "stays"]


@NEEDS_CHECKPOINT
def test_many_answers_of_one_key_do_not_keep_another_from_its_seats() -> None:
    """Nine requests for 12 answers each, of which six fill the part of the queue that one key may
    have, and then one of another key."""
    many = chat(max_tokens=120, n=12, ignore_eos=True)
    limits = ("--max-waiting", "96", "--max-num-seqs", "4")
    with (
        serving("--api-key", "one", "--api-key", "two", *limits) as url,
        ThreadPoolExecutor(9) as threads,
    ):

        def ask(key: str, body: dict[str, Any]) -> int:
            head = {"authorization": f"Bearer {key}"}
            return httpx.post(url + CHAT, json=body, headers=head, timeout=500).status_code

        def num_waiting() -> float:
            text = httpx.get(f"{url}/metrics", headers={"authorization": "Bearer two"}).text
            line = next(x for x in text.splitlines() if x.startswith("eyas_num_requests_waiting{"))
            return float(line.rpartition(" ")[2])

        asked = [threads.submit(ask, "one", many) for _ in range(9)]
        assert until(lambda: num_waiting() > 36)
        assert ask("two", chat()) == 200
        assert num_waiting() > 0 and not all(each.done() for each in asked)
        statuses = [each.result() for each in asked]
        assert statuses.count(200) >= 6 and set(statuses) <= {200, 429}


def test_one_key_leaves_room_in_the_queue_for_others(directory: Path) -> None:
    options = ServerOptions(api_keys=("one", "two"), max_queued=8)
    assert options.max_queued_each == 6
    assert ServerOptions(api_keys=("one",), max_queued=8).max_queued_each == 8
    with live_server(FakeClient(directory), api_keys=("one", "two"), max_queued=8) as server:
        head = {"authorization": "Bearer one"}
        answer = httpx.post(server.url + CHAT, json=chat(n=7), headers=head)
        assert (
            answer.status_code == 400 and "at most 6 answers" in answer.json()["error"]["message"]
        )


def test_engine_requests_name_their_client(directory: Path) -> None:
    fake = FakeClient(directory)
    with live_server(fake, api_keys=("one", "two")) as server:
        for key in ("one", "two", "one"):
            head = {"authorization": f"Bearer {key}"}
            assert httpx.post(server.url + CHAT, json=chat(), headers=head).status_code == 200
    names = [request.client for request in fake.requests]
    assert names[0] == names[2] != names[1]
    assert not any(key in json.dumps(names) for key in ("one", "two"))
    fake = FakeClient(directory)
    with live_server(fake, api_keys=("one", "two")) as server:
        for spelled in ("Bearer one", "bearer one", "BEARER   one", "bEARER \t one"):
            head = {"authorization": spelled}
            assert httpx.post(server.url + CHAT, json=chat(), headers=head).status_code == 200
    assert len({(each.client, each.cache_salt) for each in fake.requests}) == 1
    fake = FakeClient(directory)
    with live_server(fake) as server:
        for _ in range(2):
            with httpx.Client(base_url=server.url) as http:
                assert [http.post(CHAT, json=chat()).status_code for _ in range(2)] == [200, 200]
    a, b, c, d = (request.client for request in fake.requests)
    assert a == b != c == d
