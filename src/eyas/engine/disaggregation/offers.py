"""Prompts that a prefill server holds for decode servers, and the threads that hand them over.

Promises: a prompt is held until it was handed over or its time is over, and not while somebody reads
it for longer than a transfer may take; the number of prompts and of connections is bounded. A key that
is not known, another prompt and another layout are denied with a reason. A prompt that a router has
named may be asked for before it is computed; who asks waits, for as long as a prompt would be held.
Does not know: engines, how slots become free.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from eyas.cache.lease import Lease
from eyas.config import DisaggregationConfig
from eyas.engine.disaggregation.memory import SlotMemory
from eyas.engine.disaggregation.messages import (
    CLAIM_BYTES,
    Claim,
    Denied,
    Done,
    Grant,
    KVTransferCode,
    KVTransferError,
    Link,
)
from eyas.engine.disaggregation.transport import Transport
from eyas.parallel.addresses import listen

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
MAX_FAILED = 1024
POLL_SECONDS = 0.5
"""How often it is looked whether a decode server that waits for a prompt is still there."""


@dataclass(slots=True, eq=False)
class Offer:
    """A held prompt.

    lease: locks its slots, window slots and snapshot. slots: of its positions but the last, whose root
    the decode server runs.
    num_made: leading positions with rows of the drafting network. stored: when the slots hold all.
    num_readers: conversations that read it. is_over: handed over.
    """

    lease: Lease
    tokens: list[int]
    digest: str
    slots: np.ndarray
    num_made: int
    stored: torch.cuda.Event | None
    expires_at: float
    num_readers: int = 0
    is_over: bool = False


class Offers:
    """The held prompts, by key. Can be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._by_key: dict[str, Offer] = {}
        self._failed: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def num_slots(self) -> int:
        with self._lock:
            return sum(len(offer.slots) for offer in self._by_key.values())

    def add(self, key: str, offer: Offer) -> None:
        with self._changed:
            self._by_key[key] = offer
            self._failed.pop(key, None)
            self._changed.notify_all()

    def fail(self, key: str) -> None:
        """Note that the prompt that a router has named will not be held."""
        with self._changed:
            self._failed[key] = None
            if len(self._failed) > MAX_FAILED:
                del self._failed[next(iter(self._failed))]
            self._changed.notify_all()

    def expect(self, key: str) -> None:
        """Note that the prompt of this name is computed, whatever became of an earlier one."""
        with self._changed:
            self._failed.pop(key, None)

    def has(self, key: str) -> bool:
        """Whether a prompt of this name is held."""
        with self._lock:
            return key in self._by_key

    def wait(self, key: str, seconds: float) -> bool:
        """Wait until a prompt is held, or it is known that it will not be. Returns whether neither has
        happened in this time."""
        with self._changed:
            return not self._changed.wait_for(
                lambda: key in self._by_key or key in self._failed, seconds
            )

    def begin(self, key: str) -> Offer | None:
        """Return a held prompt, which stays held until `end`; None if there is none."""
        with self._lock:
            offer = self._by_key.get(key)
            if offer is None or offer.is_over or offer.expires_at < time.monotonic():
                return None
            offer.num_readers += 1
            return offer

    def end(self, offer: Offer, *, is_over: bool) -> None:
        """Undo one `begin`. is_over: whether the prompt need not be held any longer."""
        with self._lock:
            offer.num_readers -= 1
            offer.is_over |= is_over

    def has_ended(self) -> bool:
        """Whether `take_ended` would return any."""
        now = time.monotonic()
        with self._lock:
            return any(_has_ended(offer, now) for offer in self._by_key.values())

    def take_ended(self) -> list[Offer]:
        """Remove and return the prompts that need not be held any longer."""
        now = time.monotonic()
        with self._lock:
            keys = [k for k, offer in self._by_key.items() if _has_ended(offer, now)]
            return [self._by_key.pop(key) for key in keys]


def _has_ended(offer: Offer, now: float) -> bool:
    return not offer.num_readers and (offer.is_over or offer.expires_at < now)


