"""The scheduler: which sequences run in the next step, with how many rows, in which cache slots.

Promises: there are no prefill and decode phases. A sequence has context positions to store and a root
to extend, and a step takes some of both. Older sequences come first; seats (rows of the sequence table)
go to the client that holds fewest. When slots run out, the youngest sequence is preempted and
recomputed later, so the oldest always finishes; if the slots do not suffice for the oldest one's tree,
it runs without a tree. Ranks with slots of their own are treated one by one. Lengths that a step in
flight may still change are planned from upper bounds, and slots become free only when no flight can
write to them.
Does not know: models, how trees are grown, what tokens mean.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from eyas.cache import CacheManager, SlotsExhausted
from eyas.cache.lease import Lease
from eyas.draft import TreeShape
from eyas.engine.sequence import Sequence, Status
from eyas.engine.step_time import MIN_PROMPT_ROWS, StepTime
from eyas.engine.waiting import WaitingQueue
from eyas.runner.batch import Span, num_context_rows
from eyas.runner.table import SequenceTable


@dataclass(slots=True, eq=False)
class StepPlan:
    """The plan of one step: sequences[i] owns spans[i].

    max_length: upper bound of the length of any sequence once the step has landed. shape: the largest
    tree; each sequence with a root has slots for that many nodes. rooted: the sequences whose spans
    have a root, in order.
    """

    shape: TreeShape
    max_length: int = 1
    sequences: list[Sequence] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    rooted: list[Sequence] = field(default_factory=list)

    @property
    def width(self) -> int:
        """Most nodes of a tree."""
        return self.shape.width

    @property
    def num_prompt_rows(self) -> int:
        """Rows of prompt chunks."""
        return num_context_rows(self.spans)


class Scheduler:
    """Plans steps: `add` a sequence, plan with `next`, `retire` a sequence that has finished.

    max_batch_tokens: most rows of a step.
    preferred_shape: returns the tree shape that the drafter prefers for a step
    (`Drafter.preferred_shape`). step_seconds: how long a step may take while sequences decode; None is
    any time.
    num_query_tokens, num_hit_tokens: tokens looked up in the prefix cache, and found there.
    """

    def __init__(
        self,
        cache: CacheManager,
        table: SequenceTable,
        *,
        max_batch_tokens: int,
        preferred_shape: Callable[[int, int, int], TreeShape],
        step_seconds: float | None,
    ) -> None:
        self.cache = cache
        self.table = table
        self.max_batch_tokens = max_batch_tokens
        self.preferred_shape = preferred_shape
        self.step_time = StepTime(step_seconds)
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.num_query_tokens = 0
        self.num_hit_tokens = 0
        self._is_cramped = False

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait for a seat."""
        self.waiting.add(sequence)

    def next(self) -> StepPlan | None:
        """Plan a step and reserve its slots. Returns None if nothing can run before a flight lands.

        Where slots do not suffice for a tree, and no flight will give any back, roots run alone: how
        long a sequence gets does not depend on what drafts.
        """
        plan = self._plan(most_nodes=1 if self._is_cramped else self.table.max_width)
        if not plan.spans and not any(sequence.num_in_flight for sequence in self.running):
            plan = self._plan(most_nodes=1)
        if self.cache.windows is not None:
            self.table.write_window_slots(*self.cache.windows.take_changes())
        return plan if plan.spans else None

    def _plan(self, most_nodes: int) -> StepPlan:
        """Plan a step with trees of up to `most_nodes` nodes."""
        stepping: list[Sequence] = []
        storing: list[Sequence] = []
        for sequence in self.running:
            if sequence.is_storing_context:
                storing.append(sequence)
            elif _can_grow(sequence):
                stepping.append(sequence)
        most_rows = self.max_batch_tokens
        if stepping:
            most_rows = self.step_time.most_rows(most_rows)
        plan = StepPlan(self._shape(stepping, storing, most_rows, most_nodes))
        budget, starved = self._add_running(plan, stepping, storing, most_rows)
        self._add_waiting(plan, budget, starved)
        in_flight = {_rank(sequence) for sequence in self.running if sequence.num_in_flight}
        self._is_cramped = not in_flight.issuperset(starved)
        return plan

    def _shape(
        self, stepping: list[Sequence], storing: list[Sequence], most_rows: int, most_nodes: int
    ) -> TreeShape:
        """Return the preferred tree shape of the sequences that decode, cut to the rows of a step and
        to the nodes that their requests allow.

        storing: sequences with prompt chunks to store. If there are any, or if sequences wait, trees
        get three quarters of the step's rows. most_rows: of the step. most_nodes: of a tree.
        """
        num_stepping = len(stepping)
        num_constrained = sum(s.automaton is not None for s in self.running)
        num_prompt_rows = sum(s.num_tokens - 1 - s.num_planned for s in storing)
        next_in_turn = islice(self.waiting.in_turn(self.running), self.table.num_seats)
        for i, sequence in enumerate(next_in_turn):
            num_constrained += sequence.automaton is not None
            if i < self.table.num_free_seats:
                num_prompt_rows += sequence.num_tokens - 1
        num_prompt_rows = min(num_prompt_rows, max(0, most_rows - num_stepping))
        preferred_shape = self.preferred_shape(num_stepping, num_constrained, num_prompt_rows)
        num_rows = self.max_batch_tokens
        if storing or self.waiting:
            num_rows = num_rows * 3 // 4
        width = min(most_nodes, num_rows // max(1, num_stepping))
        limits = [sequence.request.max_draft_nodes for sequence in stepping]
        if limits and None not in limits:
            width = min(width, max(limit for limit in limits if limit is not None))
        return preferred_shape.within(max(1, width))

    def _add_running(
        self,
        plan: StepPlan,
        stepping: list[Sequence],
        storing: list[Sequence],
        most_rows: int,
    ) -> tuple[int, Collection[int]]:
        """Add the running sequences to a plan: those whose context is stored, then the others.

        most_rows: of the step, so that it does not take too long.

        Returns the number of rows that are left for waiting sequences, and the ranks whose slots have
        run out.
        """
        budget, width = self.max_batch_tokens, plan.width
        starved: dict[int, int] = {}  # rank: order of the oldest sequence that found no slots there
        for sequence in stepping:
            if sequence.status is not Status.RUNNING or budget < width:
                continue  # it was preempted for slots of another one, or no rows are left
            if starved and _rank(sequence) in starved:
                continue  # slots go to the older sequence first
            if not self._add_span(plan, sequence, 0, has_root=True):
                starved[_rank(sequence)] = sequence.order
                continue
            budget -= width
        # Prompts get some rows however many sequences decode.
        budget = min(budget, max(MIN_PROMPT_ROWS, budget - (self.max_batch_tokens - most_rows)))
        for sequence in storing:
            if sequence.status is not Status.RUNNING or budget <= 0:
                continue
            rank = _rank(sequence)
            if sequence.order > starved.get(rank, sequence.order):
                continue
            count, has_root = self._chunk(sequence, budget, width)
            if not self._add_span(plan, sequence, count, has_root=has_root):
                starved[rank] = min(starved.get(rank, sequence.order), sequence.order)
                continue
            budget -= count + width * has_root
        return budget, starved.keys()

    def _add_waiting(self, plan: StepPlan, budget: int, starved: Collection[int]) -> None:
        """Admit waiting sequences and add them to a plan, as far as rows, seats and slots suffice.

        starved: ranks whose slots have run out.
        """
        for sequence in self.waiting.in_turn(list(self.running)):
            if budget <= 0 or len(starved) == self.cache.num_ranks:
                break
            if self._awaits_leader(sequence):
                continue  # it is admitted once it can share the prompt
            if not self._admit(sequence, plan.width, starved):
                break
            count, has_root = self._chunk(sequence, budget, plan.width)
            is_needed = bool(count or has_root)
            if is_needed and not self._add_span(plan, sequence, count, has_root=has_root):
                break
            budget -= count + plan.width * has_root

    def learn(self, plan: StepPlan, seconds: float) -> None:
        """A step has landed. seconds: from the landing of the step before."""
        self.step_time.learn(plan.num_prompt_rows, len(plan.rooted) * plan.width, seconds)

    def retire(self, sequence: Sequence) -> None:
        """Take out a finished sequence. Its slots stay reserved while a flight can write to them:
        `retire` is called again when the flight lands."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence.lease is not None and sequence.num_in_flight == 0:
            self._release(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's seat and slots away; it waits, and is recomputed in its turn."""
        assert sequence.num_in_flight == 0 and sequence.status is Status.RUNNING
        self._release(sequence)
        sequence.status = Status.WAITING
        sequence.num_planned = 0
        sequence.usage.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.add(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Give back a sequence's slots and seat; its stored tokens stay as a shared prefix."""
        lease = sequence.lease
        assert lease is not None
        self._save_state(sequence, lease)
        self.cache.release(lease, sequence.tokens)
        self.table.unseat(sequence.seat)
        sequence.lease, sequence.seat = None, -1
        self.running.remove(sequence)

    def _save_state(self, sequence: Sequence, lease: Lease) -> None:
        """Take a snapshot of the state with which a sequence leaves its seat, where layers have one, so
        that its text can be continued.

        The state is that of the root of the last forward pass. It is of no use if it holds tokens that
        were dropped after a stop.
        """
        position = sequence.state_position
        if self.table.states is None or not 0 < position <= min(
            lease.num_stored, sequence.num_tokens
        ):
            return
        snapshot = self.cache.reserve_snapshot(lease, position)
        if snapshot is not None:
            self.table.save_state(sequence.seat, snapshot)
            self.cache.commit_snapshot(lease, position, is_kept=True)

    def _awaits_leader(self, sequence: Sequence) -> bool:
        """Whether another choice of the same request is still storing the shared prompt."""
        leader = sequence.leader
        return (
            self.cache.shares_prefixes
            and leader is not None
            and leader.status is not Status.FINISHED
            and not leader.is_prompt_published
        )

    def _admit(self, sequence: Sequence, width: int, starved: Collection[int]) -> bool:
        """Give a waiting sequence a seat and a lease, with its longest stored prefix. Returns False if
        there is no seat, or fewer slots than its context and one tree need, or none of its rank."""
        if not self.table.num_free_seats:
            return False
        capacity = sequence.max_length + 3 * self.table.max_width
        lease = self.cache.admit(
            sequence.tokens,
            capacity,
            namespace=sequence.request.cache_salt,
            share=not sequence.needs_prompt_rows,
        )
        missing = sequence.num_tokens - 1 - lease.num_stored
        has_room = self.cache.has_room(lease, missing + width, self.max_batch_tokens)
        if lease.rank in starved or not has_room:
            self.cache.release(lease, sequence.tokens)
            return False
        self.waiting.remove(sequence)
        self.num_query_tokens += sequence.num_tokens - 1
        self.num_hit_tokens += lease.num_stored
        sequence.lease = lease
        stored_slots = lease.slots[: lease.num_stored]
        sequence.seat = self.table.seat(sequence.tokens, stored_slots, lease.snapshot)
        sequence.status = Status.RUNNING
        sequence.num_planned = sequence.state_position = lease.num_stored
        sequence.num_on_device = sequence.num_tokens
        if not sequence.usage.num_preemptions:
            sequence.usage.num_cached_tokens = lease.num_stored
            sequence.usage.queue_seconds = time.perf_counter() - sequence.added_at
        insort(self.running, sequence, key=lambda s: s.order)
        return True

    def _chunk(self, sequence: Sequence, budget: int, width: int) -> tuple[int, bool]:
        """Return the number of context positions to store now, and whether the root runs too."""
        missing = sequence.num_tokens - 1 - sequence.num_planned
        lease = sequence.lease
        if lease is not None and sequence.num_planned < lease.boundary < sequence.num_tokens - 1:
            return min(lease.boundary - sequence.num_planned, budget), False
        if missing + width <= budget:
            return missing, True
        return min(missing, budget), False

    def _add_span(self, plan: StepPlan, sequence: Sequence, count: int, *, has_root: bool) -> bool:
        """Reserve the slots of a span and add it to the plan, preempting younger sequences for slots.

        Returns False if the slots are not free before a flight lands.
        """
        width = plan.shape.width if has_root else 0
        lease = sequence.lease
        assert lease is not None
        reserved = self._reserve(sequence, lease, count + width)
        if reserved is None:
            return False
        context, nodes = reserved[:count], reserved[count:] if has_root else None
        start = sequence.num_planned
        if count:
            self.table.write_slots(sequence.seat, start, context)
            lease.slots[start : start + count] = context  # drafters read them before the step lands
        snapshot = None
        if count and start + count in (lease.boundary, sequence.num_prompt_tokens - 1):
            snapshot = self.cache.reserve_snapshot(lease, start + count)
        plan.sequences.append(sequence)
        num_tokens = sequence.num_tokens
        root = num_tokens - 1
        plan.spans.append(
            Span(
                seat=sequence.seat,
                context_start=start,
                context_count=count,
                context_slots=context,
                node_slots=nodes,
                reserved=reserved,
                wants_context_logits=sequence.needs_prompt_rows,
                stored_slots=lease.slots,
                root_low=root,
                root_high=root + sequence.num_in_flight_tokens,
                snapshot=snapshot,
                rank=lease.rank,
            )
        )
        sequence.num_planned = length = start + count
        sequence.num_in_flight += 1
        if has_root:
            plan.rooted.append(sequence)
            sequence.num_rooted_in_flight += 1
            sequence.num_in_flight_tokens += width
            length = num_tokens + sequence.num_in_flight_tokens + 1
        plan.max_length = max(plan.max_length, length)
        return True

    def _reserve(self, sequence: Sequence, lease: Lease, count: int) -> np.ndarray | None:
        """Reserve slots, preempting younger sequences if needed. None if there are too few before a
        flight lands."""
        while True:
            try:
                return self.cache.reserve(lease, count)
            except SlotsExhausted:
                victim = self._youngest_idle(sequence)
                if victim is None:
                    return None
                self.preempt(victim)

    def _youngest_idle(self, sequence: Sequence) -> Sequence | None:
        """Return the youngest running sequence without a flight on the same rank, if it is younger than
        `sequence`."""
        for candidate in reversed(self.running):
            if candidate is sequence:
                return None
            is_idle = candidate.num_in_flight == 0 and candidate.status is Status.RUNNING
            if is_idle and _rank(candidate) == _rank(sequence):
                return candidate
        return None


def _rank(sequence: Sequence) -> int:
    """Return the rank that has a running sequence's slots."""
    assert sequence.lease is not None
    return sequence.lease.rank


def _can_grow(sequence: Sequence) -> bool:
    """Whether the sequence may still be below its length limit when all its flights have landed.

    Each flight with a root adds at least one token.
    """
    if sequence.status is not Status.RUNNING:
        return False
    return sequence.num_tokens + sequence.num_rooted_in_flight < sequence.max_length
