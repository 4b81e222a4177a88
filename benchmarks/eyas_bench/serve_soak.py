"""Run many streaming clients against a server, and check its answers and its memory.

    python -m eyas_bench.serve_soak --clients 64 --seconds 120
    python -m eyas_bench.serve_soak --url http://127.0.0.1:8000 --pid 1234

Promises: every answer, streamed or whole, is compared with the answer to the same request alone
before the load, including usage and log-probabilities; a fraction of the clients disconnect before
the end, and a fraction of the requests is hostile and must be refused. The report is a JSON object;
the exit status is 0 only if every check passed. Does not know: how the server works.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

import h11
import psutil

from eyas.children import python_command
from eyas_bench.load import percentile
from eyas_bench.soak_requests import HOSTILE, Workload, answer_of, drawn_workloads

SAMPLE_SECONDS = 1.0
MAX_SHOWN = 5
READY_SECONDS = 120.0


@dataclass
class Report:
    """The report of a soak test.

    rss_*: bytes of the server and its engine together; growth is relative.
    """

    num_clients: int
    seconds: float = 0.0
    num_completed: int = 0
    num_vanished: int = 0
    num_whole: int = 0
    num_refused: int = 0
    num_output_tokens: int = 0
    tokens_per_second: float = 0.0
    first_event_p50: float = 0.0
    first_event_p99: float = 0.0
    rss_warm: int = 0
    rss_end: int = 0
    rss_growth: float = 0.0
    is_idle_after: bool = False
    num_mismatches: int = 0
    num_errors: int = 0
    mismatches: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def holds(self, max_growth: float) -> bool:
        """Whether all answers were complete, memory was constant, and the server is idle."""
        return (
            self.num_completed > 0
            and self.num_errors == self.num_mismatches == 0
            and self.rss_growth <= max_growth
            and self.is_idle_after
        )


class StatusError(RuntimeError):
    """A response with a status other than 200."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}: {body[:300]!r}")
        self.status = status


