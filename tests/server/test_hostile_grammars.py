"""Hostile grammars, live: neighbours' streams go on undisturbed while they are refused or answered.

Four clients stream long answers without a pause. Rounds of quiet and of hostile requests take turns, so
that a noisy machine is noisy for both.

`python -m tests.server.test_hostile_grammars URL` measures a server that runs already: the middle one
of the rounds' ratios. Many requests at once are compared with as many ordinary ones: that a full batch
takes longer is no grammar's doing.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx
import jsonschema
import psutil
import pytest

from tests.server.conftest import NEEDS_CHECKPOINT

NUM_NEIGHBOURS = 4
NUM_ROUNDS = 3
LATE = "not compiled in time"
MAX_GROWTH = 450 * 2**20
"""Bytes by which the engine's memory may grow over all of it: grammars hold 256 MiB at most, and pages
of keys and values that are used for the first time come on top."""

pytestmark = [NEEDS_CHECKPOINT, pytest.mark.slow]


class Gap(NamedTuple):
    """when: a chunk came; seconds: since the one before it; num_chars: of its text."""

    when: float
    seconds: float
    num_chars: int


@dataclass
class Neighbour:
    """A client that streams the same long answer again and again. gaps: between two chunks of one
    stream; texts: of the whole answers."""

    body: dict[str, Any]
    gaps: list[Gap] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def stream(self, url: str, stop: threading.Event) -> None:
        with httpx.Client(timeout=300) as http:
            while not stop.is_set():
                text, before = "", None
                with http.stream("POST", f"{url}/v1/completions", json=self.body) as response:
                    assert response.status_code == 200
                    for line in response.iter_lines():
                        if not line.startswith("data: {"):
                            continue
                        now = time.monotonic()
                        piece = json.loads(line[6:])["choices"][0]["text"]
                        if before is not None:
                            self.gaps.append(Gap(now, now - before, len(piece)))
                        before = now
                        text += piece
                        if stop.is_set():
                            break
                    else:
                        self.texts.append(text)


def neighbours(max_tokens: int) -> list[Neighbour]:
    """Greedy and sampled ones, which go on to their length."""
    return [
        Neighbour(
            {
                "prompt": f"Tell me a long story about number {k}.",
                "max_tokens": max_tokens,
                "temperature": k / 3,
                "seed": k,
                "ignore_eos": True,
                "stream": True,
            }
        )
        for k in range(NUM_NEIGHBOURS)
    ]


@dataclass(frozen=True)
class Hostile:
    """A request's fields; `says` is in the message of its refusal. Without `says` it is answered, and
    `schema` holds where the answer is whole. may_fail: or it hits a limit on the way, and says so;
    may_be_late: or others are compiled first until its time is over."""

    name: str
    fields: dict[str, Any]
    says: str | None = None
    schema: dict[str, Any] | None = None
    max_tokens: int = 8
    may_fail: bool = False
    may_be_late: bool = False


def nested(levels: int) -> str:
    return '{"items":' * levels + "{}" + "}" * levels


def hostile(turn: int) -> Iterator[Hostile]:
    """Every input, no two turns' alike, so that none is known from before."""
    yield Hostile("unbalanced", {"regex": f"(Paris|Amsterdam{turn}}}"}, r"position 0")
    yield Hostile("after it", {"regex": f"x{turn}y"})
    yield Hostile("NUL in a pattern", {"regex": f"a{turn}\0b"}, "NUL")
    yield Hostile("NUL in a grammar", {"ebnf": f'root ::= "a{turn}\0"'}, "NUL")
    yield Hostile("NUL in a schema", {"json_schema": {"const": f"{turn}\0"}}, "NUL")
    yield Hostile("json is empty", {"structured_outputs": {"json": ""}}, "JSON")
    yield Hostile("json_schema is empty", {"json_schema": ""}, "JSON")
    yield Hostile("a right grammar", {"ebnf": f'root ::= "b{turn}"'})
    yield Hostile("a malformed one", {"ebnf": f'root ::= "b{turn}'}, "line 1")
    yield Hostile("the right one again", {"ebnf": f'root ::= "b{turn}"'})
    base = {"type": "object", "properties": {f"a{turn}": {"$ref": "#"}}, "required": [f"a{turn}"]}
    yield Hostile("recursive without base", {"json_schema": base}, "#")
    long = {"type": "string", "maxLength": 100_000 + turn}
    yield Hostile("maxLength", {"json_schema": long}, None, long, 60)
    enum = {"enum": [f"{turn}-{k}" for k in range(100_000)]}
    yield Hostile("100k enum", {"json_schema": enum}, "smaller|longer|more than|at most")
    optional = {"properties": {f"p{turn}-{k}": {"type": "integer"} for k in range(2000)}}
    yield Hostile("2000 optional", {"json_schema": {"type": "object", **optional}}, "limit|at most")
    fewer = {"properties": {f"p{turn}-{k}": {"type": "integer"} for k in range(900)}}
    fewer |= {"type": "object", "additionalProperties": False}
    yield Hostile("900 optional", {"json_schema": fewer}, None, fewer, 40)
    yield Hostile("nesting 20000", {"json_schema": nested(20_000 + turn)}, "nested|deep")
    large = {"regex": f"{turn}(.{{1,1000}}){{1,1000}}"}
    yield Hostile("a pattern of 10^6", large, max_tokens=40, may_fail=True)
    yield Hostile("stars", {"regex": f"{turn}" + "(a*)*" * 500}, may_fail=True)
    remote = {"$ref": f"https://example.com/{turn}"}
    yield Hostile("remote reference", {"json_schema": remote}, "example")
    half = {"json_schema": f'{{"const": "{turn}\\ud800"}}'}
    yield Hostile("half a pair", half, "surrogate")
    megabyte = {"type": "integer", "description": "x" * (1_000_000 + turn)}
    yield Hostile("1 MB", {"json_schema": megabyte}, "longer")
    many = {"enum": [f"{turn}-{k}" for k in range(9_000)]}
    yield Hostile("9k enum", {"json_schema": many}, None, many, 40)


