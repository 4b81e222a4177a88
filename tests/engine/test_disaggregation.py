"""Prompts handed over between two engines: handles that are wrong, sides that die, links that stall.
No slot is lost, and requests that have nothing to do with it go on."""

from __future__ import annotations

import importlib.util
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest

from eyas.config import CacheConfig, DisaggregationConfig, EngineConfig
from eyas.core import Delta, KVHandle, Request, RequestError, SamplingParams
from eyas.draft import RootDrafter
from eyas.engine.disaggregation import DisaggregatedEngine
from eyas.engine.disaggregation import engine as disaggregation
from eyas.engine.disaggregation.memory import runs_of
from eyas.engine.disaggregation.messages import CLAIM_BYTES, Claim, Done, Grant, Link
from tests.laws.cases import assert_same
from tests.laws.pairs import PATIENCE_SECONDS, Pair, Side, new_pair
from tests.laws.test_drafter_law import _grid_answers, _grid_case
from tests.laws.world import Answer, Setting, new_engine, run

SETTING = Setting(max_model_len=64, num_slots=512)
PROMPT = [97, 101, 116, 32, 49, 50, 97, 98, 99, 110, 111, 101]
NIXL = importlib.util.find_spec("nixl")
HAS_NIXL = NIXL is not None and NIXL.origin is not None  # a mere folder of this name has none


def asked(name: str = "r", prompt: list[int] = PROMPT, **fields: object) -> Request:
    params = SamplingParams(temperature=0, max_tokens=5, seed=1, **fields)  # type: ignore[arg-type]
    return Request(id=name, prompt_token_ids=prompt, params=params)


def root(_: Setting) -> RootDrafter:
    return RootDrafter()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with new_pair(SETTING, root) as made:
        yield made
        made.decode.settle()


def ended(pair: Pair, request: Request) -> tuple[str | None, str | None]:
    """The code and the text with which a request ends on the decode engine."""
    answers, (last, *_) = pair.decode.run([request])
    assert answers[request.id, 0].token_ids == [] and last.finish_reason == "error"
    pair.decode.settle()
    return last.code, last.error


def test_an_unknown_key_and_one_that_was_used_are_refused(pair: Pair) -> None:
    request = pair.taking(asked())
    pair.decode.run([request])
    code, error = ended(pair, msgspec.structs.replace(request, id="again"))
    assert code == "kv_handle_invalid" and error is not None and "does not hold" in error
    pair.prefill.settle()


def test_a_handle_of_another_prompt_is_refused_and_stays_good(pair: Pair) -> None:
    handle = pair.offer(asked())
    wrong = asked("other", [*PROMPT[:-2], 97, 97])
    code, error = ended(pair, msgspec.structs.replace(wrong, kv_handle=handle))
    assert code == "kv_handle_invalid" and error is not None and "another prompt" in error
    right = asked(logprobs=2)
    answers, _ = pair.decode.run([msgspec.structs.replace(right, kv_handle=handle)])
    assert answers == run(new_engine(SETTING), [right])
    pair.prefill.settle()


def test_a_prompt_of_one_token_and_log_probabilities_of_the_prompt_move_nothing(pair: Pair) -> None:
    for request in (asked("one", [97]), asked("scored", prompt_logprobs=1)):
        answers, (last,) = pair.decode.run([pair.taking(request)])
        assert answers[request.id, 0].error is None and last.usage is not None
        assert (answers[request.id, 0].prompt_logprobs is None) == (request.id == "one")
    pair.prefill.settle()


def test_only_known_hosts_are_read_from_and_roles_are_kept(pair: Pair) -> None:
    handle = KVHandle(engine_id="x", host="10.0.0.1", port=1, key="x")
    with pytest.raises(RequestError, match="--kv-peer"):
        pair.decode.engine.add(msgspec.structs.replace(asked(), kv_handle=handle))
    with pytest.raises(RequestError, match="--role decode"):
        pair.prefill.engine.add(msgspec.structs.replace(asked(), kv_handle=handle))
    with pytest.raises(RequestError, match="--role prefill"):
        pair.decode.engine.add(msgspec.structs.replace(asked(), offers_kv=True))


