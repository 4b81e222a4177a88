"""The draft tree of one sequence with a grammar, and the masks that are requested for it.

Promises: the root's mask is always requested; others as far as they are likely to be filled in time
(`eyas.constraint.automaton.DraftMaskLimit`).
Does not know: other sequences of the step, when masks are filled.

Legend: W nodes, K 32-bit mask words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from eyas.constraint.automaton import Automaton
from eyas.constraint.base import allows
from eyas.constraint.mask_batch import MaskRequest
from eyas.engine.branches import Branch, requested
from eyas.engine.sequence import Sequence as EngineSequence


@dataclass(slots=True, eq=False)
class ConstrainedTree:
    """The draft tree of one sequence with a grammar.

    legal, depths: by node. branches: of the nodes whose masks are requested. due: by node, the token
    that must follow it because a budget is spent.
    """

    sequence: EngineSequence
    automaton: Automaton
    tokens: list[int]
    parents: list[int]
    legal: list[bool]
    depths: list[int]
    branches: list[Branch] = field(default_factory=list)
    due: dict[int, int] = field(default_factory=dict)

    def remove_illegal(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Follow the verified tree, which is without illegal nodes. tokens, parents: of that tree."""
        pairs = zip(self.depths, self.legal, strict=True)
        self.depths = [depth for depth, is_legal in pairs if is_legal]
        num = len(self.depths)
        self.legal = [True] * num
        self.tokens, self.parents = list(tokens[:num]), list(parents[:num])

    def request(self, row: int, num_rows: int) -> None:
        """Make the requests for masks, in rows from `row` on, of which `num_rows` are the sequence's
        own."""
        limit = self.automaton.mask_limit.limit
        is_wanted = self.legal
        if limit is not None:
            pairs = zip(self.legal, self.depths, strict=True)
            is_wanted = [is_legal and depth <= limit for is_legal, depth in pairs]
        state = self.automaton.root
        self.branches = requested(state, self.tokens, self.parents, is_wanted, row)
        self.root.has_spare_row = num_rows > 1
        if self.automaton.budget is not None:
            self.due = self.automaton.due(self.tokens, self.parents)

    @property
    def root(self) -> MaskRequest:
        """The request for the root's mask."""
        return self.branches[0].request

    @property
    def is_late(self) -> bool:
        """Whether there was no time for masks other than the root's."""
        is_late = any(branch.request.is_late for branch in self.branches[1:])
        return is_late or (self.root.is_late and bool(self.root.tokens))

    @property
    def num_left_out(self) -> int:
        """The number of nodes without a mask since their branches were not begun."""
        branches = (branch for branch in self.branches if branch.request.is_left_out)
        return sum(len(branch.nodes) - 1 for branch in branches)

    @property
    def is_slow(self) -> bool:
        """Whether this sequence's next draft would delay the others."""
        return any(branch.request.is_slow for branch in self.branches)

    def apply_budget(self, mask_WK: np.ndarray) -> None:
        """Mask all tokens but the one that is due, where one is and the grammar allows it."""
        for node, token in self.due.items():
            if allows(mask_WK[node], token):
                mask_WK[node] = 0
                mask_WK[node].view(np.uint32)[token // 32] = 1 << (token % 32)
