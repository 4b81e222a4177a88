"""What the automata of a step say of its trees: which nodes are legal, and the mask of each row.

The walk comes before the forward where the host sees the tree in time, so that nodes which cannot be
chosen cost no rows; masks are filled while the forward runs.

Promises: a row without a constraint is all ones. Every row starts zeroed: a node that its automaton
refuses, or whose mask did not come in time, allows nothing and is never walked into; a root's mask is
always waited for. A sequence for whose draft others had to wait looks less far ahead the next time. An
automaton that fails takes its own sequence down and no other.
Does not know: what the automata recognise.

Legend: B rooted sequences, W nodes, R node rows, N points, K 32-bit mask words.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Series
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch

from eyas.cache.transfer import HostCopy, reachable
from eyas.constraint import ConstraintFailure
from eyas.constraint.automaton import Point
from eyas.constraint.drafts import Draft, Filling
from eyas.constraint.fill import fill_points, fill_states
from eyas.core import DraftTree
from eyas.engine.prune import Refusals, prune
from eyas.engine.sequence import Sequence, Status
from eyas.wire import GrammarStats

log = logging.getLogger(__name__)

WORTH_A_THREAD = 2**15
"""Words of masks; fewer are filled sooner than a thread wakes."""
WAIT_SECONDS, WAIT_SHARE = 0.0005, 0.1
"""How long a step may wait for masks, beside that share of its forward, before anybody is late."""
FAILED = "the output's grammar hit a resource limit while it was enforced; simplify it"


class MaskThreads:
    """Those of an engine. points: one that fills masks of points; drafts: on a device, one that fills
    those of drafts."""

    def __init__(self, device: torch.device) -> None:
        self.points = ThreadPoolExecutor(1, "points")
        self.drafts = None if device.type == "cpu" else ThreadPoolExecutor(1, "drafts")

    def close(self) -> None:
        """What is under way ends by itself."""
        for thread in (self.points, self.drafts):
            if thread is not None:
                thread.shutdown(wait=False, cancel_futures=True)


def work_so_far(device: torch.device) -> Callable[[], bool]:
    """Tells whether a device has done what it was given up to now; of the host, nobody knows."""
    if device.type == "cpu":
        return lambda: False
    event = torch.cuda.Event()
    event.record()
    return event.query


@dataclass(slots=True, eq=False)
class _Walked:
    """One sequence's tree: where each node stands. None in `points`: not legal. draft: its tokens where
    only the root was looked at, and their masks will tell the rest; None where all nodes were."""

    sequence: Sequence
    points: list[Point | None]
    draft: Draft | None = None

    @property
    def has_root(self) -> bool:
        """Has the root its mask?"""
        if self.draft is not None:
            return self.draft.num_masks > 0
        root = self.points[0]
        return root is not None and root.mask is not None

    @property
    def lacks(self) -> bool:
        """Has a place that was walked to, behind the root, no mask yet?"""
        if self.draft is not None:
            return False
        return any(point is not None and point.mask is None for point in self.points[1:])

    def legal(self, size: int) -> list[bool]:
        """By node; what was not looked at is not refused."""
        if self.draft is None:
            return [point is not None for point in self.points]
        draft = self.draft
        is_refused = not draft.is_late and draft.num_legal < len(draft.tokens)
        num = 1 + draft.num_legal if is_refused else size
        return [node < num for node in range(size)]


@dataclass(slots=True, eq=False)
class TreeMasks:
    """The automata of one step. walked[b] is None for a sequence that is not constrained (or has
    ended: `silent`). refusals: complete once the masks are there. deadline_seconds: after so long the
    rest of a step's drafts is left out."""

    tree: DraftTree
    vocab_size: int
    deadline_seconds: float
    stats: GrammarStats
    threads: MaskThreads
    walked: list[_Walked | None] = field(default_factory=list)
    silent: set[int] = field(default_factory=set)
    refusals: Refusals = field(default_factory=Refusals)
    _tokens: list[list[int]] = field(default_factory=list)
    _parents: list[list[int]] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _num_rows: int = 0
    has_begun: bool = False
    _begun_at: float = 0.0
    _late_at: float | None = None
    _is_forward_done: Callable[[], bool] = field(default=lambda: False)
    _mask: torch.Tensor | None = None
    _filling: Filling | None = None
    _points: Future[int] | None = None
    _host: HostCopy = field(init=False)

    def __post_init__(self) -> None:
        tree = self.tree
        self._host = HostCopy(
            {"tokens": tree.tokens_BW, "parents": tree.parents_BW, "sizes": tree.sizes_B}
        )

    @property
    def walks_ahead(self) -> bool:
        """Trees are walked before the forward, and lose what is refused; on a device they are only
        known once it has started."""
        return self.tree.tokens_BW.device.type == "cpu"

    def watch_forward(self) -> None:
        """It is under way from here on."""
        self._is_forward_done = work_so_far(self.tree.tokens_BW.device)

    def walk(self, rooted: Series[Sequence]) -> None:
        """Follow every constrained sequence's draft, where it can lose nodes or is no chain."""
        host = self._host.read()
        self._tokens, self._parents = host["tokens"].tolist(), host["parents"].tolist()
        self._sizes = host["sizes"].tolist()[: len(rooted)]
        for b, sequence in enumerate(rooted):
            self.walked.append(None)
            if sequence.constraint is None:
                continue
            if sequence.status is not Status.RUNNING or sequence.failure is not None:
                self.silent.add(b)
                continue
            if not self.walks_ahead and self.tree.is_chain and not sequence.constraint.has_budget:
                root, reach = sequence.constraint.root, sequence.constraint.reach
                tokens = tuple(self._tokens[b][1 : self._sizes[b]][:reach])
                row, keeps = b * self.tree.width, sequence.constraint.has_twins
                draft = Draft(root, tokens, row, keeps)
                self.walked[b] = _Walked(sequence, [root], draft)
            else:
                self._walk(b, sequence)
        if self.walks_ahead:
            self._refuse()
        self._num_rows = sum(self._sizes) if self.walks_ahead else self.tree.tokens_BW.numel()

    def _walk(self, b: int, sequence: Sequence) -> None:
        automaton, size = sequence.constraint, self._sizes[b]
        assert automaton is not None
        try:
            points = automaton.walk(self._tokens[b][:size], self._parents[b][:size])
        except Exception:
            self._fail(sequence)
            self.silent.add(b)
        else:
            self.walked[b] = _Walked(sequence, points)

    def _refuse(self) -> None:
        """Say what is not legal, and leave it out of the tree where the forward is still to come."""
        legal = [
            None if each is None else each.legal(size)
            for each, size in zip(self.walked, self._sizes, strict=True)
        ]
        asked = (self.tree, self._tokens, self._parents, self._sizes, legal)
        self.tree, found = prune(*asked, prunes=self.walks_ahead)
        refusals = self.refusals  # the step's flight may hold it already
        refusals.num_nodes, refusals.below = found.num_nodes, found.below
        refusals.illegal = found.illegal
        self.stats.num_pruned += found.num_nodes
        if self.walks_ahead:
            for each in self.walked:
                if each is not None:
                    each.points = [point for point in each.points if point is not None]
            self._sizes = self.tree.sizes_B.tolist() if found.num_nodes else self._sizes

    def begin(self) -> None:
        """Start filling, once every tree is walked. Points are filled beside this thread where there is
        enough to do, else when the masks are asked for."""
        self.has_begun, self._begun_at = True, time.perf_counter()
        num_words = -(-self.vocab_size // 32)
        self._mask = reachable((self._num_rows, num_words), self.tree.tokens_BW.device)
        mask_RK = self._mask.numpy()
        self._fill_others(mask_RK)
        live = self._live()
        drafts = [each.draft for _, each in live if each.draft is not None]
        self._filling = Filling(drafts, mask_RK, self.threads.drafts)
        if len(drafts) < len(live) and self._num_rows * num_words > WORTH_A_THREAD:
            self._points = self.threads.points.submit(self._fill_points)

    def finish(self) -> torch.Tensor:
        """[R, K] int32, on the host."""
        assert self._mask is not None and self._filling is not None
        mask, deadline = self._mask, self._begun_at + self.deadline_seconds
        num = self._fill_points() if self._points is None else self._points.result()
        if not self._filling.wait(deadline, self._is_late):
            mask = self._roots_alone(mask)
        self._learn()
        mask_RK = mask.numpy()
        if time.perf_counter() > deadline:
            self.stats.num_late += sum(each.lacks for _, each in self._live())
        for row, each in self._live():
            if not each.has_root and each.sequence.status is Status.RUNNING:  # else nobody asks
                self._retry(each, mask_RK, row)
        if not self.walks_ahead:
            self._refuse()
        self.stats.num_masks += num + self._filling.num_masks
        self.stats.mask_seconds += self._filling.seconds
        return mask

    def _is_late(self) -> bool:
        """Has the step waited for long, compared with its forward?"""
        now = time.perf_counter()
        if self._late_at is None:
            if not self._is_forward_done():
                return False
            self._late_at = now + WAIT_SECONDS + WAIT_SHARE * (now - self._begun_at)
        return now > self._late_at

    def _roots_alone(self, unfinished: torch.Tensor) -> torch.Tensor:
        """Masks where the thread that fills drafts does not write any more: of drafts that are late
        only the roots."""
        mask = reachable(tuple(unfinished.shape), self.tree.tokens_BW.device)
        mask_RK = mask.numpy()
        mask_RK[:] = unfinished.numpy()
        drafts = [each.draft for _, each in self._live() if each.draft is not None]
        late = [draft for draft in drafts if draft.is_late]
        for draft in late:
            draft.rows(mask_RK)[:] = 0
        states, rows = [draft.point.state for draft in late], [draft.row for draft in late]
        failed = fill_states(states, mask_RK, rows)
        for i, draft in enumerate(late):
            draft.num_masks = i not in failed
        self.stats.num_masks += len(late) - len(failed)
        self.stats.num_late += sum(bool(draft.tokens) for draft in late)
        return mask

    def _learn(self) -> None:
        """A sequence whose draft was late looks no further ahead the next time than it had come, and
        then again further and further."""
        for _, each in self._live():
            automaton, draft = each.sequence.constraint, each.draft
            assert automaton is not None
            if draft is None or not draft.tokens:
                continue
            if draft.num_early is not None:
                automaton.reach = max(1, draft.num_early - 1)
            elif automaton.reach is not None:
                is_whole = automaton.reach >= self.tree.width - 1
                automaton.reach = None if is_whole else automaton.reach + 1

    def _live(self) -> list[tuple[int, _Walked]]:
        """Those whose automata have a say, with the rows of their roots."""
        sizes = self._sizes if self.walks_ahead else [self.tree.width] * len(self._sizes)
        firsts = accumulate(sizes, initial=0)
        return [(row, each) for row, each in zip(firsts, self.walked, strict=False) if each]

    def _fill_others(self, mask_RK: np.ndarray) -> None:
        """All rows but those that drafts will fill: ones where nobody has a say, else zeros."""
        row = 0
        for b, size in enumerate(self._sizes):
            each, width = self.walked[b], size if self.walks_ahead else self.tree.width
            is_free = each is None and b not in self.silent
            num_filled = 0 if each is None or each.draft is None else 1 + len(each.draft.tokens)
            mask_RK[row + num_filled : row + width] = 0
            if is_free:
                mask_RK[row : row + size] = -1
            row += width
        mask_RK[row:] = 0

    def _fill_points(self) -> int:
        """Rows of sequences that were walked, roots first; the number of masks."""
        assert self._mask is not None
        begin = time.perf_counter()
        mask_RK, deadline = self._mask.numpy(), self._begun_at + self.deadline_seconds
        roots, later = [], []
        for row, each in self._live():
            if each.draft is None:
                nodes = enumerate(each.points)
                places = [(row + node, point) for node, point in nodes if point is not None]
                roots += places[:1]
                later += places[1:]
        num = _fill_points(roots, mask_RK, None)
        num += _fill_points(later, mask_RK, deadline)
        self.stats.mask_seconds += time.perf_counter() - begin
        return num

    def _retry(self, each: _Walked, mask_RK: np.ndarray, row: int) -> None:
        """A root without a mask hit a limit: once more in a fresh automaton."""
        automaton = each.sequence.constraint
        assert automaton is not None
        try:
            automaton.replay()
            self.stats.num_replays += 1
        except Exception:
            self._fail(each.sequence)
        else:
            self.stats.num_masks += _fill_points([(row, automaton.root)], mask_RK, None)
            if automaton.root.mask is None:
                self._fail(each.sequence)
        if each.sequence.failure is not None:
            b = self.walked.index(each)
            self.walked[b] = None
            self.silent.add(b)

    def _fail(self, sequence: Sequence) -> None:
        log.warning("an output grammar failed; its request ends", exc_info=log.isEnabledFor(10))
        sequence.failure = FAILED


def _fill_points(
    places: list[tuple[int, Point]], mask_RK: np.ndarray, deadline: float | None
) -> int:
    """Rows of points, in order, until the deadline; the number of masks made."""
    num = fill_points((point for _, point in places), mask_RK.shape[1], deadline)
    for row, point in places:
        if point.mask is not None:
            mask_RK[row] = point.mask
    return num


def advance(sequence: Sequence, tokens: list[int], stats: GrammarStats) -> bool:
    """Move a sequence's automaton over chosen tokens; can it go on?"""
    automaton = sequence.constraint
    if automaton is None:
        return True
    before = automaton.num_replays
    try:
        automaton.advance(tokens)
    except ConstraintFailure:
        return False
    finally:
        stats.num_replays += automaton.num_replays - before
    return True