class OfferServer:
    """Listens for decode servers and hands prompts over.

    wake: called when a prompt was handed over. Raises ValueError if the address cannot be used.
    """

    def __init__(
        self,
        config: DisaggregationConfig,
        offers: Offers,
        memory: SlotMemory,
        transport: Transport,
        wake: Callable[[], None],
    ) -> None:
        self._config = config
        self._offers = offers
        self._memory = memory
        self._transport = transport
        self._wake = wake
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._is_closing = False
        try:
            self._listener = listen((config.host, config.port))
        except (OSError, OverflowError) as error:
            raise ValueError(
                f"disaggregation.host: cannot listen on {config.host} port {config.port}: {error}; "
                "choose an address of this machine and a free port"
            ) from error
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="kv-offers", daemon=True).start()

    def close(self) -> None:
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`, which would keep the port
        self._listener.close()

    def _accept(self) -> None:
        while not self._is_closing:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if not self._is_closing:
                    time.sleep(0.1)  # no descriptor is left
                continue
            if not self._free.acquire(blocking=False):
                connection.close()
                continue
            try:
                threading.Thread(target=self._converse, args=(connection,), daemon=True).start()
            except RuntimeError:  # no more threads can be started
                log.exception("a prompt was not handed over")
                connection.close()
                self._free.release()

    def _converse(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._hand_over(Link(connection, self._config.timeout_seconds, CLAIM_BYTES))
        except OSError as error:
            log.warning("a prompt was not handed over: %s", error)
        except Exception:
            log.exception("a prompt was not handed over")
        finally:
            self._free.release()

    def _hand_over(self, link: Link) -> None:
        try:
            claim = link.receive()
        except ConnectionError:
            log.debug("a connection was closed before it asked for a prompt")  # as routers probe
            return
        if not isinstance(claim, Claim):
            raise OSError("a conversation that does not begin with a claim")
        if claim.waits:
            self._await(link, claim.key)
        offer = self._offers.begin(claim.key)
        is_over = False
        try:
            try:
                checked = self._checked(claim, offer)
            except KVTransferError as error:
                link.send(Denied(error.reason, error.kv_transfer_code))
                return
            if checked.stored is not None:
                checked.stored.synchronize()
            slots = checked.slots[claim.first :]
            places = self._memory.places(slots, checked.lease.snapshot)
            link.send(Grant(checked.num_made, self._transport.describe(places)))
            self._transport.give(link, places)
            is_over = isinstance(link.receive(), Done)
            if is_over:
                link.send(Done())
        finally:
            if offer is not None:
                self._offers.end(offer, is_over=is_over)
                self._wake()

    def _await(self, link: Link, key: str) -> None:
        """Wait for a prompt that may not be computed yet. OSError if the decode server leaves."""
        hold, timeout = self._config.hold_seconds, self._config.timeout_seconds
        ends_at = time.monotonic() + hold
        link.restart(hold + timeout)
        while not self._is_closing and (left := ends_at - time.monotonic()) > 0:
            if not self._offers.wait(key, min(POLL_SECONDS, left)):
                break
            link.check_is_open()
        link.restart(timeout)

    def _checked(self, claim: Claim, offer: Offer | None) -> Offer:
        """Return the prompt that is claimed. Raises KVTransferError if it cannot be handed over."""
        invalid: KVTransferCode = "kv_handle_invalid"
        if claim.layout != self._memory.layout:
            raise KVTransferError(
                "the two servers store prompts in different ways; start both with the same model, "
                "number formats and drafter, and a model with windows with about as many slots",
                invalid,
            )
        if claim.transport != self._transport.name:
            raise KVTransferError(
                f"the prefill server moves prompts by {self._transport.name}, this one by "
                f"{claim.transport}; start both with the same --kv-transport",
                invalid,
            )
        if offer is None and claim.waits:
            raise KVTransferError(
                "the prefill server has not computed this prompt; send the request to both again"
            )
        if offer is None:
            raise KVTransferError(
                "the prefill server does not hold this prompt (any more); send the request to it again",
                invalid,
            )
        if claim.prompt != offer.digest or not 0 <= claim.first <= len(offer.slots):
            raise KVTransferError("it names another prompt than the request's", invalid)
        return offer
