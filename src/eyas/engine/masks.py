"""What the automata of a step say of its trees: which nodes are legal, and the mask of each row.

The walk comes before the forward where the host sees the tree in time, so that nodes which cannot be
chosen cost no rows; masks are filled while the forward runs.

Promises: a row without a constraint is all ones. Every row starts zeroed: a node that its automaton
refuses, or whose mask did not come in time, allows nothing and is never walked into. A step waits for
every root's mask; of a sequence whose masks are slow only the root of its next drafts is looked at for
a while. An automaton that fails takes its own sequence down and no other.
Does not know: what the automata recognise.

Legend: B rooted sequences, W nodes, R node rows, K 32-bit mask words.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Series
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest

import numpy as np
import torch

from eyas.constraint import ConstraintFailure
from eyas.constraint.automaton import Automaton
from eyas.constraint.filling import Filling
from eyas.constraint.mask_batch import MaskRequest
from eyas.core import DraftTree
from eyas.engine.branches import Branch, branches_of, depths_of, in_node_order
from eyas.engine.prune import Refusals, refused, without
from eyas.engine.sequence import Sequence, Status
from eyas.transfer import BlankPages, Outbox, reachable
from eyas.wire import GrammarStats

log = logging.getLogger(__name__)

LAST_STEPS = 8
"""The fastest of so many says how long a step takes."""
NUM_CALLS = 3
"""Calls of the grammar library at once that steps wait for: one, and those left behind."""
WORTH_A_THREAD = 2**15
"""Words of masks; fewer are filled sooner than a thread wakes."""
SLOW_PARTS = 3
"""A draft is slow when its masks take longer than a third of a step; of two drafts, than half of it; of
one, which delays nobody else, than all of it. Masks further into a string usually take even longer."""
SLOW_ROOT_PARTS = 6
"""A root that is looked at alone is slow after a sixth of a step: a draft behind it would be slow."""
FAILED = "the output's grammar hit a resource limit while it was enforced; simplify it"


class Masking:
    """What the masks of all steps share. time_limit: seconds after which the rest of a step's drafts is
    left out. outbox: trees go to the host in it. pages: for masks. threads: fill. step_seconds: of the
    last steps."""

    def __init__(
        self, vocab_size: int, time_limit: float, stats: GrammarStats, outbox: Outbox
    ) -> None:
        self.vocab_size = vocab_size
        self.time_limit = time_limit
        self.stats = stats
        self.outbox = outbox
        self.pages = BlankPages(outbox.device)
        self.threads = ThreadPoolExecutor(NUM_CALLS, "masks")
        self.step_seconds: deque[float] = deque(maxlen=LAST_STEPS)

    @property
    def walks_ahead(self) -> bool:
        """Trees are walked before the forward, and lose what is refused; on a device they are only
        known once it has started."""
        return self.outbox.device.type == "cpu"

    @property
    def is_packed(self) -> bool:
        """Rows are those of nodes alone; on a device each tree has as many as it is wide."""
        return self.walks_ahead

    def close(self) -> None:
        """What its threads do now they finish."""
        self.threads.shutdown(wait=False, cancel_futures=True)


@dataclass(slots=True, eq=False)
class _Walked:
    """One sequence's tree, as runs: each a node, or, where is_lazy, with what is behind it, of which
    masks will tell what is legal. parents: of its nodes. requests: the root's, then the others'."""

    sequence: Sequence
    parents: list[int]
    branches: list[Branch]
    is_lazy: bool = False
    requests: list[MaskRequest] = field(default_factory=list)

    def ask(self, row: int, size: int) -> None:
        """For masks from `row` on, in the runs' order; `size` rows are its own."""
        assert self.sequence.automaton is not None
        keeps, at = self.sequence.automaton.is_forked, row
        for branch in self.branches:
            num = len(branch.nodes)
            if branch.is_seen and branch.point is not None:
                room = row + size - at if branch is self.branches[-1] else num
                branch.request = MaskRequest(
                    branch.point, branch.tokens, at, keeps, self.is_lazy and room > 1
                )
                self.requests.append(branch.request)
            at += num

    @property
    def has_root(self) -> bool:
        """Has the root its mask?"""
        return self.requests[0].num_masks > 0

    @property
    def is_late(self) -> bool:
        """Was there no time for masks behind the root, which is there?"""
        root, *later = self.requests
        return (root.is_late and bool(root.tokens)) or any(request.is_late for request in later)

    @property
    def is_slow(self) -> bool:
        """Would this sequence's next draft delay the others?"""
        return any(request.is_slow for request in self.requests)

    def legal(self) -> list[bool]:
        """By node; what was not looked at is not refused."""
        refused = {branch.first_refused for branch in self.branches} - {None}
        legal = [True] * len(self.parents)
        if not refused:
            return legal
        for node, parent in enumerate(self.parents[1:], 1):
            legal[node] = legal[parent] and node not in refused
        return legal