class Connection:
    """An HTTP/1.1 exchange; a client disconnects by closing it early."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=16 * 1024 * 1024)

    async def __aenter__(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def exchange(self, method: str, path: str, body: bytes = b"") -> AsyncIterator[bytes]:
        """Yield the pieces of the response body. StatusError: the status is not 200."""
        headers = [("host", self._host), ("connection", "close")]
        headers.append(("content-length", str(len(body))))
        for event in (
            h11.Request(method=method, target=path, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()
        status = 0
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(65536))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                if status != 200:
                    raise StatusError(status, bytes(event.data))
                yield bytes(event.data)
            elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
                return


async def fetch(url: str, method: str, path: str, body: bytes = b"") -> bytes:
    async with Connection(url) as connection:
        return b"".join([piece async for piece in connection.exchange(method, path, body)])


async def events(url: str, workload: Workload) -> AsyncIterator[dict[str, Any]]:
    """Yield the streamed objects of a request.

    RuntimeError: the stream ends early or has an error.
    """
    body = json.dumps({**workload.body, "stream": True, "stream_options": {"include_usage": True}})
    rest, is_done = b"", False
    async with Connection(url) as connection:
        async for piece in connection.exchange("POST", workload.path, body.encode()):
            *lines, rest = (rest + piece).split(b"\n\n")
            for line in lines:
                data = line.removeprefix(b"data: ")
                if data == b"[DONE]":
                    is_done = True
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise RuntimeError(event["error"]["message"])
                yield event
    if not is_done:
        raise RuntimeError("the stream ended without [DONE]")


class Soak:
    """A soak test.

    vanish: fraction of streams that the client closes before the end. hostile: fraction of requests
    that must be refused. whole: fraction of answers that are not streamed.
    """

    def __init__(
        self,
        url: str,
        workloads: Sequence[Workload],
        *,
        vanish: float,
        hostile: float = 0.1,
        whole: float = 0.3,
    ) -> None:
        self._url = url
        self._workloads = workloads
        self._vanish, self._hostile, self._whole = vanish, hostile, whole
        self._expected: dict[str, Any] = {}
        self._first_events: list[float] = []

    async def learn(self) -> None:
        """Send each request alone and not streamed, for the reference answers."""
        for workload in self._workloads:
            body = json.dumps(workload.body).encode()
            whole = json.loads(await fetch(self._url, "POST", workload.path, body))
            self._expected[workload.name] = answer_of([whole])

    async def run(self, report: Report, seconds: float, process_id: int | None) -> None:
        """Run the load for `seconds`, and wait until the server is idle."""
        started = time.monotonic()
        deadline = started + seconds
        samples: list[tuple[float, int]] = []
        sampler = asyncio.create_task(_sample(process_id, started, samples))
        clients = [
            asyncio.create_task(self._client(index, deadline, report))
            for index in range(report.num_clients)
        ]
        await asyncio.gather(*clients)
        report.seconds = time.monotonic() - started
        report.tokens_per_second = report.num_output_tokens / report.seconds
        report.is_idle_after = await self._is_idle()
        sampler.cancel()
        report.first_event_p50 = percentile(self._first_events, 0.5) or 0.0
        report.first_event_p99 = percentile(self._first_events, 0.99) or 0.0
        _note_memory(report, samples, seconds)

    async def _client(self, index: int, deadline: float, report: Report) -> None:
        draw = random.Random(index)
        while time.monotonic() < deadline:
            workload = draw.choice(self._workloads)
            leaves_after = draw.randint(1, 8) if draw.random() < self._vanish else None
            kind = draw.random()
            try:
                if kind < self._hostile:
                    await self._refused(draw.choice(HOSTILE), report)
                elif kind < self._hostile + self._whole:
                    await self._at_once(workload, report)
                else:
                    await self._one(workload, leaves_after, report)
            except (RuntimeError, OSError, h11.ProtocolError, ValueError) as error:
                report.num_errors += 1
                report.errors = [*report.errors, f"{workload.name}: {error}"][:MAX_SHOWN]
                await asyncio.sleep(0.1)

    async def _one(self, workload: Workload, leaves_after: int | None, report: Report) -> None:
        seen: list[dict[str, Any]] = []
        started = time.monotonic()
        async with contextlib.aclosing(events(self._url, workload)) as stream:  # pyrefly: ignore
            async for event in stream:
                if not seen:
                    self._first_events.append(time.monotonic() - started)
                seen.append(event)
                if leaves_after is not None and len(seen) >= leaves_after:
                    report.num_vanished += 1
                    return
        self._compare(workload, seen, report)

    async def _at_once(self, workload: Workload, report: Report) -> None:
        body = json.dumps(workload.body).encode()
        whole = json.loads(await fetch(self._url, "POST", workload.path, body))
        report.num_whole += 1
        self._compare(workload, [whole], report)

    async def _refused(self, body: bytes, report: Report) -> None:
        """Send a hostile body. RuntimeError: it is not refused with a status from 400 to 499."""
        try:
            await fetch(self._url, "POST", "/v1/chat/completions", body)
        except StatusError as error:
            if not 400 <= error.status < 500:
                raise
            report.num_refused += 1
        else:
            raise RuntimeError(f"{body[:100]!r} was answered")

    def _compare(self, workload: Workload, seen: list[dict[str, Any]], report: Report) -> None:
        report.num_completed += 1
        report.num_output_tokens += seen[-1]["usage"]["completion_tokens"]
        answer, expected = answer_of(seen), self._expected[workload.name]
        if answer != expected:
            report.num_mismatches += 1
            entry = {"request": workload.name, "expected": expected, "answered": answer}
            report.mismatches = [*report.mismatches, entry][:MAX_SHOWN]

    async def _is_idle(self) -> bool:
        """Whether the engine becomes idle: no running or waiting request, and no held slot."""
        wanted = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        for _ in range(100):
            text = (await fetch(self._url, "GET", "/metrics")).decode()
            values = [re.search(rf"^eyas_{name}\{{.*\}} (\S+)$", text, re.M) for name in wanted]
            if all(value is not None and float(value[1]) == 0 for value in values):
                # The engine checks its cache after one second without work.
                await asyncio.sleep(2.5)
                await fetch(self._url, "GET", "/ready")
                return True
            await asyncio.sleep(0.1)
        return False


async def _sample(process_id: int | None, started: float, samples: list[tuple[float, int]]) -> None:
    while process_id is not None:
        with contextlib.suppress(psutil.NoSuchProcess):  # a child process may end
            total = sum(process.memory_info().rss for process in _family(process_id))
            samples.append((time.monotonic() - started, total))
        await asyncio.sleep(SAMPLE_SECONDS)


def _note_memory(report: Report, samples: list[tuple[float, int]], seconds: float) -> None:
    """Record memory: after the warm-up (second fifth of the run) and at the end (last fifth)."""
    warm = [rss for at, rss in samples if 0.2 * seconds <= at < 0.4 * seconds]
    end = [rss for at, rss in samples if 0.8 * seconds <= at]
    if warm and end:
        report.rss_warm, report.rss_end = int(statistics.median(warm)), int(statistics.median(end))
        report.rss_growth = report.rss_end / report.rss_warm - 1


def _family(process_id: int) -> list[psutil.Process]:
    process = psutil.Process(process_id)
    return [process, *process.children(recursive=True)]


async def _until_ready(url: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            await fetch(url, "GET", "/ready")
            return
        except (OSError, RuntimeError) as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{url} does not become ready: {error}") from error
            await asyncio.sleep(0.2)


async def soak(
    url: str, process_id: int | None, num_clients: int, seconds: float, vanish: float, seed: int
) -> Report:
    """Get the reference answers, run the load, and return the report."""
    await _until_ready(url)
    run = Soak(url, drawn_workloads(seed), vanish=vanish)
    await run.learn()
    report = Report(num_clients=num_clients)
    await run.run(report, seconds, process_id)
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m eyas_bench.serve_soak")
    parser.add_argument("--url", help="a server that runs; without it one is started")
    parser.add_argument("--pid", type=int, help="its process id, to watch its memory")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--vanish", type=float, default=0.2, help="share of streams left half way")
    parser.add_argument("--max-growth", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("serve", nargs="*", help="options for `eyas serve`, after --")
    given = parser.parse_args(arguments)
    server = None
    url, process_id = given.url, given.pid
    if url is None:
        port = 18_000 + random.randrange(2000)
        command = python_command("eyas", "serve", "--port", str(port), *given.serve)
        server = subprocess.Popen(command)
        url, process_id = f"http://127.0.0.1:{port}", server.pid
    try:
        report = asyncio.run(
            soak(url, process_id, given.clients, given.seconds, given.vanish, given.seed)
        )
    finally:
        if server is not None:
            server.terminate()
            server.wait(60)
    holds = report.holds(given.max_growth)
    print(json.dumps({**asdict(report), "holds": holds}, indent=2, ensure_ascii=False))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
