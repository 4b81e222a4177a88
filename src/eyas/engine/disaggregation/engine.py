"""An engine with a role: it offers the prompts that it computes, or reads those of its requests.

Promises: the answer is that of one engine, since the decode server's request is an ordinary one whose
prompt is in the prefix cache up to its last token; if it was evicted meanwhile, it is computed. Slots
that wait are bounded: those of offered prompts by number, by half of the cache and by time, those of
prompts that are being read by half of the cache and by time; so are window slots and snapshots.
Does not know: how rows are moved, HTTP.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import msgspec
import numpy as np

from eyas.cache.lease import Lease
from eyas.config import DisaggregationConfig, EngineInfo
from eyas.constraint import Grammar
from eyas.core import Delta, KVHandle, Request, RequestError
from eyas.engine.disaggregation.imports import MAX_READINGS, Import, Importer
from eyas.engine.disaggregation.memory import SlotMemory, prompt_digest
from eyas.engine.disaggregation.messages import KVTransferError
from eyas.engine.disaggregation.offers import Offer, Offers, OfferServer
from eyas.engine.disaggregation.transport import open_transport
from eyas.engine.engine import Engine
from eyas.grammar import OutputSpec
from eyas.wire import EngineStats

MAX_OFFERS = 256
NO_ROOM = "the prefill server holds as many prompts as it can; try again in a moment"
NOT_HELD = "the prompt could not be held for a decode server; try again in a moment"


class DisaggregatedEngine:
    """An engine that offers or reads prompts, with the methods of the engine.

    offers: the prompts that are held. config: its role is "prefill" or "decode". wake: called from
    other threads when `step` has something to do. Raises ValueError if the address of a prefill server
    cannot be used.
    """

    def __init__(
        self, engine: Engine, config: DisaggregationConfig, wake: Callable[[], None] = lambda: None
    ) -> None:
        self._engine = engine
        self._cache = engine.cache
        most = engine.cache.most_read
        self._most_offers = MAX_OFFERS if most is None else min(MAX_OFFERS, most)
        self._config = config
        self._id = secrets.token_hex(8)
        self._memory = SlotMemory(engine)
        self._transport = open_transport(config.transport, self._memory, self._id)
        self.offers = Offers()
        self._offering: dict[str, Request] = {}
        self._finishing: list[tuple[Delta, Request]] = []
        self._waiting: deque[Import] = deque()
        self._reading: dict[str, Import] = {}
        self._ready: list[Delta] = []
        self._can_start = False
        self._server: OfferServer | None = None
        self._importer: Importer | None = None
        if config.role == "prefill":
            self._server = OfferServer(config, self.offers, self._memory, self._transport, wake)
        else:
            self._importer = Importer(config, self._memory.layout, self._transport, wake)

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def check_request(self, request: Request) -> None:
        """Raise RequestError if this engine can never serve the request."""
        self._engine.check_request(_plain(request))
        if request.offers_kv and self._server is None:
            raise _wrong_role("do_remote_decode", "prefill")
        if request.kv_handle is not None:
            if self._importer is None:
                raise _wrong_role("do_remote_prefill", "decode")
            self._importer.check(request.kv_handle)

    def compile(self, spec: OutputSpec) -> Future[Grammar]:
        return self._engine.compile(spec)

    def add(self, request: Request, grammar: Grammar | None = None) -> None:
        """Accept a request, as `Engine.add`. Raises KVTransferError if there is no room to offer its
        prompt."""
        self.check_request(request)
        if request.kv_handle is not None:
            digest = prompt_digest(request.prompt_token_ids)
            self._waiting.append(Import(request, grammar, digest))
            self._can_start = True
            return
        if request.offers_kv:
            self._check_offer(request)
            if request.kv_key is not None:
                self.offers.expect(request.kv_key)
        try:
            self._engine.add(_plain(request), grammar)
        except Exception:
            self._fail(request)
            raise
        if request.offers_kv:
            self._offering[request.id] = request

    def _check_offer(self, request: Request) -> None:
        """Raise KVTransferError if the prompt of a request cannot be held."""
        key, others = request.kv_key, self._named()
        if key is not None and (key in others or self.offers.has(key)):
            raise KVTransferError(
                "another prompt has this room", "kv_handle_invalid", has_room=True
            )
        if not self._has_room(request):
            self._fail(request)
            raise KVTransferError(NO_ROOM, has_room=key is not None)

    def _named(self) -> set[str | None]:
        """The names that routers have given to prompts that are being computed."""
        finishing = (request for _, request in self._finishing)
        return {request.kv_key for request in (*self._offering.values(), *finishing)}

    def _fail(self, request: Request) -> None:
        """Tell who waits for the prompt of a request that it will not be held."""
        if request.kv_key is not None:
            self.offers.fail(request.kv_key)

    def abort(self, request_id: str) -> None:
        """End a request now. An unknown id is not an error."""
        self._waiting = deque(job for job in self._waiting if job.request.id != request_id)
        if (job := self._reading.get(request_id)) is not None:
            job.abort()
        ended = [request for _, request in self._finishing if request.id == request_id]
        self._finishing = [pair for pair in self._finishing if pair[1].id != request_id]
        if (offering := self._offering.pop(request_id, None)) is not None:
            ended.append(offering)
        for request in ended:
            self._fail(request)
        self._engine.abort(request_id)

    def check_ranks(self) -> None:
        self._engine.check_ranks()

    def forget_prefixes(self) -> None:
        """Empty the prefix cache but for what requests and offers hold."""
        self._engine.forget_prefixes()

    def step(self) -> list[Delta]:
        """Run one step and return the deltas that became final."""
        for offer in self.offers.take_ended():
            self._cache.release(offer.lease, offer.tokens)
        self._end_imports()
        self._start_imports()
        deltas: list[Delta] = []
        if self._engine.has_work():
            deltas = self._engine.step()
            self._can_start = True
        self._hold_back(deltas)
        self._offer_finished()
        ready, self._ready = self._ready, []
        return ready

    def has_work(self) -> bool:
        """Whether `step` has anything to do or to return."""
        return bool(
            self._engine.has_work()
            or self._ready
            or self._finishing
            or (self._waiting and self._can_start)
            or any(job.is_quiet for job in self._reading.values())
            or self.offers.has_ended()
        )

    def stats(self) -> EngineStats:
        """Return the counts and gauges for `/metrics`. Prompts that are read are waiting requests."""
        stats = self._engine.stats()
        stats.num_waiting += len(self._waiting) + len(self._reading)
        stats.num_held_prompts = len(self.offers) + len(self._reading)
        return stats

    def check(self) -> None:
        """Raise AssertionError if a cache slot is lost or held twice."""
        self._engine.check()

    def shutdown(self) -> None:
        """Stop the threads, then the engine."""
        if self._server is not None:
            self._server.close()
        for job in self._reading.values():
            job.abort()
        self._transport.close()
        self._engine.shutdown()

    def _has_room(self, request: Request) -> bool:
        """Whether the prompt of a request can be held beside those that are."""
        num_slots = self.offers.num_slots + len(request.prompt_token_ids)
        is_alone = not len(self.offers)
        return len(self.offers) < self._most_offers and (
            is_alone or num_slots <= self._cache.num_slots // 2
        )

    def _hold_back(self, deltas: list[Delta]) -> None:
        """Keep the last deltas of requests that offer their prompts until those are held."""
        for delta in deltas:
            request = self._offering.get(delta.request_id)
            if request is None or delta.finish_reason is None:
                self._ready.append(delta)
                continue
            del self._offering[delta.request_id]
            if delta.finish_reason in ("stop", "length"):
                self._finishing.append((delta, request))
            else:
                self._fail(request)
                self._ready.append(delta)

    def _offer_finished(self) -> None:
        """Hold the prompts of finished requests, as soon as their slots are shared."""
        unheld: list[tuple[Delta, Request]] = []
        for delta, request in self._finishing:
            handle = self._hold(request) if self._has_room(request) else None
            if handle is not None:
                delta.kv_handle = handle if request.kv_key is None else None
                self._ready.append(delta)
            elif self._engine.has_work():
                unheld.append((delta, request))  # its slots return when the last flight lands
            else:
                self._fail(request)
                error = KVTransferError(NOT_HELD, has_room=request.kv_key is not None)
                self._ready.append(_failed(request, 0, error))
        self._finishing = unheld

    def _hold(self, request: Request) -> KVHandle | None:
        """Hold the slots of a prompt. Returns None if the prefix cache does not have all of it."""
        tokens, server = request.prompt_token_ids, self._server
        assert server is not None
        lease = self._cache.admit(tokens, len(tokens), namespace=request.cache_salt)
        if lease.num_stored < len(tokens) - 1:
            self._cache.release(lease, tokens)
            return None
        self._cache.hold_snapshot(lease)
        slots = lease.slots[: lease.num_stored].copy()
        stored = self._memory.settle()
        offer = Offer(
            lease,
            tokens,
            prompt_digest(tokens),
            slots,
            self._memory.num_made(slots),
            stored,
            time.monotonic() + self._config.hold_seconds,
        )
        key = request.kv_key or secrets.token_hex(16)
        self.offers.add(key, offer)
        return KVHandle(engine_id=self._id, host=self._config.host, port=server.port, key=key)

    def _start_imports(self) -> None:
        """Reserve slots for waiting prompts and begin to read them, in order, as far as slots
        suffice."""
        while self._waiting and self._can_start and len(self._reading) < MAX_READINGS:
            if not self._start(self._waiting[0]):
                self._can_start = False  # until a step or a reading has ended
                return
            self._waiting.popleft()

    def _start(self, job: Import) -> bool:
        """Reserve slots for what this engine does not have of a prompt, and begin to read it."""
        request = job.request
        tokens = request.prompt_token_ids
        # Log-probabilities of a prompt come from rows that run here, so nothing is read.
        is_read = request.params.prompt_logprobs is None
        lease = self._cache.admit(tokens, len(tokens), namespace=request.cache_salt, share=is_read)
        job.first = lease.num_stored if is_read else len(tokens) - 1
        count = len(tokens) - 1 - job.first
        if count and not self._reserve(job, lease, count):
            self._cache.release(lease, tokens)
            return False
        job.lease = lease
        self._reading[request.id] = job
        assert self._importer is not None
        self._importer.start(job)
        return True

    def _reserve(self, job: Import, lease: Lease, count: int) -> bool:
        """Reserve what a prompt is read into. Returns False, with nothing changed, if it must wait."""
        others = [other for other in self._reading.values() if other.parts]
        num_reserved = sum(len(other.slots) for other in others)
        is_much = len(others) >= self._most_offers or (
            num_reserved and num_reserved + count > self._cache.num_slots // 2
        )
        if is_much or not self._cache.has_room(lease, count, 0):
            return False
        if self._engine.table.states is not None:
            end = len(job.request.prompt_token_ids) - 1
            job.snapshot = self._cache.reserve_snapshot(lease, end)
            if job.snapshot is None:
                return False
        job.parts = self._cache.reserve_read(lease, count)
        job.slots = np.concatenate(job.parts)
        job.places = self._memory.places(job.slots, job.snapshot)
        job.free_at = self._memory.settle()
        return True

    def _end_imports(self) -> None:
        """Share the prompts that were read, and let their requests run; end those of the others."""
        for request_id, job in list(self._reading.items()):
            if not job.is_quiet:
                continue
            del self._reading[request_id]
            self._can_start = True
            assert job.result is not None and job.lease is not None
            error = job.result.exception()
            num_made = 0 if error is not None else job.result.result().num_made
            self._insert(job, num_made, is_read=error is None)
            if job.is_aborted:
                continue
            try:
                if error is not None:
                    raise error
                self._engine.add(_plain(job.request), job.grammar)
            except Exception as failure:
                self._ready += [
                    _failed(job.request, index, failure) for index in range(job.request.params.n)
                ]

    def _insert(self, job: Import, num_made: int, *, is_read: bool) -> None:
        """Share the slots of a prompt that was read; free them if it was not."""
        lease, tokens = job.lease, job.request.prompt_token_ids
        assert lease is not None
        for part in job.parts:
            self._cache.commit(lease, part, part if is_read else part[:0])
        if job.snapshot is not None:
            self._cache.commit_snapshot(lease, len(tokens) - 1, is_kept=is_read)
        if is_read:
            self._memory.mark(job.slots, max(0, num_made - job.first))
        self._cache.release(lease, tokens[:-1])


def _plain(request: Request) -> Request:
    """Return a request as an engine without a role takes it."""
    return msgspec.structs.replace(request, offers_kv=False, kv_key=None, kv_handle=None)


def _failed(request: Request, index: int, failure: BaseException) -> Delta:
    """Return the last delta of a choice whose prompt was not handed over."""
    handle = request.kv_handle
    has_room = handle is not None and handle.is_awaited
    known = KVTransferError("the transfer failed", has_room=has_room)
    if isinstance(failure, RequestError):
        known = failure
    return Delta(
        request_id=request.id,
        index=index,
        finish_reason="error",
        error=known.message,
        param=known.param,
        code=known.code,
    )


def _wrong_role(field: str, role: str) -> KVTransferError:
    return KVTransferError(
        f"{field} is for a server that was started with --role {role}", "kv_handle_invalid"
    )