Live = list[tuple[int, _Walked]]
"""Sequences whose automata have a say, with the rows of their roots."""


class TreeMasks:
    """The automata of one step: `walk`, `begin`, `finish`, `learn`, `note`. walked[b] is None for a
    sequence that is not constrained (or has ended: `silent`). refusals: complete when all is noted."""

    def __init__(self, masking: Masking, tree: DraftTree) -> None:
        self.tree = tree
        self.walked: list[_Walked | None] = []
        self.silent: set[int] = set()
        self.refusals = Refusals()
        self.has_begun = False
        self._masking = masking
        self._tokens: list[list[int]] = []
        self._parents: list[list[int]] = []
        self._sizes: list[int] = []
        self._mask: torch.Tensor | None = None
        self._filling: Filling | None = None
        tensors = {"tokens": tree.tokens_BW, "sizes": tree.sizes_B}
        if not tree.is_chain:
            tensors["parents"] = tree.parents_BW
        self._host = masking.outbox.send(tensors)

    def walk(self, rooted: Series[Sequence]) -> None:
        """Follow every constrained sequence's draft: to every node where it can lose some, else to
        where its runs begin."""
        walks_ahead = self._masking.walks_ahead
        if not walks_ahead:
            self._expect(rooted)
        host = self._host.read()
        num = len(rooted)  # what comes after them fills up the batch
        self._tokens, self._sizes = host["tokens"][:num].tolist(), host["sizes"][:num].tolist()
        if self.tree.is_chain:
            self._parents = [list(range(-1, self.tree.width - 1))] * num
        else:
            self._parents = host["parents"][:num].tolist()
        for b, sequence in enumerate(rooted):
            self.walked.append(None)
            if sequence.automaton is None:
                continue
            if sequence.status is not Status.RUNNING or sequence.failure is not None:
                self.silent.add(b)
                continue
            self._walk(b, sequence, sequence.automaton)
        if walks_ahead:
            self._refuse()
            self._prune()

    def _expect(self, rooted: Series[Sequence]) -> None:
        """Before the drafts are here."""
        automata = [each.automaton for each in rooted if each.status is Status.RUNNING]
        states = [each.root.state for each in automata if each is not None and not each.has_budget]
        if states:
            states[0].grammar.backend.expect(states)

    def _walk(self, b: int, sequence: Sequence, automaton: Automaton) -> None:
        tokens, parents = (each[b][: self._sizes[b]] for each in (self._tokens, self._parents))
        is_chain = self.tree.is_chain
        # From where copies are dear one reader goes to every node.
        goes_everywhere = not is_chain and automaton.root.state.is_expensive_to_copy
        is_lazy = not (self._masking.walks_ahead or automaton.has_budget or goes_everywhere)
        try:
            if is_lazy:
                branches = _branches(automaton, tokens, parents, is_chain=is_chain)
            else:
                points = automaton.walk(tokens, parents)
                branches = [Branch((node,), point) for node, point in enumerate(points)]
        except Exception:
            self._fail(sequence)
            self.silent.add(b)
        else:
            self.walked[b] = _Walked(sequence, parents, branches, is_lazy)

    def _refuse(self) -> None:
        """Say what is not legal."""
        legal = [None if each is None else each.legal() for each in self.walked]
        self.refusals = refused(self._parents, self._sizes, legal)
        self._masking.stats.num_pruned += self.refusals.num_nodes

    def _prune(self) -> None:
        """Leave out of the tree what is not legal, while the forward is still to come."""
        host = (self._tokens, self._parents, self._sizes)
        self.tree, self.refusals = without(self.refusals, self.tree, *host)
        for each in self.walked:
            if each is not None:
                each.branches = [branch for branch in each.branches if branch.point is not None]
        if self.refusals.num_nodes:
            self._sizes = self.tree.sizes_B.tolist()

    def begin(self) -> None:
        """Start filling, once every tree is walked: beside this thread where there is enough to do,
        else when the masks are asked for."""
        self.has_begun, masking = True, self._masking
        num_rows = sum(self._sizes) if self._masking.is_packed else self.tree.tokens_BW.numel()
        shape = (num_rows, -(-masking.vocab_size // 32))
        mask = masking.pages.take(shape)
        mask_RK = mask.numpy()
        live = self._live()
        for row, each in live:
            each.ask(row, self._num_own(each))
        for b, (row, size) in enumerate(zip(self._rows(), self._sizes, strict=True)):
            if self.walked[b] is None and b not in self.silent:
                mask_RK[row : row + size] = -1
        first = [each.requests[0] for _, each in live]
        # A few nodes of everybody at a time: those of one sequence are filled one after the other.
        turns = zip_longest(*(each.requests[1:] for _, each in live))
        later = [request for turn in turns for request in turn if request is not None]
        self._mask = mask
        self._filling = Filling(first, later, mask_RK, masking.time_limit)
        if not masking.walks_ahead or mask_RK.size > WORTH_A_THREAD:
            self._filling.start(masking.threads)
        if not masking.walks_ahead:
            masking.threads.submit(masking.pages.make, shape)

    def finish(self) -> torch.Tensor:
        """[R, K] int32, on the host."""
        assert self._mask is not None and self._filling is not None
        mask, live = self._mask, self._live()
        num_drafts = sum(each.is_lazy for _, each in live)
        step_seconds = min(self._masking.step_seconds, default=math.inf)
        slow_after = step_seconds / min(SLOW_PARTS, max(1, num_drafts))
        if not self._filling.wait(slow_after, step_seconds / SLOW_ROOT_PARTS):
            mask = self._roots_alone(mask, live)
        mask_RK = mask.numpy()
        for row, each in live:
            if not each.has_root and each.sequence.status is Status.RUNNING:  # else nobody asks
                self._retry(each, mask_RK, row)
            if each.is_lazy and len(each.branches) > 1:
                in_node_order(mask_RK[row : row + self._num_own(each)], each.branches)
        return mask

    def note(self) -> None:
        """What was refused and counted; nobody waits for it."""
        assert self._filling is not None
        stats = self._masking.stats
        stats.num_late += sum(each.is_late for _, each in self._live())
        if not self._masking.walks_ahead:
            self._refuse()
        self._count(self._filling)
        self._mask = self._filling = None

    def _count(self, filling: Filling) -> None:
        self._masking.stats.num_masks += filling.num_masks
        self._masking.stats.mask_seconds += filling.seconds

    def _roots_alone(self, unfinished: torch.Tensor, live: Live) -> torch.Tensor:
        """Masks where the thread that fills does not write any more: of what is late only the roots."""
        mask = reachable(tuple(unfinished.shape), self.tree.tokens_BW.device)
        mask_RK = mask.numpy()
        late = [request for _, each in live for request in each.requests if request.is_late]
        mask_RK[:] = unfinished.numpy()
        for request in late:
            request.wipe(mask_RK)
        again = {
            each.requests[0]: MaskRequest(each.requests[0].point, (), row)
            for row, each in live
            if each.requests[0].is_late
        }
        self._fill_now(again.values(), mask_RK)
        for request, root in again.items():
            request.num_masks = root.num_masks
        return mask

    def _fill_now(self, requests: Iterable[MaskRequest], mask_RK: np.ndarray) -> None:
        filling = Filling(requests, (), mask_RK, self._masking.time_limit)
        filling.wait()
        self._count(filling)

    def learn(self) -> None:
        """How far to look into the next drafts. Where time was over and nobody stands out, all who were
        late are to blame."""
        live = self._live()
        has_culprit = any(each.is_slow and each.requests[0].tokens for _, each in live)
        for _, each in live:
            automaton = each.sequence.automaton
            assert automaton is not None
            levels = self.tree.width - 1 if self.tree.is_chain else max(depths_of(each.parents))
            if each.is_slow or (each.is_late and not has_culprit):
                automaton.held_up(levels)
            elif not each.is_late:
                automaton.mask_limit.in_time(levels)

    def _rows(self) -> list[int]:
        """Where each sequence's begin."""
        widths = [self.tree.width] * len(self._sizes)
        sizes = self._sizes if self._masking.is_packed else widths
        return list(accumulate(sizes, initial=0))[:-1]

    def _num_own(self, each: _Walked) -> int:
        """Rows of one sequence."""
        return len(each.parents) if self._masking.is_packed and each.is_lazy else self.tree.width

    def _live(self) -> Live:
        rows = zip(self._rows(), self.walked, strict=True)
        return [(row, each) for row, each in rows if each is not None]

    def _retry(self, each: _Walked, mask_RK: np.ndarray, row: int) -> None:
        """A root without a mask hit a limit: once more in a fresh automaton."""
        automaton = each.sequence.automaton
        assert automaton is not None
        try:
            automaton.replay()
            self._masking.stats.num_replays += 1
        except Exception:
            self._fail(each.sequence)
        else:
            again = MaskRequest(automaton.root, (), row)
            self._fill_now([again], mask_RK)
            if not again.num_masks:
                self._fail(each.sequence)
        if each.sequence.failure is not None:
            b = self.walked.index(each)
            self.walked[b] = None
            self.silent.add(b)

    def _fail(self, sequence: Sequence) -> None:
        log.warning(
            "an output grammar failed; its request ends", exc_info=log.isEnabledFor(logging.DEBUG)
        )
        sequence.failure = FAILED


def _branches(
    automaton: Automaton, tokens: list[int], parents: list[int], *, is_chain: bool
) -> list[Branch]:
    """A tree as runs, as far down as its sequence's drafts are looked at."""
    limit = len(tokens) if automaton.mask_limit.limit is None else automaton.mask_limit.limit
    if is_chain:
        return [Branch(tuple(range(len(tokens))), automaton.root, tuple(tokens[1 : 1 + limit]))]
    nodes, depths = branches_of(parents), depths_of(parents)
    seen = [each for each in nodes if depths[each[0]] <= limit]
    points = dict(zip(seen, automaton.heads(tokens, parents, seen), strict=True))
    if not automaton.is_forked:
        heads = [point.state for point in points.values() if point is not None]
        heads[0].grammar.backend.expect(heads[1:], once=True)
    return [
        Branch(
            each,
            points.get(each),
            tuple(tokens[node] for node in each[1:] if depths[node] <= limit),
            each in points,
        )
        for each in nodes
    ]


def advance(sequence: Sequence, tokens: list[int], stats: GrammarStats) -> bool:
    """Move a sequence's automaton over chosen tokens; can it go on?"""
    automaton = sequence.automaton
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
