"""A smaller model of the same vocabulary drafts a chain, seeing the noise the target will choose by.

Promises: its keys and values live in the target's slots (a store of its own, the same numbers), so
prefixes, preemption and acceptance need nothing extra; each step re-reads the last two tokens, because
the last accepted node may lack its draft row (`lookback = 1` keeps such rows from being shared).
At temperature above 0 a draft token is chosen by the target's own rule with the target's own noise,
so that it is the token the target is likely to choose (Daliri, Musco, Suresh, arXiv 2408.07978).
Does not know: the target.

Legend: B sequences, W nodes, R rows, V vocabulary.
"""

from __future__ import annotations

import torch

from eyas.attention.base import ContextRun, Layout
from eyas.cache.slots import NULL_SLOT
from eyas.core import DraftTree, Verdict
from eyas.draft.base import chain, root_tokens
from eyas.runner.batch import Batch
from eyas.runner.rows import PackedRows
from eyas.runner.runner import ModelRunner, Output
from eyas.sampling import choose, process
from eyas.sampling.process import Rows


class ModelDrafter:
    """runner: the draft model over a store with as many slots as the target's."""

    lookback = 1
    taps: tuple[int, ...] = ()

    def __init__(self, runner: ModelRunner, num_tokens: int) -> None:
        self.runner = runner
        self.width = num_tokens + 1

    def propose(self, batch: Batch) -> DraftTree:
        root_B1 = root_tokens(batch)
        logits_BV = self._catch_up(batch)
        if not batch.rooted:
            return chain(root_B1, torch.ones_like(root_B1[:, 0]))
        tokens = [root_B1]
        for depth in range(1, batch.width):
            assert logits_BV is not None
            tokens.append(self._choose(batch, logits_BV, tokens, depth - 1))
            if depth + 1 < batch.width:
                logits_BV = self._extend(batch, tokens[-1], depth)
        tokens_BW = torch.cat(tokens, dim=1)
        return chain(tokens_BW, torch.full_like(root_B1[:, 0], tokens_BW.shape[1]))

    def observe(self, batch: Batch, output: Output, verdict: Verdict) -> None:
        return None

    def _catch_up(self, batch: Batch) -> torch.Tensor | None:
        """Store the draft rows of prompt chunks and of the last two tokens; logits of the roots."""
        table, num_rooted = batch.table, len(batch.rooted)
        device = table.device
        pairs_B2 = batch.roots_B.unsqueeze(1) + torch.tensor([-1, 0], device=device)
        exists_B2 = pairs_B2 >= 0
        pairs_B2 = pairs_B2.clamp(min=0)
        seats_B1 = batch.seats_B.unsqueeze(1)
        table.place_nodes(batch.seats_B, batch.roots_B, batch.node_slots_BW[:, :1])
        slots_B2 = torch.where(exists_B2, table.slots_AC[seats_B1, pairs_B2], NULL_SLOT)
        tokens = [table.tokens_AC[seats_B1, pairs_B2].reshape(-1)]
        positions, slots = [pairs_B2.reshape(-1)], [slots_B2.reshape(-1)]
        runs, seats, row = [], [batch.seats_B], 2 * num_rooted
        for span in batch.spans:
            if span.context_count:
                stop = span.context_start + span.context_count
                tokens.append(table.tokens_AC[span.seat, span.context_start : stop])
                positions.append(torch.arange(span.context_start, stop, device=device))
                slots.append(torch.from_numpy(span.context_slots).to(device))
                runs.append(
                    ContextRun(num_rooted + len(runs), row, span.context_start, span.context_count)
                )
                seats.append(torch.tensor([span.seat], device=device))
                row += span.context_count
        layout = Layout(
            slots_BL=table.slots_AC[torch.cat(seats), : batch.max_length],
            contexts=tuple(runs),
            node_rows_BW=torch.arange(2 * num_rooted, device=device).view(-1, 2)
            if num_rooted
            else None,
            node_slots_BW=slots_B2 if num_rooted else None,
            root_positions_B=(batch.roots_B - 1).clamp(min=0) if num_rooted else None,
            parents_BW=None,
            max_position=batch.max_length - 1,
        )
        wanted_B = torch.arange(1, 2 * num_rooted, 2, device=device) if num_rooted else None
        return self._run(
            batch, torch.cat(tokens), torch.cat(positions), torch.cat(slots), layout, wanted_B
        )

    def _extend(self, batch: Batch, tokens_B1: torch.Tensor, depth: int) -> torch.Tensor | None:
        """One more row a sequence: the node at `depth`. Its logits."""
        num_rooted = len(batch.rooted)
        rows_B = torch.arange(num_rooted, device=batch.roots_B.device)
        slots_B1 = batch.node_slots_BW[:, depth : depth + 1]
        positions_B = batch.roots_B + depth
        batch.table.place_nodes(batch.seats_B, positions_B, slots_B1)
        layout = Layout(
            slots_BL=batch.table.slots_AC[batch.seats_B, : batch.max_length],
            contexts=(),
            node_rows_BW=rows_B.unsqueeze(1),
            node_slots_BW=slots_B1,
            root_positions_B=positions_B,
            parents_BW=None,
            max_position=batch.max_length - 1,
        )
        return self._run(
            batch, tokens_B1.reshape(-1), positions_B, slots_B1.reshape(-1), layout, rows_B
        )

    def _run(
        self,
        batch: Batch,
        tokens_T: torch.Tensor,
        positions_T: torch.Tensor,
        slots_T: torch.Tensor,
        layout: Layout,
        wanted_R: torch.Tensor | None,
    ) -> torch.Tensor | None:
        rows = PackedRows(
            tokens_T=tokens_T,
            positions_T=positions_T.clamp(max=batch.table.max_length - 1),
            write_slots_T=slots_T,
            layout=layout,
            logits_rows_R=wanted_R,
            num_node_rows=0,
            sampling=Rows(tokens_T, positions_T, None, None, tokens_T, tokens_T),
            node_R=tokens_T,
            context_runs=[],
        )
        return self.runner.forward(rows).logits_RV

    def _choose(
        self, batch: Batch, logits_BV: torch.Tensor, tokens: list[torch.Tensor], depth: int
    ) -> torch.Tensor:
        """[B, 1] what the target would choose if these were its logits."""
        ancestors_BD = torch.cat(tokens[1:], dim=1) if depth else None
        rows = Rows(
            sequence_R=torch.arange(len(batch.rooted), device=logits_BV.device),
            position_R=batch.roots_B + depth,
            tokens_RD=ancestors_BD,
            is_ancestor_RD=None if ancestors_BD is None else torch.ones_like(ancestors_BD).bool(),
            history_BL=batch.history_BL,
            length_B=batch.roots_B + 1,
        )
        chosen_B = choose(process(logits_BV, rows, batch.params, None), rows, batch.params)
        return chosen_B.clamp(min=0).unsqueeze(1)
