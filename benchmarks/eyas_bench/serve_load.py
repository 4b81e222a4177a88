"""Run an open load against an engine in this process, or against an OpenAI-compatible server.

Promises: requests are sent at their scheduled time, independently of answers; a failed request is
counted with its reason, and the load continues. The engine is stepped by the thread that adds
requests, as in its own process; grammars are compiled concurrently.
Does not know: how a load is drawn or summarised.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec

from eyas.children import freeze_loaded
from eyas.constraint import Grammar
from eyas.core import Delta, Request, RequestError, SamplingParams
from eyas.engine.engine import Engine
from eyas.grammar import Json, OutputSpec
from eyas_bench.load import Arrival, Outcome, Queue

IDLE_SECONDS = 0.0005
"""The maximum sleep of the engine's thread, in seconds, when it has no work."""

WARM_UPS = 2
WARM_UP_TOKENS = 128
"""The longest answer of a warm-up request."""
FEW = 8
"""The number of warm-up requests on a device where nothing is prepared for each batch size."""
WARM_UP_SCHEMA = '{"type":"string"}'

OnProgress = Callable[[int, int], None]

_FAULTS = (aiohttp.ClientError, TimeoutError, RuntimeError, ValueError, LookupError)


class EngineLoad:
    """A load on an engine. on_progress: called with (arrived, ended) after steps."""

    def __init__(
        self,
        engine: Engine,
        arrivals: Sequence[Arrival],
        temperature: float,
        on_progress: OnProgress | None,
    ) -> None:
        self._engine = engine
        self._temperature = temperature
        self._on_progress = on_progress
        self._due = list(arrivals)[::-1]
        self._outcomes = {self._id(arrival): Outcome(arrival) for arrival in arrivals}
        self._compiling: list[tuple[Request, Future[Grammar]]] = []
        self._num_open = 0
        self._num_ended = 0
        self._queue = Queue(most_waiting=0)

    def run(self) -> tuple[list[Outcome], Queue]:
        """Run until the last request has ended."""
        engine, queue = self._engine, self._queue
        last = self._due[0].at if self._due else 0.0
        started = time.perf_counter()
        is_last_seen = False
        while self._due or self._num_open:
            now = time.perf_counter() - started
            while self._due and self._due[-1].at <= now:
                self._arrive(self._due.pop(), now)
            self._add_compiled(now)
            if not self._due and not is_last_seen:
                is_last_seen = True
                queue.num_open = self._num_open
                queue.num_running = len(engine.scheduler.running)
                queue.num_waiting = len(engine.scheduler.waiting) + len(self._compiling)
            waiting = len(engine.scheduler.waiting) + len(self._compiling)
            queue.most_waiting = max(queue.most_waiting or 0, waiting)
            if engine.has_work():
                deltas = engine.step()
                now = time.perf_counter() - started
                for delta in deltas:
                    self._hear(delta, now)
                if deltas and self._on_progress is not None:
                    self._on_progress(len(self._outcomes) - len(self._due), self._num_ended)
            else:
                rest = self._due[-1].at - now if self._due else IDLE_SECONDS
                time.sleep(max(0.0, min(IDLE_SECONDS, rest)))
        queue.drained = max(0.0, time.perf_counter() - started - last)
        return list(self._outcomes.values()), queue

    @staticmethod
    def _id(arrival: Arrival) -> str:
        return f"load-{arrival.number}"

    def _arrive(self, arrival: Arrival, now: float) -> None:
        output = None
        if arrival.schema is not None:
            output = OutputSpec(root=Json(arrival.schema), param="schema")
        request = Request(
            id=self._id(arrival),
            prompt_token_ids=arrival.prompt,
            params=SamplingParams(
                temperature=self._temperature,
                seed=arrival.number,
                max_tokens=arrival.max_tokens,
                ignore_eos=output is None,
            ),
            output=output,
        )
        self._num_open += 1
        try:
            self._engine.check_request(request)
            if output is None:
                self._engine.add(request)
            else:
                self._compiling.append((request, self._engine.compile(output)))
        except RequestError as error:
            self._fail(request.id, error, now)

    def _add_compiled(self, now: float) -> None:
        still = []
        for request, future in self._compiling:
            if not future.done():
                still.append((request, future))
                continue
            try:
                self._engine.add(request, future.result())
            except RequestError as error:
                self._fail(request.id, error, now)
        self._compiling = still

    def _fail(self, request_id: str, error: Exception, now: float) -> None:
        outcome = self._outcomes[request_id]
        outcome.error, outcome.ended = str(error), now
        self._num_open -= 1
        self._num_ended += 1

    def _hear(self, delta: Delta, now: float) -> None:
        outcome = self._outcomes.get(delta.request_id)
        if outcome is None:
            return
        if delta.token_ids:
            outcome.deliveries.append((now, len(delta.token_ids)))
        if delta.finish_reason is not None:
            outcome.ended = now
            if delta.finish_reason in ("error", "abort"):
                outcome.error = delta.error or delta.finish_reason
            self._num_open -= 1
            self._num_ended += 1


def warm_up(engine: Engine, arrivals: Sequence[Arrival], temperature: float) -> None:
    """Run requests like those of a load, so that its first ones are served as any others."""
    for _ in range(WARM_UPS):
        EngineLoad(engine, to_warm_up(engine, arrivals), temperature, None).run()
    freeze_loaded()  # as an engine process does