def swarm(turn: int, size: int) -> list[Hostile]:
    """So many distinct schemas."""
    schemas = [
        {
            "type": "object",
            "properties": {
                f"a{turn}-{k}": {"type": "integer", "minimum": 0, "maximum": 99},
                "b": {"enum": [f"x{k}", f"y{k}"]},
            },
            "required": [f"a{turn}-{k}", "b"],
            "additionalProperties": False,
        }
        for k in range(size)
    ]
    return [
        Hostile(f"schema {k}", {"json_schema": schema}, None, schema, 40, may_be_late=True)
        for k, schema in enumerate(schemas)
    ]


def crowd(size: int) -> list[Hostile]:
    """So many ordinary requests."""
    return [Hostile("ordinary", {"ignore_eos": True}, max_tokens=24) for _ in range(size)]


def problem(http: httpx.Client, url: str, asked: Hostile) -> str | None:
    """What is wrong with the answer to a hostile request."""
    body = {"prompt": "As JSON: ", "temperature": 0, "max_tokens": asked.max_tokens}
    response = http.post(f"{url}/v1/completions", json={**body, **asked.fields})
    told = response.json()
    if asked.says is None:
        if asked.may_fail and response.status_code == 400:
            return None if "resource limit" in str(told["error"]["message"]) else str(told)[:300]
        if asked.may_be_late and response.status_code == 429:
            return LATE
        if asked.may_be_late and response.status_code == 400:
            is_late = "try again later" in str(told) or "seconds" in str(told)
            return LATE if is_late and told["error"]["param"] == "json_schema" else str(told)[:300]
        if response.status_code != 200:
            return f"{asked.name}: {response.status_code} {str(told)[:200]}"
        choice = told["choices"][0]
        if choice["finish_reason"] == "stop" and asked.schema is not None:
            jsonschema.validate(json.loads(choice["text"]), asked.schema)
        return None
    error = told.get("error") or {}
    [param, value] = next(iter(asked.fields.items()))
    if param == "structured_outputs":
        param += "." + next(iter(value))
    message = str(error.get("message"))
    is_there = str(error.get("param")) == param or str(error.get("param")).startswith(f"{param}.")
    is_clear = response.status_code == 400 and is_there and param in message
    if not (is_clear and re.search(asked.says, message) and len(message) < 1000):
        return f"{asked.name}: {response.status_code} {str(told)[:300]}"
    return None


