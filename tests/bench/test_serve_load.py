"""Open loads: what is drawn, what is counted, and runs against an engine and a server."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from statistics import fmean

import pytest

from eyas_bench.load import Arrival, Load, Outcome, Queue, draw_load, percentile, summarise
from eyas_bench.serve_load import EngineLoad, run_on_engine, run_on_server, spread

from .test_synthetic import make_engine
from .test_together import run_command

LOAD = Load(10.0, 2000, 64, 32, 500)


def outcome(at: float, *deliveries: tuple[float, int], error: str | None = None) -> Outcome:
    arrival = Arrival(0, at, [1], 8)
    return Outcome(arrival, list(deliveries), deliveries[-1][0] if deliveries else at + 1, error)


def test_a_load_is_drawn_as_it_is_asked_for() -> None:
    arrivals = draw_load(LOAD)
    assert arrivals == draw_load(LOAD), "the same every time"
    gaps = [b.at - a.at for a, b in itertools.pairwise(arrivals)]
    assert min(gaps) >= 0 and fmean(gaps) == pytest.approx(0.1, rel=0.08)
    assert percentile(gaps, 0.5) == pytest.approx(0.0693, rel=0.15), "exponential"
    lengths = [len(arrival.prompt) for arrival in arrivals]
    assert min(lengths) >= 8 and max(lengths) <= LOAD.most_prompt_tokens == 256
    assert fmean(lengths) == pytest.approx(64, rel=0.1)
    assert fmean(arrival.max_tokens for arrival in arrivals) == pytest.approx(32, rel=0.1)
    assert max(max(arrival.prompt) for arrival in arrivals) < 500
    assert all(arrival.schema is None for arrival in arrivals)


def test_a_share_has_schemas_in_turn() -> None:
    load = Load(10.0, 1000, 8, 8, 500, seed=3, schemas=("a", "b"), schema_share=0.25)
    schemas = [arrival.schema for arrival in draw_load(load) if arrival.schema is not None]
    assert len(schemas) == pytest.approx(250, abs=50)
    assert schemas[:4] == ["a", "b", "a", "b"]


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0], 0.99) == 3
    values = [float(v) for v in range(1, 101)]
    assert [percentile(values, share) for share in (0, 0.5, 0.9, 0.99, 1)] == [1, 50, 90, 99, 100]


def test_times_count_from_when_a_request_was_due() -> None:
    outcomes = [
        outcome(1.0, (1.5, 1), (1.7, 2)),
        outcome(2.0, (2.1, 1), (3.1, 1), (3.3, 2)),
        outcome(3.0, error="no room"),
    ]
    found = summarise(outcomes, Queue(num_open=2, drained=1.0), 0.5, 0.2)
    assert found["num_ended_well"] == 2 and found["num_failed"] == 1
    assert found["errors"] == ["no room"]
    assert found["first_token_ms"] == {"p50": 100, "p90": 500, "p99": 500}
    assert found["inter_token_ms"] == {"p50": 100, "p99": 1000}
    assert found["gap_ms"] == {"p50": 200, "p99": 1000}
    assert found["seconds"] == 3 and found["offered_per_second"] == 1.5
    assert found["goodput_per_second"] == pytest.approx(1 / 3, abs=1e-3), "0.4 s a token is late"
    assert found["output_tokens"] == 7
    assert found["queue"]["open_at_last_arrival"] == 2
    assert set(found["kinds"]) == {"free"}


def test_nothing_but_failures_has_no_latencies() -> None:
    found = summarise([outcome(0.0, error="x")], Queue(), 1, 1)
    assert found["first_token_ms"] == {"p50": None, "p90": None, "p99": None}
    assert found["goodput_per_second"] == 0 and found["share_in_time"] == 0


def test_an_overloaded_engine_shows_its_queue() -> None:
    engine = make_engine(2, 1, 3, seqs=2)
    arrivals = draw_load(Load(2000.0, 24, 12, 12, 500))
    outcomes, queue = EngineLoad(engine, arrivals, 0.0, None).run()
    assert all(one.error is None for one in outcomes)
    assert [one.num_tokens for one in outcomes] == [a.max_tokens for a in arrivals]
    assert queue.num_open > 8 and queue.num_running is not None and queue.num_running <= 2
    assert queue.num_waiting is not None and queue.num_waiting >= queue.num_open - 2 > 0
    assert queue.drained > 0 and (queue.most_waiting or 0) >= queue.num_waiting
    firsts = [one.first_token for one in outcomes]
    assert firsts[-1] > 3 * firsts[0], "who comes last has waited"
    engine.check()
    engine.shutdown()


def test_a_request_that_cannot_be_served_is_a_failure() -> None:
    engine = make_engine(2, 1, 3, seqs=2)
    arrivals = [
        Arrival(0, 0.0, [1] * 400, 4),
        Arrival(1, 0.0, [1, 2], 4, schema='{"type": "integer"}'),
        Arrival(2, 0.0, [1, 2], 4),
    ]
    outcomes, _ = run_on_engine(engine, arrivals, 0.0)
    assert "prompt: has 400 tokens" in str(outcomes[0].error)
    assert "cannot be constrained" in str(outcomes[1].error)
    assert outcomes[2].error is None and outcomes[2].num_tokens == 4
    engine.shutdown()


def test_tokens_are_spread_over_chunks() -> None:
    assert spread([], 0) == []
    assert spread([1.0, 2.0, 3.0], 7) == [(1.0, 2), (2.0, 2), (3.0, 3)]
    assert spread([1.0, 2.0, 3.0], 2) == [(1.0, 1), (2.0, 1)]
    assert sum(count for _, count in spread([1.0, 2.0, 3.0, 4.0], 9)) == 9


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server of one model that answers with as many tokens as it is asked for, and refuses 13."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
    status, kind, text = 200, "application/json", json.dumps({"data": [{"id": "it"}]})
    if body:
        asked = json.loads(body)
        num = asked["max_tokens"]
        chunk = json.dumps({"choices": [{"text": "x"}]})
        last = json.dumps({"choices": [], "usage": {"completion_tokens": num}})
        assert asked["model"] == "it" and asked["ignore_eos"] and asked["stream"]
        kind = "text/event-stream"
        text = "".join(f"data: {each}\n\n" for each in [*[chunk] * num, last, "[DONE]"])
        if asked["seed"] == 3:
            status, text = 503, "too much"
    told = text.encode()
    writer.write(
        f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(told)}\r\n"
        f"connection: close\r\n\r\n".encode()
        + told
    )
    await writer.drain()
    writer.close()


def test_a_server_is_measured_and_its_refusals_are_failures() -> None:
    async def run() -> tuple[list[Outcome], Queue]:
        server = await asyncio.start_server(_answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            arrivals = draw_load(Load(200.0, 8, 8, 8, 100))
            return await run_on_server(f"http://127.0.0.1:{port}/v1", arrivals, 0.0)

    outcomes, _ = asyncio.run(run())
    assert "status 503" in str(outcomes[3].error)
    good = [one for one in outcomes if one.error is None]
    assert len(good) == 7
    assert all(one.num_tokens == one.arrival.max_tokens for one in good)


def test_the_command_serves_the_builtin_model_with_schemas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = {
        "type": "object",
        "properties": {"on": {"type": "boolean"}},
        "required": ["on"],
        "additionalProperties": False,
    }
    (tmp_path / "a.json").write_text(json.dumps({"schema": schema, "tests": []}))
    file = tmp_path / "out" / "result.json"
    status, out, _ = run_command(
        capsys,
        *("bench", "serve", "--rate", "10,20", "--num-requests", "12", "--prompt-tokens", "12"),
        *("--max-tokens", "12", "--schemas", str(tmp_path), "--schema-share", "0.5"),
        *("--num-slots", "4000", "--threads", "1", "--device", "cpu", "--json", "-o", str(file)),
    )
    assert status == 0
    result = json.loads(file.read_text())
    assert json.loads(out) == result
    slow, found = result["results"]
    assert (slow["rate"], slow["num_requests"], slow["num_failed"]) == (10, 6, 0)
    assert found["rate"] == 20
    assert found["num_failed"] == 0 and found["num_ended_well"] == 12
    assert set(found["kinds"]) == {"free", "schema"}
    assert found["goodput_per_second"] <= found["ended_per_second"]
    assert result["settings"]["num_schemas"] == 1 and result["machine"]["cpu"]


def test_the_command_serves_a_shape(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run_command(
        capsys,
        *("bench", "serve", "--shape", "tiny", "--dummy-weights", "--drafter", "eagle3"),
        *("--draft-steps", "2", "--draft-topk", "1", "--synthetic-acceptance", "2"),
        *("--rate", "50", "--num-requests", "6", "--prompt-tokens", "8", "--max-tokens", "8"),
        *("--threads", "1", "--device", "cpu", "--max-num-seqs", "4"),
    )
    assert status == 0
    assert "goodput" in out and "synthetic" in out and "open requests" in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--rate", "0"), "--rate: must be a number above 0, not '0'"),
        (("--rate", "4,many"), "--rate: must be a number above 0, not 'many'"),
        (("--slo-first-token-ms", "nan"), "--slo-first-token-ms: must be above 0"),
        (("--url", "http://127.0.0.1:9"), "--url: http://127.0.0.1:9 does not list its models"),
        (("--url", "x", "--shape", "tiny", "--dummy-weights"), "--url: the server has its own"),
        (("--tokenizer", "."), "--tokenizer: needs --shape"),
        (("--shape", "tiny"), "add --dummy-weights"),
        (("--shape", "tiny", "--dummy-weights", "--schemas", "."), "add --tokenizer"),
        (("--schemas", "."), "holds no .json files"),
        (("--prompt-tokens", "4000", "--threads", "1"), "--prompt-tokens: the longest prompt"),
    ],
)
def test_options_that_make_no_load_are_refused(
    arguments: tuple[str, ...],
    text: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, err = run_command(capsys, "bench", "serve", *arguments)
    assert status == 2
    assert text in err
