"""Landing: apply the results of a flight to its sequences and cache slots, and make deltas of them.

Promises: each sequence of a flight is handled separately, and an error in one ends only that one.
Tokens after the first stop are dropped, and their slots become free. A sequence that has ended keeps
its slots until no flight can write to them.
Does not know: models, drafters, devices.
"""

from __future__ import annotations

import logging

import numpy as np

from eyas.cache import CacheManager
from eyas.cache.slots import NO_SLOTS
from eyas.constraint import ConstraintFailure
from eyas.core import MAX_RECORDED_STEPS, STEP_FAILED, Delta, FinishReason, TokenLogprob
from eyas.engine.draft_results import (
    DraftResult,
    count_draft,
    count_nodes,
    describe_draft,
    record_tree,
)
from eyas.engine.flight import Flight, Landed, Outcome
from eyas.engine.masks import DEAD_END, FAILED
from eyas.engine.metrics import Metrics
from eyas.engine.scheduler import Scheduler
from eyas.engine.sequence import Sequence, Status
from eyas.engine.stops import Shown
from eyas.runner.batch import Span

log = logging.getLogger(__name__)

NO_CHOICE = "the model gave no usable next token (not a number, or nothing was legal)"
BROKEN = "the engine failed while it handled this request's output"
_CODES = {FAILED: "grammar_limit_exceeded", DEAD_END: "grammar_dead_end"}