def run_on_engine(
    engine: Engine,
    arrivals: Sequence[Arrival],
    temperature: float,
    on_progress: OnProgress | None = None,
) -> tuple[list[Outcome], Queue]:
    """Run a load on an engine that is warm."""
    return EngineLoad(engine, arrivals, temperature, on_progress).run()


def to_warm_up(engine: Engine, arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Return warm-up requests: prompts of the load, all at once, with answers of many lengths.

    Steps of many batch sizes run. Their schema is not one of the load's, whose grammars are compiled
    when they are first used.
    """
    on_gpu = engine.table.device.type != "cpu"
    most = min(engine.table.num_seats if on_gpu else FEW, len(arrivals))
    with_schemas = engine.info.grammar_backend and any(each.schema for each in arrivals)
    return [
        Arrival(
            -1 - i,
            0.0,
            arrival.prompt,
            max(1, min(_spread(i, most), engine.info.max_model_len - len(arrival.prompt))),
            WARM_UP_SCHEMA if with_schemas and i % 4 == 3 else None,
        )
        for i, arrival in enumerate(arrivals[:most])
    ]


def _spread(index: int, count: int) -> int:
    """Return the length of a warm-up answer: they end one after the other."""
    return 8 + (WARM_UP_TOKENS - 8) * index // max(1, count)


async def run_on_server(
    url: str, arrivals: Sequence[Arrival], temperature: float, on_progress: OnProgress | None = None
) -> tuple[list[Outcome], Queue]:
    """Stream completions of the server's first model.

    Each chunk counts as the mean number of tokens per chunk by the usage of its answer. ValueError:
    the server does not answer.
    """
    base = url.rstrip("/").removesuffix("/v1")
    outcomes = [Outcome(arrival) for arrival in arrivals]
    queue, num_ended = Queue(), 0
    endless = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=endless
    ) as client:
        try:
            async with asyncio.timeout(30), client.get(f"{base}/v1/models") as response:
                response.raise_for_status()
                model = (await response.json())["data"][0]["id"]
        except _FAULTS as error:
            raise ValueError(f"--url: {url} does not list its models ({error})") from error
        started = time.perf_counter()

        async def one(outcome: Outcome) -> None:
            nonlocal num_ended
            try:
                await _stream(client, base, model, outcome, temperature, started)
            except _FAULTS as error:
                outcome.error = f"{type(error).__name__}: {error}"
            outcome.ended = time.perf_counter() - started
            num_ended += 1
            if on_progress is not None:
                on_progress(len(tasks), num_ended)

        tasks: list[asyncio.Task[None]] = []
        for outcome in outcomes:
            await asyncio.sleep(max(0.0, outcome.arrival.at - (time.perf_counter() - started)))
            tasks.append(asyncio.create_task(one(outcome)))
        queue.num_open = len(outcomes) - num_ended
        last = time.perf_counter()
        await asyncio.gather(*tasks)
        queue.drained = time.perf_counter() - last
    return outcomes, queue


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Chunk(msgspec.Struct):
    """What is read of a chunk of an answer."""

    choices: tuple[msgspec.Raw, ...] = ()
    usage: _Usage | None = None
    error: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


async def _stream(
    client: aiohttp.ClientSession,
    base: str,
    model: str,
    outcome: Outcome,
    temperature: float,
    started: float,
) -> None:
    times: list[float] = []
    num_tokens, is_done, rest = 0, False, b""
    body = _body(outcome.arrival, model, temperature)
    async with client.post(f"{base}/v1/completions", json=body) as response:
        if response.status != HTTPStatus.OK:
            refusal = (await response.content.read())[:300]
            raise RuntimeError(f"status {response.status}: {refusal!r}")
        async for data in response.content.iter_any():
            now = time.perf_counter() - started
            *events, rest = (rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
            for event in events:
                if not event.startswith(b"data:"):
                    continue
                text = event.removeprefix(b"data:").strip()
                if text == b"[DONE]":
                    is_done = True
                    continue
                chunk = _decode_chunk(text)
                if chunk.error is not None:
                    raise RuntimeError(str(chunk.error))
                if chunk.usage is not None:
                    num_tokens = chunk.usage.completion_tokens
                if chunk.choices:
                    times.append(now)
    if not is_done:
        raise RuntimeError("the stream ended without [DONE]")
    outcome.deliveries = spread(times, num_tokens)


def _body(arrival: Arrival, model: str, temperature: float) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "prompt": arrival.prompt,
        "max_tokens": arrival.max_tokens,
        "temperature": temperature,
        "seed": arrival.number,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if arrival.schema is None:
        return {**body, "ignore_eos": True}
    schema = {"name": "answer", "schema": json.loads(arrival.schema)}
    return {**body, "response_format": {"type": "json_schema", "json_schema": schema}}


def spread(times: Sequence[float], num_tokens: int) -> list[tuple[float, int]]:
    """Distribute the tokens of an answer over its chunks as evenly as whole numbers allow.

    Chunks without a token (the first or last chunk of an answer may have no text) are omitted.
    """
    num = len(times)
    given = [num_tokens * (i + 1) // num - num_tokens * i // num for i in range(num)]
    if num > num_tokens:
        given = [1] * num_tokens + [0] * (num - num_tokens)
    return [(at, count) for at, count in zip(times, given, strict=True) if count]
