"""Draft trees, and the verdicts of the target model on them.

Promises: plain data on a device, no behaviour.
Does not know: who proposes a tree, how a verdict is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(slots=True)
class DraftTree:
    """The draft trees of B sequences. Node 0 of a tree is its root: the last known token.

    Legend: B sequences, W nodes.
    tokens_BW, parents_BW: int64, on the device. parents_BW[:, 0] is -1, and 0 <= parents_BW[:, i] <
    i for the others. Siblings have different tokens.
    sizes_B: numbers of nodes; nodes from there on are padding.
    is_chain: whether the parent of every node is the node before it.
    source_BW: the drafter that proposed each node, as an index into `Drafter.sources`; None if all
    have source 0. For metrics only.
    score_BW: float32, the score that a drafter gave each node, NaN where it gave none; None if no node
    has one. For display only.
    num_caught_up: missing rows, of prompts or of steps without a draft, that the drafter computed
    before it drafted, so that the time of the step does not predict that of the next one.
    """

    tokens_BW: torch.Tensor
    parents_BW: torch.Tensor
    sizes_B: torch.Tensor
    is_chain: bool
    source_BW: torch.Tensor | None = None
    num_caught_up: int = 0
    score_BW: torch.Tensor | None = None

    @property
    def width(self) -> int:
        """Nodes of the widest tree, padding included."""
        return self.tokens_BW.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the trees are."""
        return self.tokens_BW.device

    @property
    def branch_parents(self) -> torch.Tensor | None:
        """The parents [B, W]; None for chains, whose parents are not read."""
        return None if self.is_chain else self.parents_BW


@dataclass(slots=True)
class Verdict:
    """The tokens that a step chose for B sequences.

    Legend: B sequences, W nodes, E top alternatives, X = 2W + 1 columns.
    report_BX: int64; its columns are tokens, nodes and counts, so that one copy brings all to the
    host.
    tokens_BW: tokens_BW[b, :counts_B[b]] are the accepted draft tokens and the one chosen after
    them.
    nodes_BW: nodes_BW[b, j] is the node whose row chose token j. So nodes_BW[b, 0] is the root, and
    the others up to the count are the accepted nodes, in order.
    counts_B: numbers of tokens; -1 if the row of the root could not choose (a logit was not a
    number, or no token was legal).
    chosen_logprobs_BW, top_ids_BWE, top_logprobs_BWE: from raw logits; None if none were requested.
    """

    report_BX: torch.Tensor
    chosen_logprobs_BW: torch.Tensor | None = None
    top_ids_BWE: torch.Tensor | None = None
    top_logprobs_BWE: torch.Tensor | None = None
    tokens_BW: torch.Tensor = field(init=False)
    nodes_BW: torch.Tensor = field(init=False)
    counts_B: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.tokens_BW = self.report_BX[:, : self.width]
        self.nodes_BW = self.report_BX[:, self.width : -1]
        self.counts_B = self.report_BX[:, -1]

    @property
    def width(self) -> int:
        """Most tokens of a sequence (W)."""
        return self.report_BX.shape[1] // 2
