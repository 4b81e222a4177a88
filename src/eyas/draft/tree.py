"""The drafter that grows a tree with a network of its own: EAGLE and MTP heads, and draft models.

Promises: the network's rows follow the committed tokens: `propose` first makes the rows that are
missing (for a head from the target's features, never from its own guesses), all sequences in one
forward, and then expands level after level, the frontier of all sequences in one forward each. So a
tree of `steps` levels costs `steps` passes, of which the first is the catching up. Inner nodes live in
scratch slots that nobody else sees.
Does not know: the target, what becomes of the tree.

Legend: B sequences that draft, P rows of a sequence in the first pass, K frontier nodes, T rows,
F feature size, U draft vocabulary, W nodes, D draft tokens on the way to a node.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eyas.attention.base import Layout
from eyas.core import DraftTree, Verdict
from eyas.draft.base import Drafter, Shape, root_tokens, roots_alone
from eyas.draft.catch_up import CatchUp, RowBook, plan_catch_up
from eyas.draft.grow import Frontier, Pool, rank
from eyas.draft.network import DraftNetwork
from eyas.runner.batch import Batch
from eyas.runner.rows import ForwardRows
from eyas.runner.runner import Output
from eyas.sampling.process import Rows


@dataclass(slots=True)
class _Growth:
    """What one tree building needs throughout. own_B: places of the drafting sequences in the batch.

    scratch_BS: scratch slots of each sequence. beta_B: of all sequences of the batch.
    """

    batch: Batch
    shape: Shape
    own_B: torch.Tensor
    seats_B: torch.Tensor
    roots_B: torch.Tensor
    root_slots_B1: torch.Tensor
    scratch_BS: torch.Tensor
    beta_B: torch.Tensor | None


class TreeDrafter(Drafter):
    """network: what drafts. shape: how the tree grows (it may be narrowed later, never widened).

    first_scratch: first slot of the network's store that no sequence owns; there are
    `num_scratch(shape)` for each seat. max_rows: most rows made up for in one step.
    sees_noise: rank candidates with the target's noise at temperatures above 0.
    """

    def __init__(
        self,
        network: DraftNetwork,
        shape: Shape,
        *,
        first_scratch: int,
        max_rows: int,
        sees_noise: bool = True,
    ) -> None:
        self._network = network
        self._first_scratch = first_scratch
        self._per_seat = num_scratch(shape)
        self._width = shape.nodes
        self._book = RowBook(network.first_position, bool(network.taps), first_scratch, max_rows)
        self._sees_noise = sees_noise
        self._proposed_for: Batch | None = None
        self.shape = shape
        self.taps = network.taps
        self.sources = ("head" if network.taps else "model",)

    @property
    def networks(self) -> tuple[DraftNetwork, ...]:
        return (self._network,)

    @property
    def width(self) -> int:
        return self._width

    def propose(self, batch: Batch) -> DraftTree:
        shape = self.shape.within(batch.width)
        self.made_up_for = False
        self._proposed_for = batch
        self._book.forget(batch)
        if shape.steps == 0:  # rows are made up for when drafting goes on
            return roots_alone(batch)
        catch_up = plan_catch_up(self._book, batch)
        if catch_up is None:
            return roots_alone(batch)
        self.made_up_for = bool(catch_up.runs)
        slots_T = catch_up.previous_slots_T
        features_TF = None if slots_T is None else self._network.recall(slots_T)
        logits_BU, states_TF = self._network.forward(catch_up.rows, features_TF)
        self._book.made(catch_up)
        if logits_BU is None:
            return roots_alone(batch)
        states_BF = None if states_TF is None else states_TF[catch_up.root_rows_B]
        tree = self._grow(self._growth(batch, shape, catch_up), logits_BU, states_BF)
        return _among_all(batch, tree, catch_up.own_B)

    def observe(self, batch: Batch, output: Output, verdict: Verdict | None) -> None:
        if batch is not self._proposed_for:  # it ran without this drafter
            self._book.forget(batch)
        if self.taps:
            self._network.remember(output)

    def _growth(self, batch: Batch, shape: Shape, catch_up: CatchUp) -> _Growth:
        own_B = catch_up.own_B
        seats_B = batch.seats_B[own_B]
        scratch_S = torch.arange(self._per_seat, device=own_B.device)
        first_B1 = self._first_scratch + seats_B.unsqueeze(1) * self._per_seat
        beta_B = None
        if self._sees_noise and any(batch.params.noisy):
            betas = [self._network.beta(s.params.temperature) for s in batch.params.sources]
            beta_B = torch.tensor(betas, dtype=torch.float32).to(own_B.device)
        topk = min(shape.topk, self._network.draft_vocab_size)
        return _Growth(
            batch,
            Shape(shape.steps, topk, shape.nodes),
            own_B,
            seats_B,
            batch.roots_B[own_B],
            batch.node_slots_BW[own_B, :1],
            first_B1 + scratch_S,
            beta_B,
        )

    def _grow(
        self, growth: _Growth, logits_RU: torch.Tensor, states_RF: torch.Tensor | None
    ) -> DraftTree:
        shape, num = growth.shape, len(growth.own_B)
        device = growth.own_B.device
        frontier, pool = Frontier.of_roots(num, device), Pool()
        inner_BK = torch.zeros((num, 1), dtype=torch.int64, device=device)  # node ids of a frontier
        parents = [torch.full((num, 1), -1, dtype=torch.int64, device=device)]
        for depth in range(shape.steps):
            rows = self._sampling_rows(growth, frontier, depth)
            ids_RC, scores_RC = rank(
                logits_RU,
                self._network.target_ids_U,
                rows,
                growth.batch.params,
                growth.beta_B,
                shape.topk,
            )
            width = frontier.pool_BK.shape[1]
            frontier, parent_BK = pool.add(
                frontier,
                ids_RC.view(num, width, -1),
                scores_RC.view(num, width, -1),
                shape.topk,
            )
            if depth + 1 == shape.steps:
                break
            if states_RF is not None:
                size = states_RF.shape[1]
                states_RF = (
                    states_RF.view(num, width, size)
                    .gather(1, parent_BK.unsqueeze(2).expand(-1, -1, size))
                    .flatten(0, 1)
                )
            parents.append(inner_BK.gather(1, parent_BK))
            first = 1 + depth * shape.topk
            inner_BK = torch.arange(first, first + shape.topk, device=device).expand(num, -1)
            rows_of_level = self._level(growth, frontier, torch.cat(parents, dim=1), depth + 1)
            logits, states_RF = self._network.forward(rows_of_level, states_RF)
            assert logits is not None
            logits_RU = logits
        roots_B1 = root_tokens(growth.batch)[growth.own_B]
        return pool.tree(roots_B1, shape.nodes, is_chain=shape.topk == 1)

    def _level(
        self, growth: _Growth, frontier: Frontier, parents_BW: torch.Tensor, depth: int
    ) -> ForwardRows:
        """The rows of the frontier at `depth`, below everything that was expanded before."""
        batch, topk = growth.batch, growth.shape.topk
        num, width = parents_BW.shape
        device = parents_BW.device
        rows_BK = torch.arange(num * topk, device=device).view(num, topk)
        slots_BW = torch.cat([growth.root_slots_B1, growth.scratch_BS[:, : width - 1]], dim=1)
        own_slots_BK = slots_BW[:, width - topk :]
        positions_B = growth.roots_B + depth
        is_chain = topk == 1
        if is_chain:
            batch.table.place_nodes(growth.seats_B, positions_B, own_slots_BK)
            node_rows_BW, node_slots_BW, first_B = rows_BK, own_slots_BK, positions_B
        else:
            node_rows_BW = torch.full_like(parents_BW, -1)
            node_rows_BW[:, width - topk :] = rows_BK
            node_slots_BW, first_B = slots_BW, growth.roots_B
        layout = Layout(
            slots_BL=batch.table.slots_AC[growth.seats_B, : batch.max_length],
            contexts=(),
            node_rows_BW=node_rows_BW,
            node_slots_BW=node_slots_BW,
            root_positions_B=first_B,
            parents_BW=None if is_chain else parents_BW,
            max_position=batch.max_length - 1,
        )
        positions_T = positions_B.repeat_interleave(topk).clamp(max=batch.table.max_length - 1)
        return ForwardRows(
            tokens_T=frontier.path_BKD[:, :, -1].reshape(-1),
            positions_T=positions_T,
            write_slots_T=own_slots_BK.reshape(-1),
            layout=layout,
            logits_rows_R=rows_BK.view(-1),
            num_leading=num * topk,
        )

    def _sampling_rows(self, growth: _Growth, frontier: Frontier, depth: int) -> Rows | None:
        """Where the frontier's nodes stand, as the sampler sees it; None where nobody looks."""
        if growth.batch.params.is_plain:
            return None
        batch, width = growth.batch, frontier.pool_BK.shape[1]
        path_RD = frontier.path_BKD.flatten(0, 1)
        return Rows(
            sequence_R=growth.own_B.repeat_interleave(width),
            position_R=(growth.roots_B + depth).repeat_interleave(width),
            tokens_RD=path_RD if depth else None,
            is_ancestor_RD=torch.ones_like(path_RD, dtype=torch.bool) if depth else None,
            history_BL=batch.history_BL,
            length_B=batch.roots_B + 1,
        )


def num_scratch(shape: Shape) -> int:
    """Scratch slots that one sequence's inner nodes need."""
    return max(0, shape.steps - 1) * shape.topk


def _among_all(batch: Batch, tree: DraftTree, own_B: torch.Tensor) -> DraftTree:
    """The trees of some sequences, and roots alone for the others."""
    num = len(batch.rooted)
    if len(own_B) == num:
        return tree
    tokens_BW = root_tokens(batch).repeat(1, tree.width)
    tokens_BW[own_B] = tree.tokens_BW
    parents_BW = tree.parents_BW[:1].expand(num, -1).clone()
    parents_BW[own_B] = tree.parents_BW
    sizes_B = torch.ones_like(batch.roots_B)
    sizes_B[own_B] = tree.sizes_B
    return DraftTree(tokens_BW, parents_BW, sizes_B, tree.is_chain)
