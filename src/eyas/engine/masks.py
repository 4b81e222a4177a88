"""The masks of a step with grammars: which nodes of its trees are legal, and the mask of each row.

Legality needs no masks: it is known as soon as the host sees the tree. On a CPU that is before the
forward, so illegal nodes leave the tree there and cost no rows. Masks are filled concurrently with the
forward.

Promises: a row without a constraint is all ones. Every row starts zeroed: a node that its grammar
refuses, or whose mask did not come in time, allows nothing and is never walked into. A step waits for
every root's mask; where a sequence's masks are slow, only the root of its next drafts gets a mask for a
while. An automaton that fails ends its own sequence and no other.
Does not know: what the grammars recognise.

Legend: B rooted sequences, W nodes, R node rows, K 32-bit mask words.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Series
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, zip_longest

import numpy as np
import torch

from eyas.constraint.filling import Allowance, Filling
from eyas.constraint.mask_batch import MaskRequest
from eyas.draft_tree import DraftTree
from eyas.engine.branches import depths_of
from eyas.engine.constrained_tree import ConstrainedTree
from eyas.engine.prune import Refusals, refused, without
from eyas.engine.sequence import Sequence, Status
from eyas.transfer import BlankPages, Outbox, reachable
from eyas.wire import GrammarStats

log = logging.getLogger(__name__)

LAST_STEPS = 8
"""A step takes as long as the fastest of the last ones."""
NUM_CALLS = 3
"""Calls of the grammar library at once that steps wait for: one, and those left behind."""
WORTH_A_THREAD = 2**15
"""Words of masks; fewer are filled sooner than a thread wakes."""
SLOW_PARTS = 3
"""A draft is slow when its masks take longer than a third of a step; of two drafts, than half of it; of
one, which delays no other, than all of it. Masks further into a string usually take even longer."""
SLOW_ROOT_PARTS = 6
"""A root without a draft is slow after a sixth of a step: a draft behind it would be slow."""
FAILED = "the output's grammar hit a resource limit while it was enforced; simplify it"
DEAD_END = (
    "no token can follow in the output's grammar; give every part of it a text that the model's tokens "
    "spell"
)


class Masking:
    """What the masks of all steps share.

    time_limit: seconds after which the rest of a step's drafts is left out. outbox: copies trees to the
    host. pages: memory for masks. threads: fill masks. step_seconds: of the last steps. allowance: for
    branches that are filled during a forward pass.
    """

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
        self.allowance = Allowance()

    @property
    def prunes(self) -> bool:
        """Whether illegal nodes are removed before the forward pass: on a CPU, where the host sees the
        trees in time."""
        return self.outbox.device.type == "cpu"

    @property
    def is_packed(self) -> bool:
        """Whether a tree has as many rows as nodes; on a device it has as many as it is wide."""
        return self.prunes

    def close(self) -> None:
        """End its threads after what they do now."""
        self.threads.shutdown(wait=False, cancel_futures=True)


RootedTrees = list[tuple[int, ConstrainedTree]]
"""Constrained sequences' trees, each with the row of its root."""


