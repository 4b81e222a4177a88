"""Two processes, one socket: every request hears something back, whatever the engine does."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import zmq

from eyas import wire
from eyas.config import EngineConfig, ModelConfig
from eyas.core import Delta, KVHandle, Mark, Request, RequestError, SamplingParams, Usage
from eyas.grammar import OutputSpec, Regex
from eyas.server.http.codes import Code
from eyas.server.process.client import (
    EngineOverloaded,
    EngineProcess,
    EngineUnavailable,
    _DeltaBuffer,
    add_to,
)
from eyas.server.token_texts import TokenTexts, split_by_token
from tests.server.engine_info import engine_info
from tests.server.fakes import DRAFTS

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tests.server.fake_worker"]


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")


@asynccontextmanager
async def engine(*fault: str, max_queued: int = 64) -> AsyncIterator[EngineProcess]:
    client = EngineProcess(
        EngineConfig(model=ModelConfig(path="tiny")),
        max_queued=max_queued,
        log_level="error",
        command=[*COMMAND, *fault],
    )
    await client.start()
    await client.start_ended.wait()
    try:
        yield client
    finally:
        await client.close()
    assert client._process is not None and client._process.returncode is not None
    assert client._folder is not None and not Path(client._folder.path).exists()


def request(name: str, salt: str = "", **params: int) -> Request:
    params = {"max_tokens": 5, **params}
    return Request(
        id=name, prompt_token_ids=[1, 7], params=SamplingParams(**params), cache_salt=salt
    )


async def collect(client: EngineProcess, wanted: Request) -> list[Delta]:
    return [delta async for delta in client.generate(wanted)]


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 500))


def test_requests_are_answered_side_by_side():
    async def test():
        async with engine() as client:
            assert client.info == engine_info("tiny")
            found = await asyncio.gather(
                *(collect(client, request(f"r{k}", n=2)) for k in range(20))
            )
            for deltas in found:
                for index in (0, 1):
                    mine = [delta for delta in deltas if delta.index == index]
                    assert "".join(delta.text for delta in mine) == "7 8 9 10 11 "
                    assert [t for d in mine for t in d.token_ids] == [7, 8, 9, 10, 11]
                    assert mine[-1].finish_reason == "length"
                    assert mine[-1].usage.num_output_tokens == 5
            while (stats := client.health().stats).num_running or not stats.num_steps:
                await asyncio.sleep(0.02)
            assert client.health().state == "ready"

    run(test)


def test_a_refused_request_raises_and_others_go_on():
    async def test():
        async with engine() as client:
            with pytest.raises(RequestError, match="is refused") as refused:
                await collect(client, request("a", "refuse"))
            assert (refused.value.param, refused.value.code) == ("prompt", "invalid_value")
            with pytest.raises(EngineUnavailable):
                await collect(client, request("b", "bug"))
            assert len(await collect(client, request("c"))) >= 1

    run(test)


def test_a_grammar_that_cannot_be_compiled_is_a_refusal_that_names_the_field():
    async def test():
        async with engine() as client:
            constrained = request("a")
            constrained.output = OutputSpec(root=Regex("("), param="guided_regex")
            with pytest.raises(RequestError, match="is malformed") as refused:
                await collect(client, constrained)
            assert (refused.value.param, refused.value.code) == ("guided_regex", "grammar_invalid")
            assert len(await collect(client, request("b"))) >= 1

    run(test)


def test_deltas_that_a_slow_reader_gets_as_one_keep_the_places_of_control_tokens():
    first = Delta(request_id="a", text="ab<x>", token_ids=[1, 9], marks=[Mark(2, 9, 3)])
    add_to(first, Delta(request_id="a", text="c<x>", token_ids=[2, 9], marks=[Mark(1, 9, 3)]))
    assert first.text == "ab<x>c<x>"
    assert first.marks == [Mark(2, 9, 3), Mark(6, 9, 3)]


def test_closing_the_iterator_aborts_in_the_engine():
    async def test():
        async with engine() as client:
            deltas = client.generate(request("a", max_tokens=100_000))
            await anext(deltas)
            await deltas.aclose()
            while (stats := client.health().stats).num_running or not stats.num_steps:
                await asyncio.sleep(0.02)
            assert (await collect(client, request("a")))[-1].finish_reason == "length"

    run(test)


def test_a_step_that_raises_ends_its_requests_and_the_engine_goes_on():
    async def test():
        async with engine() as client:
            running = client.generate(request("b", max_tokens=100_000))
            await anext(running)
            failed = await collect(client, request("a", "raise", n=2))
            rest = [delta async for delta in running]
            for deltas, num_choices in ((failed, 2), (rest, 1)):
                ends = [delta for delta in deltas if delta.finish_reason == "error"]
                assert len(ends) == num_choices
                assert all("secret" not in delta.error for delta in ends)
            assert (await collect(client, request("c")))[-1].finish_reason == "length"

    run(test)


@pytest.mark.parametrize("fault", ["crash", "break"])
def test_when_the_engine_dies_every_request_hears_of_it(fault: str):
    async def test():
        async with engine() as client:
            found = await asyncio.gather(
                collect(client, request("a", max_tokens=5000, n=2)),
                collect(client, request("b", fault)),
            )
            for deltas in found:
                assert deltas[-1].finish_reason == "error"
                assert "secret" not in deltas[-1].error
            await client.failed.wait()
            assert client.health().state == "failed" and client.info is None
            with pytest.raises(EngineUnavailable):
                await collect(client, request("c"))

    run(test)


def test_an_engine_that_lost_something_is_found_out_when_idle():
    async def test():
        async with engine("leak") as client:
            assert await collect(client, request("a"))
            await client.failed.wait()

    run(test)


def test_an_engine_that_cannot_be_built_says_why_and_keeps_secrets():
    async def test():
        async with engine("no_model") as client:
            await client.failed.wait()
            assert client.health().reason.startswith("model.path: there is no model here")
        async with engine("bug_at_start") as client:
            await client.failed.wait()
            assert "secret" not in client.health().reason

    run(test)


def test_an_engine_that_hangs_is_killed_at_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("eyas.server.process.client.KILL_SECONDS", 0.2)

    async def test():
        async with engine() as client:
            task = asyncio.create_task(collect(client, request("a", "hang")))
            await asyncio.sleep(0.5)
            await client.close()
            assert (await task)[-1].finish_reason == "error"

    run(test)


def test_too_many_requests_are_refused_at_the_door():
    async def test():
        async with engine(max_queued=3) as client:
            long = client.generate(request("a", max_tokens=100_000, n=3))
            await anext(long)
            with pytest.raises(EngineOverloaded):
                await collect(client, request("b"))
            await long.aclose()
            assert await collect(client, request("c"))

    run(test)


def test_the_engine_process_ends_when_its_parent_does(tmp_path: Path):
    address = f"ipc://{tmp_path}/engine"
    setup = wire.Setup(config=EngineConfig(), address=address, log_level="error")
    with zmq.Context() as context, context.socket(zmq.PAIR) as link:
        link.bind(address)
        process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(wire.encode_setup(setup) + b"\n")
        process.stdin.flush()
        while isinstance(reply := wire.decode_reply(link.recv()), wire.Loading):
            pass
        assert isinstance(reply, wire.Ready)
    process.send_signal(2)
    process.terminate()  # ignored: the parent decides
    time.sleep(0.2)
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(120) == 0


def test_an_inbox_merges_what_its_reader_has_not_taken():
    async def test():
        inbox = _DeltaBuffer(request("a", n=2))
        for k in range(3):
            for index in (0, 1):
                delta = Delta(request_id="a", index=index, token_ids=[k], text=str(k))
                assert inbox.put(delta)
        assert [(d.index, d.token_ids, d.text) for d in await inbox.take()] == [
            (0, [0, 1, 2], "012"),
            (1, [0, 1, 2], "012"),
        ]
        assert not inbox.put(Delta(request_id="a", index=0, token_ids=[0] * 100_000))
        inbox.end(Code.ANSWER_LOST)
        last = await inbox.take()
        assert {d.index: d.code for d in last} == {0: "answer_lost", 1: "answer_lost"}
        assert await inbox.take() == ()

    run(test)


def test_deltas_that_are_merged_or_split_keep_how_their_choice_ended():
    handle = KVHandle(engine_id="e", host="h", port=1, key="k")
    ending = {"finish_reason": "stop", "stop_reason": "s", "usage": Usage(num_steps=2), "seed": 5}
    ending |= {"error": "e", "param": "p", "code": "c", "kv_handle": handle}
    last = Delta(request_id="a", token_ids=[2, 3], text="y", **ending)
    first = Delta(request_id="a", token_ids=[1], text="x", prompt_logprobs=[None])
    add_to(first, last)
    assert (first.text, first.token_ids, first.prompt_logprobs) == ("xy", [1, 2, 3], [None])
    part, rest = split_by_token(last, TokenTexts(None, skip_special=True))
    assert part.finish_reason is None
    for name, value in ending.items():
        assert getattr(first, name) == getattr(rest, name) == value, name


@pytest.mark.parametrize(
    "message",
    [
        wire.Submit(request("a", n=3)),
        wire.Abort("a"),
        wire.ForgetPrefixes(),
        wire.Shutdown(),
    ],
)
def test_commands_cross_the_wire_unchanged(message: wire.Command):
    assert wire.decode_command(wire.encode(message)) == message


def test_replies_cross_the_wire_unchanged():
    delta = Delta(request_id="a", token_ids=[1], text="x", stop_reason="s")
    for reply in (
        wire.Ready(engine_info("x")),
        wire.Deltas([delta]),
        wire.Refused("a", "no", "prompt", "internal"),
        wire.Heartbeat(wire.EngineStats(drafts=DRAFTS), 0.5),
        wire.Failed("why"),
    ):
        assert wire.decode_reply(wire.encode(reply)) == reply
    for junk in (b"", b"\x80", b"\x93\x01\x02\x03", wire.encode({"type": "shutdown"})):
        with pytest.raises(msgspec.DecodeError):
            wire.decode_reply(junk)