@dataclass(frozen=True)
class Pace:
    """How a stretch of the neighbours' streams went: the middle and the 95th percentile of the gaps,
    and the seconds per character."""

    p50: float
    p95: float
    mean: float

    @classmethod
    def of(cls, gaps: list[Gap]) -> Pace:
        seconds = sorted(gap.seconds for gap in gaps)
        num_chars = sum(gap.num_chars for gap in gaps)
        return cls(
            seconds[len(seconds) // 2],
            seconds[int(0.95 * len(seconds))],
            sum(seconds) / max(1, num_chars),
        )

    def over(self, other: Pace) -> Pace:
        return Pace(self.p50 / other.p50, self.p95 / other.p95, self.mean / other.mean)

    def __str__(self) -> str:
        return f"{self.p50:.4f} {self.p95:.4f} {self.mean:.5f}"


def middle(paces: list[Pace]) -> Pace:
    columns = ([p.p50 for p in paces], [p.p95 for p in paces], [p.mean for p in paces])
    return Pace(*(statistics.median(column) for column in columns))


@dataclass(frozen=True)
class Round:
    """The neighbours' gaps: undisturbed, beside hostile requests by name, beside many ordinary requests
    at once, beside as many distinct schemas. growth: of the engine's memory so far, in bytes."""

    quiet: list[Gap]
    beside: dict[str, list[Gap]]
    crowd: list[Gap]
    swarm: list[Gap]
    growth: int


@dataclass
class Report:
    """What a run saw. seconds: from a request to its answer, by name, the longest. num_late: of many at
    once, each time, those that were refused because others were compiled first."""

    rounds: list[Round] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    num_late: list[int] = field(default_factory=list)

    @property
    def one_by_one(self) -> Pace:
        """Beside hostile requests over undisturbed."""
        return middle(
            [
                Pace.of([gap for gaps in each.beside.values() for gap in gaps]).over(
                    Pace.of(each.quiet)
                )
                for each in self.rounds
            ]
        )

    @property
    def at_once(self) -> Pace:
        """Beside many distinct schemas over as many ordinary requests."""
        return middle([Pace.of(each.swarm).over(Pace.of(each.crowd)) for each in self.rounds])

    def __str__(self) -> str:
        lines = ["p50 and p95 of the gaps in seconds, seconds per character:"]
        for each in self.rounds:
            beside = Pace.of([gap for gaps in each.beside.values() for gap in gaps])
            lines.append(
                f"undisturbed {Pace.of(each.quiet)}, beside hostile ones {beside}, beside a crowd "
                f"{Pace.of(each.crowd)}, beside distinct schemas {Pace.of(each.swarm)}, memory grew "
                f"by {each.growth / 2**20:.0f} MB"
            )
        for name, seconds in self.seconds.items():
            pairs = [
                Pace.of(each.beside[name]).over(Pace.of(each.quiet))
                for each in self.rounds
                if each.beside.get(name)
            ]
            if pairs:
                lines.append(f"{name:24} {seconds:7.3f} s, ratios {middle(pairs)}")
        lines.append(f"ratios one by one {self.one_by_one}, at once {self.at_once}")
        lines.append(f"not compiled in time: {self.num_late}")
        return "\n".join([*lines, *self.problems])


def engine_process(url: str) -> psutil.Process:
    """The child of whoever listens at this address."""
    port = httpx.URL(url).port
    for process in psutil.process_iter():
        try:
            listens = [c for c in process.net_connections("tcp") if c.status == "LISTEN"]
            children = process.children()
        except psutil.Error:
            continue
        if any(c.laddr.port == port for c in listens):
            found = [child for child in children if "eyas.engine.worker" in command_of(child)]
            assert len(found) == 1
            return found[0]
    raise AssertionError(f"nobody listens at {url}")


def command_of(process: psutil.Process) -> str:
    """Its command line; none of one that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@contextmanager
def streaming(url: str, clients: list[Neighbour]) -> Iterator[None]:
    stop = threading.Event()
    with ThreadPoolExecutor(len(clients)) as threads:
        running = [threads.submit(client.stream, url, stop) for client in clients]
        try:
            yield
        finally:
            stop.set()
        for each in running:
            each.result()


def measure(
    url: str,
    num_rounds: int = NUM_ROUNDS,
    size: int = 200,
    quiet_seconds: float = 1.5,
    max_tokens: int = 400,
) -> tuple[Report, list[Neighbour]]:
    """Quiet and hostile rounds in turn beside the neighbours. size: of a swarm and of a crowd;
    max_tokens: of a neighbour's answer."""
    report, clients = Report(), neighbours(max_tokens)
    engine = engine_process(url)

    def since(begin: float) -> list[Gap]:
        """At least one: where no stream goes on, this does not end."""
        while True:
            end = time.monotonic()
            gaps = [gap for c in clients for gap in list(c.gaps) if begin <= gap.when <= end]
            if gaps:
                return gaps
            time.sleep(0.01)

    def quiet() -> list[Gap]:
        begin = time.monotonic()
        time.sleep(quiet_seconds)
        return since(begin)

    def alone(asked: Hostile) -> list[Gap]:
        begin = time.monotonic()
        found = problem(http, url, asked)
        report.problems.extend([found] if found else [])
        seconds = time.monotonic() - begin
        report.seconds[asked.name] = max(seconds, report.seconds.get(asked.name, 0.0))
        time.sleep(0.1)  # what it set off may come after its answer
        return since(begin)

    def together(all_asked: list[Hostile]) -> list[Gap]:
        begin = time.monotonic()
        tried = list(threads.map(lambda asked: problem(http, url, asked), all_asked))
        report.problems.extend(found for found in tried if found and found != LATE)
        report.num_late.append(tried.count(LATE))
        return since(begin)

    limits = httpx.Limits(max_connections=300, max_keepalive_connections=0)
    with (
        streaming(url, clients),
        httpx.Client(timeout=300, limits=limits) as http,
        ThreadPoolExecutor(200) as threads,
    ):
        while not all(client.texts for client in clients):  # one answer each, undisturbed
            time.sleep(0.1)
        for warming in (crowd(size), swarm(num_rounds, size)):  # what memory full batches take once
            together(warming)
        before = engine.memory_info().rss
        for turn in range(num_rounds):
            calm = quiet()
            beside = {asked.name: alone(asked) for asked in hostile(turn)}
            ordinary, distinct = together(crowd(size)), together(swarm(turn, size))
            growth = engine.memory_info().rss - before
            report.rounds.append(Round(calm + quiet(), beside, ordinary, distinct, growth))
        while any(len(client.texts) < 2 for client in clients):  # one disturbed, to compare
            time.sleep(0.1)
    return report, clients


def test_neighbours_are_undisturbed(live_url: str):
    report, clients = measure(live_url, num_rounds=1, size=8, quiet_seconds=0.1, max_tokens=60)
    assert not report.problems, str(report)
    for client in clients:
        assert len(client.texts) >= 2 and len(set(client.texts)) == 1, str(report)
    # `since` has seen streams go on beside everything; how fast is not a test's matter
    assert max(each.growth for each in report.rounds) < MAX_GROWTH, str(report)


if __name__ == "__main__":
    print(measure(sys.argv[1].rstrip("/"))[0])