class TreeMasks:
    """The masks of one step: `find_legal`, `begin`, `finish`, `learn`, `note`, in this order.

    trees: by rooted sequence; None for one that is not constrained, or that has ended (`ended`).
    refusals: complete after `note`.
    """

    def __init__(self, masking: Masking, tree: DraftTree) -> None:
        self.tree = tree
        self.trees: list[ConstrainedTree | None] = []
        self.ended: set[int] = set()
        self.refusals = Refusals()
        self.has_begun = False
        self._masking = masking
        self._tokens: list[list[int]] = []
        self._parents: list[list[int]] = []
        self._sizes: list[int] = []
        self._mask: torch.Tensor | None = None
        self._is_awaited: Callable[[], bool] | None = None
        self._branch_rows_RK: np.ndarray | None = None
        self._filling: Filling | None = None
        tensors = {"tokens": tree.tokens_BW, "sizes": tree.sizes_B}
        if not tree.is_chain:
            tensors["parents"] = tree.parents_BW
        self._host = masking.outbox.send(tensors)

    def find_legal(self, rooted: Series[Sequence]) -> None:
        """Find the legal nodes of every constrained sequence's tree; without the others on a CPU."""
        if not self._masking.prunes:
            self._expect(rooted)
        host = self._host.read()
        num = len(rooted)  # the rows after them fill up the batch
        self._tokens, self._sizes = host["tokens"][:num].tolist(), host["sizes"][:num].tolist()
        if self.tree.is_chain:
            self._parents = [list(range(-1, self.tree.width - 1))] * num
        else:
            self._parents = host["parents"][:num].tolist()
        for b, sequence in enumerate(rooted):
            self.trees.append(None)
            if sequence.automaton is None:
                continue
            if sequence.status is not Status.RUNNING or sequence.failure is not None:
                self.ended.add(b)
                continue
            tokens, parents = (each[b][: self._sizes[b]] for each in (self._tokens, self._parents))
            legal = sequence.automaton.legal(tokens, parents)
            self.trees[b] = ConstrainedTree(
                sequence, sequence.automaton, tokens, parents, legal, depths_of(parents)
            )
        if self._masking.prunes:
            self._refuse()
            self._prune()

    def _expect(self, rooted: Series[Sequence]) -> None:
        """Prepare for the drafts before they are here."""
        automata = [each.automaton for each in rooted if each.status is Status.RUNNING]
        states = [each.root for each in automata if each is not None]
        if states and self.tree.width > 1:
            states[0].grammar.backend.expect(states)

    def _refuse(self) -> None:
        """Note what is not legal."""
        legal = [None if each is None else each.legal for each in self.trees]
        self.refusals = refused(self._parents, self._sizes, legal)
        self._masking.stats.num_pruned += self.refusals.num_nodes

    def _prune(self) -> None:
        """Leave out of the tree what is not legal, before the forward."""
        self.tree, self.refusals = without(self.refusals, self.tree)
        if not self.refusals.num_nodes:
            return
        self._tokens, self._sizes = self.tree.tokens_BW.tolist(), self.tree.sizes_B.tolist()
        self._parents = self.tree.parents_BW.tolist()
        for b, each in enumerate(self.trees):
            if each is not None:
                each.remove_illegal(self._tokens[b], self._parents[b])

    def fill_until(self, is_awaited: Callable[[], bool] | None) -> None:
        """Fill no branches below the roots' beyond the end of the forward, when `is_awaited`: the step
        would take longer for each. None: the forward runs before or behind them."""
        self._is_awaited = is_awaited

    def begin(self) -> None:
        """Start filling masks, once the legal nodes are known: in another thread where there is enough
        to do, else when the masks are asked for."""
        self.has_begun, masking = True, self._masking
        num_rows = sum(self._sizes) if masking.is_packed else self.tree.tokens_BW.numel()
        shape = (num_rows, -(-masking.vocab_size // 32))
        mask = masking.pages.take(shape)
        mask_RK = mask.numpy()
        for b, (row, size) in enumerate(zip(self._rows(), self._sizes, strict=True)):
            if self.trees[b] is None and b not in self.ended:
                mask_RK[row : row + size] = -1
        trees = self._rooted_trees()
        filled_RK = self._request(trees, mask_RK)
        first = [each.root for _, each in trees]
        # One branch of each sequence at a time: a sequence has one matcher for them.
        turns = zip_longest(*([b.request for b in each.branches[1:]] for _, each in trees))
        later = [[request for request in turn if request is not None] for turn in turns]
        self._mask = mask
        beside = (self._is_awaited, masking.allowance)
        self._filling = Filling(first, later, filled_RK, masking.time_limit, *beside)
        if not masking.prunes or mask_RK.size > WORTH_A_THREAD:
            self._filling.start(masking.threads)
        if not masking.prunes:
            masking.threads.submit(masking.pages.make, shape)

    def _request(self, trees: RootedTrees, mask_RK: np.ndarray) -> np.ndarray:
        """Ask for the masks of all sequences. Returns the rows that they are filled in: a chain's are
        those of its nodes, branches have rows of their own."""
        if self.tree.is_chain:
            for row, each in trees:
                each.request(row, len(each.parents) if self._masking.is_packed else self.tree.width)
            return mask_RK
        num_rows = 0
        for _, each in trees:
            each.request(num_rows, 2)
            num_rows += max(2, sum(len(branch.nodes) for branch in each.branches))
        self._branch_rows_RK = np.zeros((num_rows, mask_RK.shape[1]), dtype=np.int32)
        return self._branch_rows_RK

    def finish(self) -> torch.Tensor:
        """Wait for the masks. Returns [R, K] int32, on the host."""
        assert self._mask is not None and self._filling is not None
        mask, trees = self._mask, self._rooted_trees()
        num_trees = len(trees)
        step_seconds = min(self._masking.step_seconds, default=math.inf)
        slow_after = step_seconds / min(SLOW_PARTS, max(1, num_trees))
        if not self._filling.wait(slow_after, step_seconds / SLOW_ROOT_PARTS):
            mask = self._roots_alone(mask, trees)
        mask_RK = mask.numpy()
        for row, each in trees:
            mask_WK = mask_RK[row : row + len(each.parents)]
            if self._branch_rows_RK is not None:
                for branch in each.branches:
                    branch.put(self._branch_rows_RK, mask_WK)
            if not each.root.num_masks and each.sequence.status is Status.RUNNING:
                self._retry(each, mask_RK, row)
            each.apply_budget(mask_WK)
        return mask

    def note(self) -> None:
        """Note what was refused and counted; nothing waits for it."""
        assert self._filling is not None
        stats = self._masking.stats
        stats.num_late += sum(each.is_late for _, each in self._rooted_trees())
        stats.num_left_out += sum(each.num_left_out for _, each in self._rooted_trees())
        if not self._masking.prunes:
            self._refuse()
        self._count(self._filling)
        self._mask = self._filling = self._branch_rows_RK = None

    def _count(self, filling: Filling) -> None:
        self._masking.stats.num_masks += filling.num_masks
        self._masking.stats.mask_seconds += filling.seconds

    def _roots_alone(self, unfinished: torch.Tensor, trees: RootedTrees) -> torch.Tensor:
        """Return masks that the thread which fills does not write to any more: of what is late only the
        roots'."""
        mask = unfinished
        if self.tree.is_chain:
            mask = reachable(tuple(unfinished.shape), self.tree.tokens_BW.device)
            mask.numpy()[:] = unfinished.numpy()
            for _, each in trees:
                if each.root.is_late:
                    each.root.wipe(mask.numpy())
        late = [(row, each.root) for row, each in trees if each.root.is_late]
        again = [MaskRequest(root.state, row) for row, root in late]
        self._fill_now(again, mask.numpy())
        for (_, root), filled in zip(late, again, strict=True):
            root.num_masks = filled.num_masks
        return mask

    def _fill_now(self, requests: Iterable[MaskRequest], mask_RK: np.ndarray) -> None:
        filling = Filling(requests, (), mask_RK, self._masking.time_limit)
        filling.wait()
        self._count(filling)

    def learn(self) -> None:
        """Adapt how many levels of the next drafts masks are requested for. If masks were late and no
        draft was slow, it is lowered for all that were late."""
        trees = self._rooted_trees()
        some_are_slow = any(each.is_slow and each.root.tokens for _, each in trees)
        for _, each in trees:
            levels = self.tree.width - 1 if self.tree.is_chain else max(each.depths)
            if each.is_slow or (each.is_late and not some_are_slow):
                each.automaton.held_up(levels)
            elif not each.is_late:
                each.automaton.mask_limit.in_time(levels)

    def _rows(self) -> list[int]:
        """Return the row of each sequence's root."""
        widths = [self.tree.width] * len(self._sizes)
        sizes = self._sizes if self._masking.is_packed else widths
        return list(accumulate(sizes, initial=0))[:-1]

    def _rooted_trees(self) -> RootedTrees:
        rows = zip(self._rows(), self.trees, strict=True)
        return [(row, each) for row, each in rows if each is not None]

    def _retry(self, each: ConstrainedTree, mask_RK: np.ndarray, row: int) -> None:
        """Fill the mask of a root that has none, once more, in a fresh automaton."""
        try:
            each.automaton.replay()
            self._masking.stats.num_replays += 1
        except Exception:
            self._fail(each.sequence, FAILED)
        else:
            again = MaskRequest(each.automaton.root, row)
            self._fill_now([again], mask_RK)
            if not again.num_masks:
                self._fail(each.sequence, FAILED if again.has_failed else DEAD_END)
        if each.sequence.failure is not None:
            b = self.trees.index(each)
            self.trees[b] = None
            self.ended.add(b)

    def _fail(self, sequence: Sequence, failure: str) -> None:
        log.warning(
            "an output grammar failed; its request ends", exc_info=log.isEnabledFor(logging.DEBUG)
        )
        sequence.failure = failure
