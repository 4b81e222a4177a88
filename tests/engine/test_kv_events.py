"""Routers that subscribe to a cache's events know what it holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from eyas import LLM, SamplingParams
from eyas.cache import BlockLog, CacheManager
from eyas.cache.blocks import BlocksCleared, BlocksRemoved, BlocksStored
from eyas.config import EngineConfig, KVEventsConfig, read_kv_events
from eyas.engine.kv_events import EventPublisher, encoded
from eyas.settings import engine_config

SIZE = 8


class ArrayEvent(msgspec.Struct, array_like=True, tag=True):
    """The base of events as subscribers of vLLM 0.11 declare them."""


class BlockStored(ArrayEvent):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None = None
    extra_keys: list[tuple[Any, ...] | None] | None = None


class BlockRemoved(ArrayEvent):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(ArrayEvent):
    pass


class KVEventBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class Subscriber:
    """A router: subscribes, asks for what it missed, and keeps the prefixes of the stored blocks."""

    def __init__(self, folder: Path, topic: str) -> None:
        self.context = zmq.Context()
        self.events = self.context.socket(zmq.SUB)
        self.events.connect(f"ipc://{folder}/events")
        self.events.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.replays = self.context.socket(zmq.DEALER)
        self.replays.connect(f"ipc://{folder}/replays")
        self.topic = topic.encode()
        self.next_number = 0
        self.num_removed = self.num_cleared = 0
        self.prefixes: dict[int, tuple[int, ...]] = {}

    def read(self, stop: set[tuple[int, ...]]) -> None:
        """Read until the prefixes are those of `stop`, first what came before the subscription."""
        self.replay()
        while set(self.prefixes.values()) != stop:
            assert self.events.poll(60_000), "no more events"
            topic, number, payload = self.events.recv_multipart()
            assert topic == self.topic
            if int.from_bytes(number, "big") > self.next_number:
                self.replay()
            self.apply(number, payload)

    def replay(self) -> None:
        self.replays.send_multipart([b"", self.next_number.to_bytes(8, "big")])
        while True:
            assert self.replays.poll(30_000), "no replay"
            _, number, payload = self.replays.recv_multipart()
            if not payload:
                assert int.from_bytes(number, "big", signed=True) == -1
                return
            self.apply(number, payload)

    def apply(self, number: bytes, payload: bytes) -> None:
        if int.from_bytes(number, "big") < self.next_number:
            return  # it was replayed
        assert int.from_bytes(number, "big") == self.next_number
        self.next_number += 1
        for event in msgspec.msgpack.decode(payload, type=KVEventBatch).events:
            match event:
                case BlockStored():
                    before: tuple[int, ...] = ()
                    if event.parent_block_hash is not None:
                        before = self.prefixes[event.parent_block_hash]
                    size = event.block_size
                    assert len(event.token_ids) == size * len(event.block_hashes)
                    for i, key in enumerate(event.block_hashes):
                        before = (*before, *event.token_ids[size * i : size * (i + 1)])
                        self.prefixes[key] = before
                case BlockRemoved():
                    self.num_removed += len(event.block_hashes)
                    for key in event.block_hashes:
                        del self.prefixes[key]
                case AllBlocksCleared():
                    self.num_cleared += 1
                    self.prefixes.clear()

    def close(self) -> None:
        self.context.destroy(linger=0)


def content(cache: CacheManager) -> set[tuple[int, ...]]:
    """The prefixes of all blocks that the cache holds."""
    cache.log_blocks_anew()
    prefixes: dict[int, tuple[int, ...]] = {}
    for event in cache.take_block_events():
        if isinstance(event, BlocksStored):
            before = () if event.parent is None else prefixes[event.parent]
            for i, key in enumerate(event.hashes):
                before = (*before, *event.tokens[SIZE * i : SIZE * (i + 1)])
                prefixes[key] = before
    return set(prefixes.values())


def settings(folder: Path, **more: Any) -> KVEventsConfig:
    return KVEventsConfig(
        enable_kv_cache_events=True,
        endpoint=f"ipc://{folder}/events",
        replay_endpoint=f"ipc://{folder}/replays",
        topic="kv@eyas",
        block_size=SIZE,
        **more,
    )


@pytest.fixture
def subscriber(tmp_path: Path) -> Iterator[Subscriber]:
    subscriber = Subscriber(tmp_path, "kv@")
    subscriber.topic = b"kv@eyas"
    yield subscriber
    subscriber.close()


def test_a_subscriber_knows_what_an_engine_has_cached(
    tmp_path: Path, subscriber: Subscriber
) -> None:
    """Chats that share a beginning, drafted answers, evictions, and a cache that is emptied."""
    text = msgspec.json.encode(settings(tmp_path)).decode()
    llm = LLM(num_slots=256, max_model_len=96, max_num_seqs=4, kv_events_config=text)
    cache = llm.engine.cache
    for turn in range(3):
        prompts = [f"The weather in city {turn}{i} is" for i in range(4)]
        llm.generate(prompts, SamplingParams(max_tokens=40, temperature=1.0, seed=turn))
        subscriber.read(content(cache))
        assert subscriber.prefixes
    assert subscriber.num_removed > 0, "nothing was evicted"
    llm.engine.forget_prefixes()
    subscriber.read(set())
    assert subscriber.num_cleared == 2  # the first is that of the start
    llm.generate("The end", SamplingParams(max_tokens=20, temperature=0))
    subscriber.read(content(cache))
    llm.engine.shutdown()


def store(cache: CacheManager, tokens: list[int]) -> None:
    lease = cache.admit([*tokens, 0], len(tokens) + 1)
    slots = cache.reserve(lease, len(tokens) - lease.num_stored)
    cache.commit(lease, slots, slots)
    cache.release(lease, [*tokens, 0])


def test_an_engine_waits_for_nobody_and_drops_nothing_silently(
    tmp_path: Path, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sending thread stands still while the queue of two batches overflows."""
    gate, encode = threading.Event(), EventPublisher._payload

    def late(self: EventPublisher, batch: Any) -> bytes:
        gate.wait(60)
        return encode(self, batch)

    monkeypatch.setattr(EventPublisher, "_payload", late)
    cache = CacheManager(256, blocks=BlockLog(SIZE))
    publisher = EventPublisher(settings(tmp_path, max_queue_size=2), cache)
    for i in range(8):
        store(cache, [i] * 20)
        publisher.publish()
    gate.set()
    while publisher._queue.full():
        time.sleep(0.01)
    publisher.publish()
    expected = {(i,) * length for i in range(8) for length in (SIZE, 2 * SIZE)}
    subscriber.read(expected)
    assert subscriber.num_cleared >= 1
    publisher.close()


