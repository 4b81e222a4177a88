"""Landing: what a flight's result means to its sequences, their slots and their readers.

Promises: every sequence of a flight is handled on its own: what fails in one ends that one. Tokens
after the first stop are dropped, their slots return. A sequence that ended keeps its slots until no
flight can touch them.
Does not know: models, drafters, devices.
"""

from __future__ import annotations

import logging

from eyas.cache import CacheManager
from eyas.core import Delta, FinishReason
from eyas.engine.fate import DraftFate, count_draft, describe_draft
from eyas.engine.flight import Flight, Landed
from eyas.engine.masks import FAILED, advance
from eyas.engine.metrics import Metrics
from eyas.engine.scheduler import Scheduler
from eyas.engine.sequence import Sequence, Status
from eyas.engine.stops import Shown
from eyas.runner.batch import Span

log = logging.getLogger(__name__)

NO_CHOICE = "the model gave no usable next token (not a number, or nothing was legal)"
BROKEN = "the engine failed while it handled this request's output"
STEP_FAILED = "the engine could not finish a step; the request was ended, try it again"


class Committer:
    """Applies landed flights."""

    def __init__(self, scheduler: Scheduler, cache: CacheManager, metrics: Metrics) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._metrics = metrics

    def read(self, flight: Flight) -> None:
        """Wait for a flight's results, and move automata over what was chosen: all that masks of the
        step after it wait for."""
        landed = flight.landed = _read(flight)
        rooted = list(zip(flight.plan.rooted, landed.counts, strict=False))
        # In reverse, so that a fork that is a step behind can still take over its leader's points.
        for b in reversed(range(len(rooted))):
            sequence, count = rooted[b]
            if sequence.failure is not None:
                landed.ended[b] = sequence.failure
            elif b in flight.sitting_out:
                landed.sat_out.add(b)
            elif sequence.status is Status.RUNNING and count > 0:
                failure = self._move(sequence, landed.tokens[b][:count])
                if failure is not None:
                    landed.failures[b] = failure

    def _move(self, sequence: Sequence, tokens: list[int]) -> str | None:
        """Over what was chosen, which may end the sequence before; what is wrong if that cannot be."""
        try:
            return None if advance(sequence, tokens, self._metrics.grammar) else FAILED
        except Exception:
            log.exception("a request's automaton broke; it ends")
            return BROKEN

    def commit(self, flight: Flight) -> list[Delta]:
        """The deltas of one landed flight, whose results were read."""
        flight.note_masks()
        deltas: list[Delta] = []
        landed = flight.landed
        assert landed is not None
        self._metrics.num_steps += 1
        at = 0
        for i, (sequence, span) in enumerate(
            zip(flight.plan.sequences, flight.plan.spans, strict=True)
        ):
            b = at if span.node_slots is not None else None
            at += span.node_slots is not None
            has_ended = sequence.status is Status.FINISHED
            is_live = sequence.status is Status.RUNNING and flight.error is None
            draft = describe_draft(flight, landed, b) if b is not None and is_live else None
            count = landed.counts[b] if b is not None and is_live else 0
            nodes = landed.nodes[b][: max(0, count)] if b is not None and count else []
            self._settle_slots(sequence, span, nodes, keep_context=is_live)
            delta = None
            if is_live:
                try:
                    delta = self._tell(sequence, span, landed, i, b, count, draft)
                except Exception:
                    log.exception("a request's output could not be handled; it ends")
                    delta = self.end(sequence, "error", error=BROKEN)
            elif flight.error is not None and sequence.status is Status.RUNNING:
                delta = self.end(sequence, "error", error=flight.error)
            if has_ended:
                self._scheduler.retire(sequence)
            if delta is not None:
                deltas.append(delta)
        return deltas

    def end(self, sequence: Sequence, reason: FinishReason, *, error: str | None = None) -> Delta:
        """Finish a sequence for a reason other than its text."""
        try:
            shown = sequence.stops.finish()
        except Exception:
            log.exception("held-back text is lost")
            shown = Shown()
        shown.finish_reason = reason
        delta = self._delta(sequence, shown)
        delta.error = error
        self._finish(sequence, reason)
        return delta

    def _settle_slots(
        self, sequence: Sequence, span: Span, nodes: list[int], *, keep_context: bool
    ) -> None:
        lease = sequence.lease
        assert lease is not None
        if span.context_count:
            kept = span.context_slots if keep_context else span.context_slots[:0]
            self._cache.commit(lease, span.context_slots, kept)
        if span.node_slots is not None:
            self._cache.commit(lease, span.node_slots, span.node_slots[nodes])
            sequence.num_rooted_in_flight -= 1
            sequence.num_in_flight_tokens -= len(span.node_slots)
        sequence.num_in_flight -= 1

    def _tell(
        self,
        sequence: Sequence,
        span: Span,
        landed: Landed,
        span_index: int,
        b: int | None,
        count: int,
        draft: DraftFate | None,
    ) -> Delta | None:
        self._metrics.num_prompt_tokens += span.context_count
        if span_index in landed.prompt_logprobs:
            if sequence.prompt_logprobs is None:
                sequence.prompt_logprobs = [None]
            done = len(sequence.prompt_logprobs)
            fresh = landed.prompt_logprobs[span_index]
            sequence.prompt_logprobs += fresh[max(0, done - 1 - span.context_start) :]
        self._publish_prompt(sequence)
        if b is None or b in landed.sat_out:
            return None
        if b in landed.ended or count < 0:
            return self.end(sequence, "error", error=landed.ended.get(b, NO_CHOICE))
        tokens = landed.tokens[b][:count]
        shown = sequence.stops.push(tokens, landed.logprobs[b] if landed.logprobs else None)
        taken = tokens[: shown.num_taken]
        if b in landed.failures:  # the next step says so
            sequence.failure = landed.failures[b]
        sequence.tokens += taken
        sequence.num_planned = max(sequence.num_planned, sequence.num_tokens - 1)
        usage = sequence.usage
        usage.num_steps += 1
        usage.num_draft_tokens += landed.sizes[b] - 1
        num_accepted = min(count - 1, len(taken))
        usage.num_accepted_tokens += num_accepted
        usage.num_output_tokens += len(taken)
        self._metrics.count_step(landed.sizes[b] - 1, num_accepted, len(taken))
        if draft is not None:
            if shown.finish_reason is not None:
                draft.ending = "stop"
            for counts in (usage.drafts, self._metrics.drafts):
                count_draft(counts, draft, num_accepted)
        delta = self._delta(sequence, shown)
        if shown.finish_reason is not None:
            self._finish(sequence, shown.finish_reason)
        elif not (delta.token_ids or delta.text or delta.marks or delta.prompt_logprobs):
            return None
        return delta

    def _publish_prompt(self, sequence: Sequence) -> None:
        lease = sequence.lease
        assert lease is not None
        num_context = sequence.num_prompt_tokens - 1
        if not sequence.is_prompt_published and lease.num_stored >= num_context:
            self._cache.publish(lease, sequence.tokens[:num_context])
            sequence.is_prompt_published = True

    def _delta(self, sequence: Sequence, shown: Shown) -> Delta:
        params = sequence.request.params
        delta = Delta(
            request_id=sequence.request.id,
            index=sequence.index,
            token_ids=shown.token_ids,
            text=shown.text,
            marks=shown.marks,
            logprobs=shown.logprobs if params.logprobs is not None else None,
            finish_reason=shown.finish_reason,
            stop_reason=shown.stop_reason,
        )
        if delta.logprobs is not None:
            for entry in delta.logprobs:
                del entry.top[params.logprobs :]
        if params.prompt_logprobs is not None and not sequence.needs_prompt_rows:
            if not sequence.has_sent_prompt_logprobs and sequence.index == 0:
                delta.prompt_logprobs = sequence.prompt_logprobs or [None]
                sequence.has_sent_prompt_logprobs = True
        if shown.finish_reason is not None:
            delta.usage = sequence.usage
            delta.seed = sequence.seed
        return delta

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.status = Status.FINISHED
        self._metrics.count_finish(reason)
        self._scheduler.retire(sequence)


def _read(flight: Flight) -> Landed:
    """What landed; a flight whose results cannot be read has failed."""
    if flight.error is None:
        try:
            return flight.read()
        except Exception:
            log.exception("a step's results could not be read; its requests end with an error")
            flight.error = STEP_FAILED
    return Landed([], [], [], [], None, None, None, {})