def test_another_model_is_refused() -> None:
    with new_pair(SETTING, root) as pair:
        assert pair.prefill.engine._server is not None
        pair.prefill.engine._server._memory.layout = "another"
        code, error = ended(pair, pair.taking(asked()))
        assert code == "kv_handle_invalid" and error is not None and "same model" in error


def test_a_prompt_that_nobody_fetches_is_freed() -> None:
    with new_pair(SETTING, root, hold_seconds=0.2) as pair:
        request = pair.taking(asked())
        pair.prefill.settle()  # when its time is over
        assert ended(pair, request)[0] == "kv_handle_invalid"


def test_prompts_are_held_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disaggregation, "MAX_OFFERS", 2)
    with new_pair(SETTING, root) as pair:
        requests = [pair.taking(asked("a")), pair.taking(asked("b"))]
        with pytest.raises(RequestError, match="as many prompts as it can") as error:
            pair.offer(asked("c"))
        assert error.value.code == "kv_unavailable"
        pair.decode.run(requests)
        pair.prefill.settle()
        pair.offer(asked("c"))


@contextmanager
def listening(talk: Callable[[Link, socket.socket], None]) -> Iterator[KVHandle]:
    """A prefill server that is broken in its own way, for one conversation."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                link = Link(connection, 60, CLAIM_BYTES)
                assert isinstance(link.receive(), Claim)
                talk(link, connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield KVHandle(engine_id="x", host="127.0.0.1", port=listener.getsockname()[1], key="x")
        thread.join(60)


def dies(link: Link, connection: socket.socket) -> None:
    link.send(Grant(0))
    link.send_bytes(memoryview(bytes(100)))


def babbles(link: Link, connection: socket.socket) -> None:
    link.send_bytes(memoryview(b"\xff" * 64))


def says_done(link: Link, connection: socket.socket) -> None:
    link.send(Done())


@pytest.mark.parametrize("talk", [dies, babbles, says_done])
def test_a_prefill_server_that_fails_ends_the_request_and_no_other(
    pair: Pair, talk: Callable[[Link, socket.socket], None]
) -> None:
    with listening(talk) as handle:
        lost = msgspec.structs.replace(asked("lost", PROMPT[::-1]), kv_handle=handle)
        answers, _ = pair.decode.run([lost, asked("other")])
    assert answers["lost", 0].error is not None and answers["other", 0].finish_reason == "length"
    pair.decode.settle()


def test_rows_that_may_have_changed_meanwhile_are_not_taken() -> None:
    """The prefill server lets a prompt go before it hears that all of it has arrived."""
    with new_pair(SETTING, root) as pair:
        memory = pair.decode.engine._memory
        size = (len(PROMPT) - 1) * sum(rows.shape[1] for rows in memory.groups[0])

        def lets_go(link: Link, connection: socket.socket) -> None:
            link.send(Grant(0))
            link.send_bytes(memoryview(bytes(size)))
            assert isinstance(link.receive(), Done)

        with listening(lets_go) as handle:
            code, _ = ended(pair, msgspec.structs.replace(asked(), kv_handle=handle))
        assert code == "kv_unavailable"
        answers, _ = pair.decode.run([asked()])
        assert answers == run(new_engine(SETTING), [asked()])


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_a_prefill_server_is_asked_over_ipv6_and_lets_its_port_go() -> None:
    config = DisaggregationConfig(role="prefill", host="::1")
    engine = DisaggregatedEngine(new_engine(SETTING), config)
    assert engine._server is not None
    address = ("::1", engine._server.port)
    socket.create_connection(address).close()
    engine.shutdown()
    again = DisaggregatedEngine(
        new_engine(SETTING), msgspec.structs.replace(config, port=address[1])
    )
    again.shutdown()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_others_go_on_while_a_link_is_slow_and_its_end_can_be_told(pair: Pair) -> None:
    claimed, go_on = threading.Event(), threading.Event()

    def wait(link: Link, connection: socket.socket) -> None:
        claimed.set()
        go_on.wait(60)

    with listening(wait) as handle:
        slow = msgspec.structs.replace(asked("slow", PROMPT[::-1]), kv_handle=handle)
        pair.decode.engine.add(slow)
        answers, _ = pair.decode.run([asked("other")])  # while the other one waits
        assert answers["other", 0].finish_reason == "length"
        assert pair.decode.engine.stats().num_waiting == 1
        assert claimed.wait(60)
        pair.decode.engine.abort("slow")
        pair.decode.woken.wait(60)
        go_on.set()
    while pair.decode.engine._reading:
        pair.decode.engine.step()
    pair.decode.settle()


def test_a_decode_server_that_dies_leaves_the_prompt_to_another(pair: Pair) -> None:
    handle = pair.offer(asked())
    with socket.create_connection((handle.host, handle.port)) as connection:
        connection.sendall(b"\x10\x00\x00\x00half")  # a claim that never comes
    with socket.create_connection((handle.host, handle.port)) as connection:
        connection.sendall(b"\xff\xff\xff\xff")  # a message of 4 GiB
        assert connection.recv(1) == b""
    answers, _ = pair.decode.run([msgspec.structs.replace(asked(), kv_handle=handle)])
    assert answers["r", 0].finish_reason == "length"
    pair.prefill.settle()


def in_room(request: Request, pair: Pair, room: str) -> tuple[Request, Request]:
    """The two requests of a router that sends one to both engines: for the prefill and the decode
    engine."""
    server = pair.prefill.engine._server
    assert server is not None
    handle = KVHandle(engine_id="", host="127.0.0.1", port=server.port, key=room, is_awaited=True)
    return (
        msgspec.structs.replace(request, offers_kv=True, kv_key=room),
        msgspec.structs.replace(request, kv_handle=handle),
    )


def finish(side: Side) -> tuple[Answer, Delta]:
    """Step until the only request of an engine has ended: its answer, and its last delta."""
    answer = Answer()
    while True:
        if not side.engine.has_work():
            assert side.woken.wait(PATIENCE_SECONDS)
        side.woken.clear()
        for delta in side.engine.step():
            answer.absorb(delta)
            if delta.finish_reason is not None:
                return answer, delta


def test_a_prompt_with_a_room_is_asked_for_before_it_is_computed(pair: Pair) -> None:
    request = asked("met", PROMPT[::-1], logprobs=2)
    offering, taking = in_room(request, pair, "room 1")
    pair.decode.engine.add(taking)
    pair.decode.engine.step()  # it asks now
    pair.prefill.engine.add(offering)
    with pytest.raises(RequestError, match="another prompt has this room") as error:
        pair.prefill.engine.add(msgspec.structs.replace(offering, id="other"))
    assert (error.value.code, error.value.param) == ("kv_handle_invalid", "bootstrap_room")
    _, last = finish(pair.prefill)
    assert last.finish_reason == "length" and last.kv_handle is None
    answer, taken = finish(pair.decode)
    assert answer == run(new_engine(SETTING), [request])["met", 0]
    assert taken.usage is not None and taken.usage.num_cached_tokens == len(PROMPT) - 1
    pair.prefill.settle()
    pair.decode.settle()


def test_who_waits_for_a_prompt_is_told_that_it_will_not_come(pair: Pair) -> None:
    offering, taking = in_room(asked("left", PROMPT[3:]), pair, "room 2")
    pair.prefill.engine.add(offering)
    pair.decode.engine.add(taking)
    pair.decode.engine.step()
    pair.prefill.engine.abort("left")
    _, last = finish(pair.decode)
    assert last.code == "kv_unavailable" and last.param == "bootstrap_room"
    assert last.error is not None and "to both again" in last.error
    pair.prefill.settle()
    pair.decode.settle()


def test_nobody_waits_for_a_room_longer_than_prompts_are_held() -> None:
    with new_pair(SETTING, root, hold_seconds=0.2) as pair:
        _, taking = in_room(asked(), pair, "room 3")
        assert ended(pair, taking)[0] == "kv_unavailable"


def test_no_server_there_is_told() -> None:
    with new_pair(SETTING, root) as pair:
        request = pair.taking(asked())
        assert pair.prefill.engine._server is not None
        pair.prefill.engine._server.close()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        assert request.kv_handle is not None
        nobody = msgspec.structs.replace(request.kv_handle, port=port)
        code, error = ended(pair, msgspec.structs.replace(request, kv_handle=nobody))
        assert code == "kv_unavailable" and error is not None and "again" in error


def test_without_a_thread_to_read_on_the_request_ends_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start

    def denied(thread: threading.Thread) -> None:
        if thread.name.startswith("kv-import"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with new_pair(SETTING, root) as pair:
        lost, again = pair.taking(asked("lost")), asked("other", PROMPT[::-1])
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", denied)
            answers, _ = pair.decode.run([lost, again])
        assert (
            answers["lost", 0].error is not None and answers["other", 0].finish_reason == "length"
        )
        pair.decode.settle()
        answers, _ = pair.decode.run([lost])  # the prompt is still held
        assert answers["lost", 0].finish_reason == "length"


def test_runs_cover_slots_in_order() -> None:
    slots = np.array([5, 6, 7, 2, 3, 9])
    assert list(runs_of(slots)) == [(0, 5, 3), (3, 2, 2), (5, 9, 1)]
    assert list(runs_of(slots[:0])) == []


def test_settings_that_cannot_be_used_are_refused() -> None:
    prefill = DisaggregationConfig(role="prefill")
    with pytest.raises(ValueError, match=r"disaggregation\.role: 'prefill' keeps prompts in the"):
        EngineConfig(disaggregation=prefill, cache=CacheConfig(prefix_cache=False))
    with pytest.raises(ValueError, match=r"disaggregation\.host"):
        EngineConfig(disaggregation=msgspec.structs.replace(prefill, host="0.0.0.0"))
    with pytest.raises(ValueError, match=r"disaggregation\.role: one of both, prefill, decode"):
        EngineConfig(disaggregation=DisaggregationConfig(role="other"))  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = msgspec.structs.replace(prefill, port=listener.getsockname()[1])
        with pytest.raises(ValueError, match=r"disaggregation\.host: cannot listen"):
            DisaggregatedEngine(new_engine(SETTING), taken)


@pytest.mark.skipif(HAS_NIXL, reason="NIXL is there")
def test_a_missing_library_is_named() -> None:
    with pytest.raises(ValueError, match=r"eyas\[nixl\]"):
        DisaggregatedEngine(
            new_engine(SETTING), DisaggregationConfig(role="decode", transport="nixl")
        )


@pytest.mark.skipif(not HAS_NIXL, reason="needs eyas[nixl]")
@pytest.mark.parametrize("drafter", ["root", "eagle tree"])
def test_nixl_moves_the_same_bits(drafter: str) -> None:
    from dataclasses import replace

    from tests.laws.cases import new_drafter

    case = _grid_case(drafter, flights=1)
    expected, known = _grid_answers()

    def new(setting: Setting):
        return new_drafter(replace(case, setting=setting), known)

    with new_pair(case.setting, new, transport="nixl") as pair:
        answers, _ = pair.decode.run([pair.taking(request) for request in case.requests])
        assert_same(answers, expected)
        pair.prefill.settle()
        pair.decode.settle()


def test_a_room_that_failed_is_awaited_again_once_its_prompt_is_computed() -> None:
    offers = disaggregation.Offers()
    offers.fail("7")
    assert not offers.wait("7", 30.0)
    offers.expect("7")
    assert offers.wait("7", 0.01)
