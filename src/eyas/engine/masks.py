"""What the automata of a step say of its trees: which nodes are legal, and the mask of each row.

The walk comes before the forward, so nodes that cannot be chosen cost no rows where the host sees the
tree in time; the masks are filled while the forward runs.

Promises: a row without a constraint is all ones. Every row starts zeroed: a node that its automaton
refuses, or whose mask did not come in time, allows nothing and is never walked into; a root's mask is
always waited for, and a few drafts never hold up a step whose forward is done. An automaton that fails
takes its own sequence down and no other.
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

import numpy as np
import psutil
import torch

from eyas.cache.transfer import HostCopy
from eyas.constraint import ConstraintFailure
from eyas.constraint.automaton import Point
from eyas.constraint.drafts import Draft, DraftThreads, Filling
from eyas.constraint.fill import fill_points
from eyas.core import DraftTree
from eyas.engine.prune import Refusals, prune
from eyas.engine.sequence import Sequence, Status
from eyas.wire import GrammarStats

log = logging.getLogger(__name__)

WORTH_A_THREAD = 2**15
"""Words of masks; fewer are filled sooner than a thread wakes."""
MOST_DRAFT_THREADS = 8
"""More bring nothing: the longest draft is what counts, and the interpreter is one."""
FEW = 8
"""One in so many sequences may lose its draft, so that the others need not wait for it."""
FAILED = "the output's grammar hit a resource limit while it was enforced; simplify it"


class MaskThreads:
    """Those of an engine. beside: where the forward keeps the engine's own busy, one that fills masks
    meanwhile; drafts: on a device, those that go through drafts while the engine's waits for them."""

    def __init__(self, device: torch.device) -> None:
        self.beside: ThreadPoolExecutor | None = None
        self.drafts: DraftThreads | None = None
        if device.type == "cpu":
            self.beside = ThreadPoolExecutor(1, "masks")
        else:
            cores = psutil.cpu_count(logical=False) or 1
            self.drafts = DraftThreads(min(MOST_DRAFT_THREADS, cores))

    def close(self) -> None:
        """What is under way ends by itself."""
        for threads in (self.beside, self.drafts):
            if isinstance(threads, DraftThreads):
                threads.close()
            elif threads is not None:
                threads.shutdown(wait=False, cancel_futures=True)


def work_so_far(device: torch.device) -> Callable[[], bool]:
    """Tells whether a device has done what it was given up to now; of the host, nobody knows."""
    if device.type == "cpu":
        return lambda: False
    event = torch.cuda.Event()
    event.record()
    return event.query


@dataclass(slots=True)
class _Walked:
    """One sequence's tree: where each node stands. None in `points`: not legal. draft: its tokens where
    only the root was looked at, and their masks will tell the rest; None where all nodes were."""

    sequence: Sequence
    points: list[Point | None]
    draft: Draft | None = None

    @property
    def lacks(self) -> bool:
        """Has a place without its mask?"""
        return any(point is not None and point.mask is None for point in self.points)

    def legal(self, size: int) -> list[bool]:
        """By node; what was not looked at is not refused."""
        if self.draft is None:
            return [point is not None for point in self.points]
        num = 1 + self.draft.num_legal if self.draft.is_filled else size
        return [node < num for node in range(size)]


