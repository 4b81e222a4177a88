"""Publishes what the prefix cache stores, for routers, in the messages that vLLM publishes.

A message has three frames: the topic, a sequence number (8 bytes, big-endian) and a batch in msgpack:
[seconds since 1970, [event, ...], 0]. An event is an array that begins with its name, or a map with its
name as "type" (`eyas.config.KVEventsConfig`). Whoever missed messages sends the first missing number to
the replay endpoint and gets the kept ones, then one with number -1.
Format: vllm/distributed/kv_events.py of vLLM 0.11 (arrays) and 0.28 (maps).

Promises: the engine never waits for a subscriber. If batches have to be dropped, the next one clears
everything and stores the whole content again, so that a subscriber that reads every message has the
content of the cache. Does not know: how blocks are found (`eyas.cache.blocks`).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from eyas.cache import CacheManager
from eyas.cache.blocks import BlockEvent, BlocksCleared, BlocksRemoved, BlocksStored
from eyas.config import EventEncoding, KVEventsConfig

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
CLOSE_SECONDS = 2.0
MEDIUM = "GPU"
"""vLLM's word for the cache that a model reads directly, on any device."""
REPLAY_END = (-1).to_bytes(8, "big", signed=True)

Batch = tuple[float, Sequence[BlockEvent]]


def is_bound(endpoint: str) -> bool:
    """Whether a socket is bound to this endpoint, and not connected."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith("ipc://")


def check_endpoints(config: KVEventsConfig) -> None:
    """Raise ValueError if the sockets of these settings cannot be opened."""
    if config.is_on:
        with zmq.Context() as context:
            for each in _open_sockets(config, context):
                if each is not None:
                    each.close(linger=0)


def _open_sockets(
    config: KVEventsConfig, context: zmq.Context[zmq.Socket[bytes]]
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes] | None]:
    """Return the PUB socket, and the ROUTER socket for replays if there is one."""
    publishing = context.socket(zmq.PUB)
    publishing.setsockopt(zmq.SNDHWM, config.hwm)
    address, replaying = config.endpoint, None
    try:
        if is_bound(address):
            publishing.bind(address)
        else:
            publishing.connect(address)
        if config.replay_endpoint is not None:
            address = config.replay_endpoint
            replaying = context.socket(zmq.ROUTER)
            replaying.setsockopt(zmq.SNDHWM, max(1, config.buffer_steps + 1))
            replaying.bind(address)
    except zmq.ZMQError as error:
        for each in (publishing, replaying):
            if each is not None:
                each.close(linger=0)
        raise ValueError(
            f"cache.kv_events: {address} cannot be used: {error}; choose another endpoint"
        ) from error
    return publishing, replaying


def encoded(
    event: BlockEvent, block_size: int, encoding: EventEncoding
) -> list[Any] | dict[str, Any]:
    """Return one event as vLLM's msgpack has it. A salted prefix has its salt as the extra key of its
    first block, as there."""
    fields: dict[str, Any]
    match event:
        case BlocksStored(hashes, parent, tokens, namespace):
            fields = {
                "type": "BlockStored",
                "block_hashes": hashes,
                "parent_block_hash": parent,
                "token_ids": tokens,
                "block_size": block_size,
                "lora_id": None,
                "medium": MEDIUM,
                "lora_name": None,
            }
            if namespace and parent is None:
                fields["extra_keys"] = [[namespace], *[None] * (len(hashes) - 1)]
        case BlocksRemoved(hashes):
            fields = {"type": "BlockRemoved", "block_hashes": hashes, "medium": MEDIUM}
        case BlocksCleared():
            fields = {"type": "AllBlocksCleared"}
    return fields if encoding == "map" else list(fields.values())


class EventPublisher:
    """Publishes the changes of one cache. `publish` is called on the engine's thread after each step;
    another thread encodes and sends.

    Raises ValueError if the endpoints cannot be opened.
    """

    def __init__(self, config: KVEventsConfig, cache: CacheManager) -> None:
        self._config = config
        self._cache = cache
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._publishing, self._replaying = _open_sockets(config, self._context)
        except ValueError:
            self._context.term()
            raise
        self._queue: queue.Queue[Batch] = queue.Queue(config.max_queue_size)
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._has_dropped = False
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="eyas-kv-events", daemon=True)
        self._thread.start()
        log.info(
            "prefixes are published at %s in blocks of %d; who can reach it can read all prompts and "
            "answers as tokens",
            config.endpoint,
            config.block_size,
        )
        self.publish()

    def publish(self) -> None:
        """Publish what changed in the cache since the last call. Never waits."""
        if self._has_dropped and not self._queue.full():
            self._cache.log_blocks_anew()
        events = self._cache.take_block_events()
        if not events:
            return
        try:
            self._queue.put_nowait((time.time(), events))
            self._has_dropped = False
        except queue.Full:
            if not self._has_dropped:
                log.warning("more than %d batches of events wait", self._config.max_queue_size)
            self._has_dropped = True

    def close(self) -> None:
        """Send what waits, for up to `CLOSE_SECONDS`, and close the sockets."""
        self._is_closing.set()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        number = 0
        try:
            while not (self._is_closing.is_set() and self._queue.empty()):
                if self._replaying is not None and self._replaying.poll(0):
                    self._replay(self._replaying)
                try:
                    batch = self._queue.get(timeout=POLL_SECONDS)
                except queue.Empty:
                    continue
                payload = self._payload(batch)
                topic = self._config.topic.encode()
                self._publishing.send_multipart((topic, number.to_bytes(8, "big"), payload))
                self._sent.append((number, payload))
                number += 1
        except Exception:
            log.exception("events of the prefix cache are no longer published")
        finally:
            self._publishing.close(linger=500)
            if self._replaying is not None:
                self._replaying.close(linger=0)
            self._context.term()

    def _payload(self, batch: Batch) -> bytes:
        seconds, events = batch
        config = self._config
        written = [encoded(event, config.block_size, config.encoding) for event in events]
        return msgspec.msgpack.encode([seconds, written, 0])

    def _replay(self, socket: zmq.Socket[bytes]) -> None:
        """Answer one request for past batches. One that cannot be read is not answered."""
        frames = socket.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            log.warning("a request for past events cannot be read and is ignored")
            return
        client, empty, first = frames
        wanted = int.from_bytes(first, "big")
        for number, payload in self._sent:
            if number >= wanted:
                socket.send_multipart((client, empty, number.to_bytes(8, "big"), payload))
        socket.send_multipart((client, empty, REPLAY_END, b""))