class Committer:
    """Applies the results of flights: `read`, then `commit`."""

    def __init__(self, scheduler: Scheduler, cache: CacheManager, metrics: Metrics) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._metrics = metrics

    def read(self, flight: Flight) -> None:
        """Wait for a flight's results and move the automata over the chosen tokens.

        This is all that the masks of the next step depend on.
        """
        landed = flight.landed = _read(flight)
        # In reverse order, so that a fork one step behind its leader can still reuse its grammar nodes.
        for outcome in reversed(landed.outcomes):
            sequence = flight.plan.rooted[outcome.b]
            if sequence.failure is not None:
                outcome.ended = sequence.failure
            elif sequence.status is Status.RUNNING and outcome.tokens:
                outcome.failure = self._move(sequence, outcome.tokens)

    def _move(self, sequence: Sequence, tokens: list[int]) -> str | None:
        """Move a sequence's automaton over chosen tokens. Returns an error text if it cannot.

        The tokens are not cut at stops yet, so an automaton may move beyond the end of its sequence.
        """
        automaton = sequence.automaton
        if automaton is None:
            return None
        before = automaton.num_replays
        try:
            automaton.advance(tokens)
        except ConstraintFailure:
            return FAILED
        except Exception:
            log.exception("a request's automaton broke; it ends")
            return BROKEN
        finally:
            self._metrics.grammar.num_replays += automaton.num_replays - before
        return None

    def commit(self, flight: Flight) -> list[Delta]:
        """Apply a flight whose results were read. Returns its deltas."""
        flight.note_masks()
        deltas: list[Delta] = []
        landed = flight.landed
        assert landed is not None
        self._metrics.num_steps += 1
        outcomes = iter(landed.outcomes)
        for i, (sequence, span) in enumerate(
            zip(flight.plan.sequences, flight.plan.spans, strict=True)
        ):
            outcome = next(outcomes, None) if span.node_slots is not None else None
            has_ended = sequence.status is Status.FINISHED
            is_live = sequence.status is Status.RUNNING and flight.error is None
            draft = describe_draft(flight, outcome) if outcome is not None and is_live else None
            nodes = outcome.nodes if outcome is not None and is_live else []
            self._commit_slots(sequence, span, nodes, keep_context=is_live)
            _note_state(sequence, span, outcome, has_failed=flight.error is not None)
            delta = None
            if is_live:
                try:
                    if span.context_count or not sequence.is_prompt_published:
                        self._commit_context(sequence, span, landed.prompt_logprobs.get(i))
                    if outcome is not None:
                        delta = self._commit_outcome(sequence, flight, outcome, draft)
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
        """End a sequence for a reason other than its text. Returns its last delta."""
        try:
            shown = sequence.stops.finish()
        except Exception:
            log.exception("held-back text is lost")
            shown = Shown()
        shown.finish_reason = reason
        delta = self._delta(sequence, shown)
        delta.error = error
        output = sequence.request.output
        if error in _CODES and output is not None:
            delta.code = _CODES[error]
            if output.param is not None:
                delta.error, delta.param = f"{output.param}: {error}", output.param
        self._finish(sequence)
        return delta

    def _commit_slots(
        self, sequence: Sequence, span: Span, nodes: list[int], *, keep_context: bool
    ) -> None:
        """Keep the slots of stored context and of accepted nodes; the other reserved slots become free.

        nodes: the nodes of the tree whose tokens are stored: the root and the accepted ones.
        """
        lease = sequence.lease
        assert lease is not None
        kept = span.context_slots if keep_context else NO_SLOTS
        if span.node_slots is not None:
            accepted = _at(span.node_slots, nodes)
            kept = np.concatenate((kept, accepted)) if len(kept) else accepted
            sequence.num_rooted_in_flight -= 1
            sequence.num_in_flight_tokens -= len(span.node_slots)
        self._cache.commit(lease, span.reserved, kept)
        if span.snapshot is not None:
            self._cache.commit_snapshot(lease, span.context_stop, is_kept=keep_context)
        sequence.num_in_flight -= 1

    def _commit_context(
        self, sequence: Sequence, span: Span, prompt_logprobs: list[TokenLogprob] | None
    ) -> None:
        """Apply the context rows of a span: counts, log-probabilities, and the stored prompt."""
        self._metrics.num_prompt_tokens += span.context_count
        if prompt_logprobs is not None:
            if sequence.prompt_logprobs is None:
                sequence.prompt_logprobs = [None]
            num_scored = len(sequence.prompt_logprobs)
            first_new = max(0, num_scored - 1 - span.context_start)
            sequence.prompt_logprobs += prompt_logprobs[first_new:]
        self._publish_prompt(sequence)

    def _commit_outcome(
        self, sequence: Sequence, flight: Flight, outcome: Outcome, draft: DraftResult | None
    ) -> Delta | None:
        """Append the chosen tokens to a sequence, up to its first stop.

        Returns None if nothing became final, because all new text is held back.
        """
        if outcome.ended is not None or outcome.count < 0:
            return self.end(sequence, "error", error=outcome.ended or NO_CHOICE)
        shown = sequence.stops.push(outcome.tokens, outcome.logprobs)
        taken = outcome.tokens[: shown.num_taken]
        if outcome.failure is not None:  # the sequence ends when its next step lands
            sequence.failure = outcome.failure
        sequence.tokens += taken
        sequence.num_planned = max(sequence.num_planned, sequence.num_tokens - 1)
        usage, num_drafted = sequence.usage, outcome.size - 1
        num_accepted = min(outcome.count - 1, len(taken))
        usage.num_steps += 1
        usage.num_draft_tokens += num_drafted
        usage.num_accepted_tokens += num_accepted
        usage.num_output_tokens += len(taken)
        self._metrics.count_step(num_drafted, num_accepted, len(taken))
        count_nodes(self._metrics.nodes, flight, outcome, num_accepted)
        if draft is not None:
            if shown.finish_reason is not None:
                draft.ending = "stop"
            for counts in (usage.drafts, self._metrics.drafts):
                count_draft(counts, draft, num_accepted)
        delta = self._delta(sequence, shown)
        if outcome.proposed is not None and usage.num_steps <= MAX_RECORDED_STEPS:
            delta.draft_trees = [record_tree(flight, outcome, outcome.proposed, taken)]
        if shown.finish_reason is not None:
            self._finish(sequence)
        elif not (
            delta.token_ids
            or delta.text
            or delta.marks
            or delta.prompt_logprobs
            or delta.draft_trees
        ):
            return None
        return delta

    def _publish_prompt(self, sequence: Sequence) -> None:
        """Share the prompt with other sequences, once, as soon as it is stored."""
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

    def _finish(self, sequence: Sequence) -> None:
        sequence.status = Status.FINISHED
        self._scheduler.retire(sequence)


def _at(node_slots: np.ndarray, nodes: list[int]) -> np.ndarray:
    """Return the slots of some nodes, which ascend."""
    num = len(nodes)
    if not num or nodes[-1] == num - 1:
        return node_slots[:num]
    return node_slots[nodes]


def _note_state(
    sequence: Sequence, span: Span, outcome: Outcome | None, *, has_failed: bool
) -> None:
    """Note the position of the state that a landed flight has left in a sequence's seat. If its root
    could not choose, the state may hold what is no number."""
    if has_failed or (outcome is not None and outcome.count < 0):
        sequence.state_position = 0
    elif outcome is None:
        sequence.state_position = span.context_stop
    else:
        sequence.state_position = sequence.num_on_device - 1
        sequence.num_on_device += max(0, outcome.count)


def _read(flight: Flight) -> Landed:
    """Read a flight's results. A flight whose results cannot be read has failed, with no results."""
    if flight.error is None:
        try:
            return flight.read()
        except Exception:
            log.exception("a step's results could not be read; its requests end with an error")
            flight.error = STEP_FAILED
    return Landed()
