"""Who runs in the next step, with how many rows, and on which slots.

Promises: no phases, only counts: a sequence has positions to store and a root to try. Older sequences
go first, seats go to the client that holds fewest; when slots run out the youngest gives way and is
recomputed later, so the oldest always finishes. What a step under way may still change is planned from
upper bounds; slots return only when no flight can touch them.
Does not know: models, trees, tokens' meaning.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from eyas.cache import CacheManager
from eyas.cache.slots import NO_SLOTS
from eyas.draft import TreeShape
from eyas.engine.sequence import Sequence, Status
from eyas.engine.waiting import WaitingQueue
from eyas.runner.batch import Span
from eyas.runner.table import SequenceTable


@dataclass(slots=True, eq=False)
class StepPlan:
    """What the next step does: sequences[i] is the owner of spans[i]. shape: of the trees; each
    sequence has slots for as many nodes."""

    sequences: list[Sequence]
    spans: list[Span]
    max_length: int
    shape: TreeShape

    @property
    def width(self) -> int:
        return self.shape.width

    @property
    def rooted(self) -> list[Sequence]:
        """The owners of the spans that have a root, in order."""
        return [
            sequence
            for sequence, span in zip(self.sequences, self.spans, strict=True)
            if span.node_slots is not None
        ]


class Scheduler:
    """max_batch_tokens: most rows of a step. wish: the tree that the drafter wants for a step of so
    many sequences, where so many of those that may step are constrained. num_query_tokens,
    num_hit_tokens: looked up in the prefix cache, and found there."""

    def __init__(
        self,
        cache: CacheManager,
        table: SequenceTable,
        *,
        max_batch_tokens: int,
        preferred_shape: Callable[[int, int], TreeShape],
    ) -> None:
        self.cache = cache
        self.table = table
        self.max_batch_tokens = max_batch_tokens
        self.preferred_shape = preferred_shape
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.num_query_tokens = 0
        self.num_hit_tokens = 0

    def add(self, sequence: Sequence) -> None:
        self.waiting.add(sequence)

    def next(self) -> StepPlan | None:
        """Plan a step and reserve its slots; None when nothing can run before a flight lands."""
        stepping = [s for s in self.running if not s.is_storing_context and _can_grow(s)]
        storing = [s for s in self.running if s.is_storing_context]
        budget = self.max_batch_tokens
        share = budget * 3 // 4 if storing or self.waiting else budget
        likely = islice(self.waiting.in_turn(self.running), self.table.num_seats)
        candidates = (*self.running, *likely)
        preferred_shape = self.preferred_shape(
            len(stepping), sum(s.automaton is not None for s in candidates)
        )
        most = max(1, min(self.table.max_width, share // max(1, len(stepping))))
        plan = StepPlan([], [], 1, preferred_shape.within(most))
        width = plan.width
        starved: Sequence | None = None
        for sequence in stepping:
            if sequence.status is not Status.RUNNING or budget < width:
                continue
            if not self._place(plan, sequence, 0, has_root=True):
                starved = sequence
                break
            budget -= width
        for sequence in storing:
            if sequence.status is not Status.RUNNING or budget <= 0:
                continue
            if starved is not None and sequence.order > starved.order:
                break
            count, has_root = self._chunk(sequence, budget, width)
            if not self._place(plan, sequence, count, has_root=has_root):
                return plan if plan.spans else None
            budget -= count + width * has_root
        if starved is not None:
            return plan if plan.spans else None
        for sequence in self.waiting.in_turn(list(self.running)):
            if budget <= 0 or not self._admit(sequence, width):
                if budget <= 0 or not self._awaits_leader(sequence):
                    break
                continue
            count, has_root = self._chunk(sequence, budget, width)
            if (count or has_root) and not self._place(plan, sequence, count, has_root=has_root):
                break
            budget -= count + width * has_root
        return plan if plan.spans else None

    def retire(self, sequence: Sequence) -> None:
        """A finished sequence leaves; its slots return once no flight can touch them."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence.lease is not None and sequence.num_in_flight == 0:
            self._vacate(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """Give up a running sequence's slots; it is recomputed when its turn comes again."""
        assert sequence.num_in_flight == 0 and sequence.status is Status.RUNNING
        self._vacate(sequence)
        sequence.status = Status.WAITING
        sequence.num_planned = 0
        sequence.usage.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.add(sequence)

    def _vacate(self, sequence: Sequence) -> None:
        assert sequence.lease is not None
        self.cache.release(sequence.lease, sequence.tokens)
        self.table.unseat(sequence.seat)
        sequence.lease, sequence.seat = None, -1
        self.running.remove(sequence)

    def _awaits_leader(self, sequence: Sequence) -> bool:
        """Another choice of the same request is about to store the prompt they share."""
        leader = sequence.leader
        return (
            self.cache.shares_prefixes
            and leader is not None
            and leader.status is not Status.FINISHED
            and not leader.is_prompt_published
        )

    def _admit(self, sequence: Sequence, width: int) -> bool:
        if not self.table.num_free_seats or self._awaits_leader(sequence):
            return False
        capacity = sequence.max_length + 3 * self.table.max_width
        lease = self.cache.admit(
            sequence.tokens,
            capacity,
            namespace=sequence.request.cache_salt,
            share=not sequence.needs_prompt_rows,
        )
        missing = sequence.num_tokens - 1 - lease.num_stored
        if missing + width > self.cache.num_available:
            self.cache.release(lease, sequence.tokens)
            return False
        self.waiting.remove(sequence)
        self.num_query_tokens += sequence.num_tokens - 1
        self.num_hit_tokens += lease.num_stored
        sequence.lease = lease
        sequence.seat = self.table.seat(sequence.tokens, lease.slots[: lease.num_stored])
        sequence.status = Status.RUNNING
        sequence.num_planned = lease.num_stored
        if not sequence.usage.num_preemptions:
            sequence.usage.num_cached_tokens = lease.num_stored
        insort(self.running, sequence, key=lambda s: s.order)
        return True

    def _chunk(self, sequence: Sequence, budget: int, width: int) -> tuple[int, bool]:
        """(positions to store now, does the root run too)."""
        missing = sequence.num_tokens - 1 - sequence.num_planned
        if missing + width <= budget:
            return missing, True
        return min(missing, budget), False

    def _place(self, plan: StepPlan, sequence: Sequence, count: int, *, has_root: bool) -> bool:
        """Reserve a span's slots, preempting younger sequences for them; False when that must wait
        for a flight to land."""
        needed = count + (plan.width if has_root else 0)
        while needed > self.cache.num_available:
            victim = self._youngest_idle(sequence)
            if victim is None:
                return False
            self.preempt(victim)
        lease = sequence.lease
        assert lease is not None
        context = self.cache.reserve(lease, count) if count else NO_SLOTS
        nodes = self.cache.reserve(lease, plan.width) if has_root else None
        start = sequence.num_planned
        if count:
            self.table.write_slots(sequence.seat, start, context)
            lease.slots[start : start + count] = context  # known before the step lands
        plan.sequences.append(sequence)
        low = sequence.num_tokens - 1
        plan.spans.append(
            Span(
                sequence.seat,
                start,
                count,
                context,
                nodes,
                sequence.needs_prompt_rows,
                lease.slots,
                low,
                low + sequence.num_in_flight_tokens,
            )
        )
        sequence.num_planned = start + count
        sequence.num_in_flight += 1
        if has_root:
            sequence.num_rooted_in_flight += 1
            sequence.num_in_flight_tokens += plan.width
        plan.max_length = max(
            plan.max_length,
            sequence.num_tokens + sequence.num_in_flight_tokens + 1 if has_root else start + count,
        )
        return True

    def _youngest_idle(self, sequence: Sequence) -> Sequence | None:
        """The youngest running sequence that no flight touches, if younger than `sequence`."""
        for candidate in reversed(self.running):
            if candidate is sequence:
                return None
            if candidate.num_in_flight == 0 and candidate.status is Status.RUNNING:
                return candidate
        return None


def _can_grow(sequence: Sequence) -> bool:
    """False when the steps under way are sure to reach the length limit."""
    if sequence.status is not Status.RUNNING:
        return False
    return sequence.num_tokens + sequence.num_rooted_in_flight < sequence.max_length
