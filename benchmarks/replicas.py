"""Two `eyas serve` behind SMG, a router for language models: prefix hits, and servers that die.

`python benchmarks/replicas.py affinity --smg PATH` prints which share of the prompts' tokens was
cached, for one server and for two behind several policies. `... kills --smg PATH --kills 20` kills one
of the two while clients stream, starts it again, and counts what the clients saw. PATH is the command
`smg` of an environment with SMG: .venv-clients/smg/bin/smg after `make clients CLIENTS=smg`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import openai

from eyas.verify.machine import describe_run, write_result

SERVE = (sys.executable, "-c", "from eyas.cli import main; main()", "serve", "--threads", "1")
OPTIONS = ("--stall-timeout", "300", "--log-level", "warning")
HEALTH = (
    *("--health-check-endpoint", "/ready", "--health-check-interval-secs", "1"),
    *("--health-failure-threshold", "1", "--health-success-threshold", "1"),
)
START_SECONDS, ANSWER_SECONDS = 120, 300
SESSION = "x-session-id"
TOPICS = ("rivers", "bridges", "birds", "cities", "trains", "maps", "seas", "trees")
TURNS = ("What is the capital of France?", "Name a random city.", "Count to five.", "Say hello.")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the process for {url} has ended")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.1)
    raise RuntimeError(f"{url} does not answer")


class EyasServer:
    """One `eyas serve` of the built-in model, which can be killed and started again at its port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([*SERVE, *OPTIONS, "--port", str(self.port)])

    def wait(self) -> None:
        wait_for(f"{self.url}/ready", self.process)

    def kill(self) -> None:
        """Kill the HTTP process; its engine process ends by itself."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()

    def flush(self) -> None:
        request = urllib.request.Request(f"{self.url}/flush_cache", method="POST")
        with urllib.request.urlopen(request, timeout=30):
            pass


@contextmanager
def servers(count: int) -> Iterator[list[EyasServer]]:
    with ExitStack() as stack:
        started: list[EyasServer] = []
        for _ in range(count):
            server = EyasServer()
            stack.callback(server.close)
            started.append(server)
        for server in started:
            server.wait()
        yield started


@contextmanager
def router(smg: str, urls: Sequence[str], *options: str) -> Iterator[str]:
    """Run SMG in front of these servers. Yields its address once it has registered all."""
    port = free_port()
    command = [
        *(smg, "launch", "--host", "127.0.0.1", "--port", str(port), "--log-level", "error"),
        *("--prometheus-port", str(free_port()), "--worker-urls", *urls, *HEALTH, *options),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/readiness", process)
        while sum(worker["is_healthy"] for worker in workers(url)) < len(urls):
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def workers(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/workers", timeout=30) as answer:
        return json.load(answer)["workers"]


def conversation(session: int, turn: int) -> list[Any]:
    """The messages up to a turn. Two sessions have one system prompt, of some 120 tokens."""
    topic = TOPICS[session // 2]
    rules = " ".join(f"Rule {i}: speak of {topic} number {i}." for i in range(12))
    messages = [{"role": "system", "content": rules}]
    for i in range(turn + 1):
        question = f"{TURNS[(session + i) % len(TURNS)]} ({session})"
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "Yes."},
        ]
    return messages[:-1]


async def hit_share(url: str, sessions: int, turns: int) -> float:
    """Return the share of the prompts' tokens that were cached, over conversations that take turns, two
    requests at a time."""
    cached = total = 0
    limit = asyncio.Semaphore(2)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

        async def ask(session: int, turn: int) -> None:
            nonlocal cached, total
            async with limit:
                answer = await client.chat.completions.create(
                    model="builtin",
                    messages=conversation(session, turn),
                    max_tokens=4,
                    temperature=0,
                    extra_headers={SESSION: f"session-{session}"},
                )
            usage = answer.usage
            assert usage is not None and usage.prompt_tokens_details is not None
            cached += usage.prompt_tokens_details.cached_tokens or 0
            total += usage.prompt_tokens

        for turn in range(turns):
            await asyncio.gather(*(ask(session, turn) for session in range(sessions)))
    return cached / total


def affinity(smg: str, sessions: int, turns: int) -> dict[str, Any]:
    """Return the share of cached tokens of prompts, by what stands before the servers."""
    sticky = ("--routing-key-override", "--routing-key-headers", SESSION)
    cases = {
        "cache_aware": ("--policy", "cache_aware"),
        "cache_aware, sticky sessions": ("--policy", "cache_aware", *sticky),
        "round_robin": ("--policy", "round_robin"),
        "round_robin, sticky sessions": ("--policy", "round_robin", *sticky),
    }
    with servers(2) as pair:
        shares = {"one server": asyncio.run(hit_share(pair[0].url, sessions, turns))}
        for name, options in cases.items():
            for server in pair:
                server.flush()
            with router(smg, [server.url for server in pair], *options) as url:
                shares[name] = asyncio.run(hit_share(url, sessions, turns))
    return {name: round(share, 3) for name, share in shares.items()}


async def stream(client: openai.AsyncOpenAI, session: int, expected: dict[int, str]) -> str:
    """Stream one answer and return what the client saw."""
    text, finished = "", False
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            events = await client.chat.completions.create(
                model="builtin",
                messages=conversation(session, 0),
                max_tokens=48,
                temperature=0,
                stream=True,
            )
            async for event in events:
                for choice in event.choices:
                    delta = choice.delta
                    text += delta.content or getattr(delta, "reasoning_content", None) or ""
                    finished = finished or choice.finish_reason is not None
    except TimeoutError:
        return "hung"
    except openai.APIStatusError as error:
        return f"status {error.status_code} before the first token"
    except (openai.APIError, Exception) as error:  # httpx's own errors pass through a stream
        place = "after" if text else "before"
        return f"{type(error).__name__} {place} the first token"
    if not finished:
        return "ended without a finish reason"
    if expected.setdefault(session, text) != text:
        return "other text"
    return "complete"


async def load(url: str, num_clients: int, ends: asyncio.Event) -> dict[str, Any]:
    """Stream answers until told to end. Returns how often clients saw what, and the longest times."""
    seen: Counter[str] = Counter()
    slowest: dict[str, float] = {}
    expected: dict[int, str] = {}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

        async def one(number: int) -> None:
            session = number
            while not ends.is_set():
                started = time.monotonic()
                outcome = await stream(client, session % (2 * len(TOPICS)), expected)
                seconds = time.monotonic() - started
                seen[outcome] += 1
                slowest[outcome] = max(slowest.get(outcome, 0.0), seconds)
                session += num_clients
                if outcome != "complete":
                    await asyncio.sleep(0.05)

        await asyncio.gather(*(one(number) for number in range(num_clients)))
    return {
        outcome: {"answers": count, "slowest_seconds": round(slowest[outcome], 1)}
        for outcome, count in seen.most_common()
    }


async def load_with_kills(
    url: str,
    num_clients: int,
    count: int,
    kill: Callable[[int], None],
    *,
    before: float = 2.0,
    after: float = 0.0,
) -> dict[str, Any]:
    """Return what clients see while something is killed `count` times, and the machine's load.

    kill: kills the i-th time, and waits for a successor.
    before: seconds before each kill. after: seconds after the last one.
    """
    ends = asyncio.Event()
    running = asyncio.create_task(load(url, num_clients, ends))
    loads: list[float] = []
    try:
        for i in range(count):
            await asyncio.sleep(before)
            loads.append(round(os.getloadavg()[0], 1))
            await asyncio.to_thread(kill, i)
            print(f"killed {i + 1} of {count}", file=sys.stderr, flush=True)
        await asyncio.sleep(after)
    finally:
        ends.set()
    return {
        "kills": count,
        "clients": num_clients,
        "load_average": {"least": min(loads), "most": max(loads)},
        "saw": await running,
    }


def report(result: dict[str, Any], output: Path | None) -> None:
    """Print a result, and write it with its command and machine if `output` is given."""
    result = describe_run([f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]) | result
    print(json.dumps(result, indent=1))
    if output is not None:
        write_result(result, output)


def replace_server(url: str, server: EyasServer) -> None:
    """Kill a server, and start it again until the router finds both healthy."""
    server.kill()
    time.sleep(1.0)
    server.start()
    server.wait()
    while sum(each["is_healthy"] for each in workers(url)) < 2:
        time.sleep(0.2)


def kills(smg: str, count: int, num_clients: int) -> dict[str, Any]:
    with servers(2) as pair:
        options = ("--policy", "cache_aware", "--cb-timeout-duration-secs", "2")
        with router(smg, [server.url for server in pair], *options) as url:
            return asyncio.run(
                load_with_kills(url, num_clients, count, lambda i: replace_server(url, pair[i % 2]))
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("affinity", "kills"))
    parser.add_argument("--smg", required=True, help="the command smg")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=15)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # end the servers first
    version = subprocess.run(
        [re.sub(r"smg$", "python", asked.smg), "-c",
         "from importlib.metadata import version; print(version('smg'))"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    if asked.what == "affinity":
        result = affinity(asked.smg, asked.sessions, asked.turns)
    else:
        result = kills(asked.smg, asked.kills, asked.clients)
    report({"smg": version, **result}, asked.output)


if __name__ == "__main__":
    main()