def test_events_are_written_as_vllm_writes_them() -> None:
    stored = BlocksStored([5, 6], None, [1, 2, 3, 4], "tenant")
    assert encoded(stored, 2, "array") == [
        "BlockStored", [5, 6], None, [1, 2, 3, 4], 2, None, "GPU", None, [["tenant"], None],
    ]  # fmt: skip
    following = BlocksStored([7], 6, [5, 6], "tenant")
    assert encoded(following, 2, "array") == [
        "BlockStored", [7], 6, [5, 6], 2, None, "GPU", None,
    ]  # fmt: skip
    assert encoded(following, 2, "map") == {
        "type": "BlockStored", "block_hashes": [7], "parent_block_hash": 6, "token_ids": [5, 6],
        "block_size": 2, "lora_id": None, "medium": "GPU", "lora_name": None,
    }  # fmt: skip
    assert encoded(BlocksRemoved([5]), 2, "array") == ["BlockRemoved", [5], "GPU"]
    assert encoded(BlocksCleared(), 2, "array") == ["AllBlocksCleared"]
    assert encoded(BlocksCleared(), 2, "map") == {"type": "AllBlocksCleared"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("on", "give a JSON object"),
        ('{"topics": ""}', "unknown field `topics`"),
        ('{"publisher": "nats"}', "publisher"),
        ('{"block_size": 0}', "block_size must be 1 to 4096"),
        ('{"endpoint": "5557"}', "endpoint: give tcp://HOST:PORT"),
    ],
)
def test_settings_that_cannot_be_used_are_named(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^cache.kv_events: .*{reason}"):
        read_kv_events(text)


def test_nothing_is_published_unless_it_is_asked_for() -> None:
    assert not EngineConfig().cache.kv_events.is_on
    assert not read_kv_events('{"enable_kv_cache_events": true, "publisher": "null"}').is_on
    with pytest.raises(ValueError, match="--no-prefix-cache"):
        engine_config(prefix_cache=False, kv_events_config='{"enable_kv_cache_events": true}')


def test_an_endpoint_in_use_is_an_error_before_the_model_is_loaded(tmp_path: Path) -> None:
    text = msgspec.json.encode(settings(tmp_path)).decode()
    text = text.replace(f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/missing/events")
    with pytest.raises(ValueError, match="missing/events cannot be used"):
        LLM(kv_events_config=text)
