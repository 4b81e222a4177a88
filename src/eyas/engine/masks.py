"""What the automata of a step say of its trees: which nodes are legal, and the mask of each row.

The walk comes before the forward where the host sees the tree in time, so that nodes which cannot be
chosen cost no rows; masks are filled while the forward runs.

Promises: a row without a constraint is all ones. Every row starts zeroed: a node that its automaton
refuses, or whose mask did not come in time, allows nothing and is never walked into; a root's mask is
always waited for. An automaton that fails takes its own sequence down and no other.
Does not know: what the automata recognise.

Legend: B rooted sequences, W nodes, R node rows, N points, K 32-bit mask words.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Series
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import torch

from eyas.cache.transfer import HostCopy, blank
from eyas.constraint import ConstraintFailure
from eyas.constraint.automaton import Point
from eyas.constraint.fill import Draft, fill_drafts, fill_points
from eyas.core import DraftTree
from eyas.engine.prune import Refusals, prune
from eyas.engine.sequence import Sequence, Status
from eyas.wire import GrammarStats

log = logging.getLogger(__name__)

WORTH_A_THREAD = 2**15
"""Words of masks; fewer are filled sooner than a thread wakes."""
FAILED = "the output's grammar hit a resource limit while it was enforced; simplify it"


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
        root = self.points[0]
        return (
            root is not None and root.mask is not None
            if self.draft is None
            else self.draft.has_root
        )

    @property
    def lacks(self) -> bool:
        """Has a place behind its root no mask yet?"""
        if self.draft is not None:
            return bool(self.draft.tokens) and not self.draft.is_filled
        return any(point is not None and point.mask is None for point in self.points[1:])

    def legal(self, size: int) -> list[bool]:
        """By node; what was not looked at is not refused."""
        if self.draft is None:
            return [point is not None for point in self.points]
        num = 1 + self.draft.num_legal if self.draft.is_filled else size
        return [node < num for node in range(size)]


@dataclass(frozen=True, slots=True)
class _Filled:
    """mask: [R, K] on the host; num_masks: made for it; seconds: it took."""

    mask: torch.Tensor
    num_masks: int
    seconds: float


@dataclass(slots=True, eq=False)
class TreeMasks:
    """The automata of one step. walked[b] is None for a sequence that is not constrained (or has
    ended: `silent`). refusals: complete once the masks are there. deadline_seconds: after so long the
    rest of a step's drafts is left out. thread: fills masks beside the one that runs the engine."""

    tree: DraftTree
    vocab_size: int
    deadline_seconds: float
    stats: GrammarStats
    thread: ThreadPoolExecutor
    walked: list[_Walked | None] = field(default_factory=list)
    silent: set[int] = field(default_factory=set)
    refusals: Refusals = field(default_factory=Refusals)
    _tokens: list[list[int]] = field(default_factory=list)
    _parents: list[list[int]] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _num_rows: int = 0
    _filled: Future[_Filled] | None = None
    _begun_at: float = 0.0
    has_begun: bool = False
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
        """Start filling, once every tree is walked: beside this thread, where there is enough to do;
        else it is done when the masks are asked for."""
        self.has_begun, self._begun_at = True, time.perf_counter()
        if self._num_rows * -(-self.vocab_size // 32) > WORTH_A_THREAD:
            self._filled = self.thread.submit(self._fill, self._live())

    def finish(self) -> torch.Tensor:
        """[R, K] int32, on the host."""
        filled = self._fill(self._live()) if self._filled is None else self._wait(self._filled)
        if time.perf_counter() - self._begun_at > self.deadline_seconds:
            self.stats.num_late += sum(each.has_root and each.lacks for _, each in self._live())
        mask_RK = filled.mask.numpy()
        for row, each in self._live():
            if not each.has_root:
                self._retry(each, mask_RK, row)
        if not self.walks_ahead:
            self._refuse()
        self.stats.num_masks += filled.num_masks
        self.stats.mask_seconds += filled.seconds
        return filled.mask

    def _wait(self, filled: Future[_Filled]) -> _Filled:
        """For all masks, or, after the deadline, for those of roots and what else there is. What the
        thread writes later nobody reads."""
        seconds = self._begun_at + self.deadline_seconds - time.perf_counter()
        try:
            return filled.result(max(0.0, seconds))
        except TimeoutError:
            filled.cancel()
        for _, each in self._live():
            if each.draft is not None:  # the thread has the other one
                each.draft = replace(each.draft, has_root=False, is_filled=False)
        return self._fill(self._live(), has_drafts=False)

    def _live(self) -> list[tuple[int, _Walked]]:
        """Those whose automata have a say, with the rows of their roots."""
        sizes = self._sizes if self.walks_ahead else [self.tree.width] * len(self._sizes)
        firsts = accumulate(sizes, initial=0)
        return [(row, each) for row, each in zip(firsts, self.walked, strict=False) if each]

    def _fill(self, live: list[tuple[int, _Walked]], *, has_drafts: bool = True) -> _Filled:
        """has_drafts: no is all roots, and of drafts only what is there."""
        started = time.perf_counter()
        mask = self._unconstrained()
        mask_RK = mask.numpy()
        drafts = [each.draft for _, each in live if each.draft is not None]
        roots, later = [], []
        for row, each in live:
            if each.draft is None:
                nodes = enumerate(each.points)
                places = [(row + node, point) for node, point in nodes if point is not None]
                roots += places[:1]
                later += places[1:]
        num = fill_drafts(drafts, mask_RK) if has_drafts else _fill_roots(drafts, mask_RK)
        num += _fill_points(roots, mask_RK, None)
        deadline = started + (self.deadline_seconds if has_drafts else 0)
        num += _fill_points(later, mask_RK, deadline)
        return _Filled(mask, num, time.perf_counter() - started)

    def _unconstrained(self) -> torch.Tensor:
        """[R, K]: ones where nobody has a say, and zeros."""
        mask = blank((self._num_rows, -(-self.vocab_size // 32)), self.tree.tokens_BW.device)
        mask_RK, row = mask.numpy(), 0
        for b, size in enumerate(self._sizes):
            if self.walked[b] is None and b not in self.silent:
                mask_RK[row : row + size] = -1
            row += size if self.walks_ahead else self.tree.width
        return mask

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


def _fill_roots(drafts: list[Draft], mask_RK: np.ndarray) -> int:
    """The masks of points without their drafts."""
    roots = [Draft(draft.point, (), draft.row) for draft in drafts]
    num = fill_drafts(roots, mask_RK)
    for draft, root in zip(drafts, roots, strict=True):
        draft.has_root = root.has_root
    return num


def _fill_points(
    places: list[tuple[int, Point]], mask_RK: np.ndarray, deadline: float | None
) -> int:
    """Rows of points, in order, until the deadline; the number of masks made."""
    num = fill_points((point for _, point in places), mask_RK.shape[1], deadline)
    for row, point in places:
        if point.mask is not None:
            mask_RK[row] = point.mask
    return num


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