@dataclass(slots=True, eq=False)
class TreeMasks:
    """The automata of one step. walked[b] is None for a sequence that is not constrained (or has
    ended: `silent`). refusals: complete once the masks are there."""

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
    _filled: Future[np.ndarray] | None = None
    _is_late: Callable[[], bool] = field(default=lambda: False)
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
        """It is under way from here on; once it is done, few drafts are worth waiting for."""
        self._is_late = work_so_far(self.tree.tokens_BW.device)

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
                root = sequence.constraint.root
                tokens = tuple(self._tokens[b][1 : self._sizes[b]])
                draft = Draft(root, tokens, b * self.tree.width, sequence.constraint.has_twins)
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
            self._fail(b, sequence)
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
        """Start filling beside the forward, where there is a thread and enough to do; else it is done
        when the masks are asked for."""
        num_words = self._num_rows * -(-self.vocab_size // 32)
        if self.threads.beside is not None and num_words > WORTH_A_THREAD:
            self._filled = self.threads.beside.submit(self._fill)

    def finish(self) -> np.ndarray:
        """[R, K] int32."""
        return self._fill() if self._filled is None else self._filled.result()

    def _fill(self) -> np.ndarray:
        started = time.perf_counter()
        mask_RK = np.zeros((self._num_rows, -(-self.vocab_size // 32)), dtype=np.int32)
        is_grid = not self.walks_ahead
        firsts, first = [], 0
        for b, size in enumerate(self._sizes):
            firsts.append(first)
            if self.walked[b] is None and b not in self.silent:
                mask_RK[first : first + size] = -1
            first += self.tree.width if is_grid else size
        roots, later = [], []
        for b, each in enumerate(self.walked):
            if each is not None:
                nodes = enumerate(each.points)
                places = [(firsts[b] + node, point) for node, point in nodes if point is not None]
                roots += places[:1]
                later += places[1:]
        self._fill_points(roots, mask_RK, None)
        for b, each in enumerate(self.walked):
            if each is not None and each.points[0] is not None and each.points[0].mask is None:
                self._retry(b, each, mask_RK, firsts[b])
        deadline = started + self.deadline_seconds
        drafts = self._begin_drafts(mask_RK)
        self._fill_points(later, mask_RK, deadline)
        if time.perf_counter() > deadline:
            self.stats.num_late += sum(each is not None and each.lacks for each in self.walked)
        self._wait(drafts, deadline)
        if is_grid:
            self._refuse()
        self.stats.mask_seconds += time.perf_counter() - started
        return mask_RK

    def _begin_drafts(self, mask_RK: np.ndarray) -> Filling:
        """Go through drafts that nobody has walked through, where their roots have masks."""
        drafts = [each.draft for each in self.walked if each is not None and each.draft is not None]
        ready = (draft for draft in drafts if draft.point.mask is not None)
        return Filling(ready, mask_RK, self.threads.drafts)

    def _wait(self, drafts: Filling, deadline: float) -> None:
        """For all of them, or for most of them once the forward is done."""
        num = sum(each is not None for each in self.walked)
        drafts.wait(deadline, lambda missing: missing * FEW <= num and self._is_late())
        self.stats.num_masks += drafts.num_masks
        self.stats.num_late += drafts.num_late

    def _fill_points(
        self, places: list[tuple[int, Point]], mask_RK: np.ndarray, deadline: float | None
    ) -> None:
        """Rows of points, in order, until the deadline."""
        points = (point for _, point in places)
        self.stats.num_masks += fill_points(points, mask_RK.shape[1], deadline)
        for row, point in places:
            if point.mask is not None:
                mask_RK[row] = point.mask

    def _retry(self, b: int, each: _Walked, mask_RK: np.ndarray, row: int) -> None:
        """A root without a mask hit a limit: once more in a fresh automaton."""
        automaton = each.sequence.constraint
        assert automaton is not None
        try:
            automaton.replay()
            self.stats.num_replays += 1
        except Exception:
            self._fail(b, each.sequence)
        else:
            self._fill_points([(row, automaton.root)], mask_RK, None)
            if automaton.root.mask is None:
                self._fail(b, each.sequence)
        if each.sequence.failure is not None:
            self.walked[b] = None
            self.silent.add(b)

    def _fail(self, b: int, sequence: Sequence) -> None:
        log.warning("an output grammar failed; its request ends", exc_info=log.isEnabledFor(10))
        sequence.failure = FAILED
        self.silent.add(b)


def advance(sequence: Sequence, tokens: list[int], stats: GrammarStats) -> None:
    """Move a sequence's automaton over chosen tokens; what cannot go on fails the sequence later."""
    automaton = sequence.constraint
    if automaton is None:
        return
    before = automaton.num_replays
    try:
        automaton.advance(tokens)
    except ConstraintFailure:
        sequence.failure = FAILED
    stats.num_replays += automaton.num_replays - before
