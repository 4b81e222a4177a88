"""Attention over a window of keys and over compressed entries, by torch operations.

Promises: a row's result depends on its own path alone. The number of columns of a query, and the
number of entries among them, follow from its position. Rows of a tree read the slots of their own
path, so an entry that a draft completes is seen by its descendants alone.
Does not know: models, which rows are prompts and which are drafts.

Legend: T rows of a forward pass, Y lanes, L positions, U queries, W window columns, E entry columns,
D numbers of a slot, N query heads, H head dim, I width of the indexer's keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from eyas.attention.lanes import Lanes, key_width
from eyas.attention.tiles import attend_tiles
from eyas.cache.slots import NULL_SLOT
from eyas.cache.store import CompressedStore
from eyas.ops.compress import Compression, chosen_entries, pooled
from eyas.ops.rotate_and_store import finite

MOST_ROWS = 64
"""Queries whose keys are gathered at once."""


class CompressedPlan:
    """The compressed attention of one forward pass."""

    def __init__(self, groups: Sequence[Lanes], write_slots_T: torch.Tensor) -> None:
        self._write_slots_T = write_slots_T
        self._groups: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]] = []
        for lanes in groups:
            is_query = lanes.rows_YQ >= 0
            lane_U = is_query.nonzero()[:, 0]
            rows_U, positions_U = lanes.rows_YQ[is_query], lanes.positions_YQ[is_query]
            self._groups.append((lanes.slots_YL, lane_U, rows_U, positions_U))

    def run(
        self,
        store: CompressedStore,
        slots_SD: torch.Tensor,
        inputs_TX: torch.Tensor,
        q_TNH: torch.Tensor,
        sinks_N: torch.Tensor | None,
        compression: Compression,
    ) -> torch.Tensor:
        """Store the rows, make the entries that they complete, and return the outputs [T, N, H].

        slots_SD: the layer's slots. inputs_TX: key and inputs of entries (`CompressedStore.widths`).
        """
        rows_TD = pad(finite(inputs_TX), (0, slots_SD.shape[1] - inputs_TX.shape[1]))
        slots_SD.index_copy_(0, self._write_slots_T, rows_TD)
        for slots_YL, lane_U, _, positions_U in self._groups:
            is_last = (positions_U + 1) % store.rate == 0
            if is_last.any():
                lanes, positions = lane_U[is_last], positions_U[is_last]
                self._store_entries(store, slots_SD, slots_YL, lanes, positions, compression)
        out_TNH = torch.zeros_like(q_TNH)
        for slots_YL, lane_U, rows_U, positions_U in self._groups:
            sizes = [_num_entries(store, position) for position in positions_U.tolist()]
            widths = [key_width(store.local_window + size - 1) for size in sizes]
            for width in sorted(set(widths)):
                here = torch.tensor([u for u, each in enumerate(widths) if each == width])
                for some in here.split(MOST_ROWS):
                    rows = rows_U[some]
                    out_TNH[rows] = self._answers(
                        store,
                        slots_SD,
                        slots_YL[lane_U[some]],
                        rows,
                        positions_U[some],
                        width,
                        q_TNH[rows],
                        sinks_N,
                        compression,
                    )
        return out_TNH

    def _store_entries(
        self,
        store: CompressedStore,
        slots_SD: torch.Tensor,
        slots_YL: torch.Tensor,
        lane_U: torch.Tensor,
        positions_U: torch.Tensor,
        compression: Compression,
    ) -> None:
        """Write the entries of the groups that end at these positions."""
        starts_U = positions_U + 1 - store.rate
        before = torch.arange(1 - store.span, 1)
        columns_UX = positions_U.unsqueeze(1) + before
        is_there_UX = columns_UX >= 0
        slots_UX = slots_YL[lane_U.unsqueeze(1), columns_UX.clamp(min=0)]
        parts = slots_SD[slots_UX].split(store.widths, -1)
        table = compression.angles.table_P2H
        entries = [pooled(parts[1], parts[2], is_there_UX, starts_U, compression.keys, table)]
        if compression.index is not None:
            entries.append(
                pooled(parts[3], parts[4], is_there_UX, starts_U, compression.index, table)
            )
        first = sum(store.widths[:5])
        slots_SD[slots_UX[:, -1], first:] = finite(torch.cat(entries, 1))

    def _answers(
        self,
        store: CompressedStore,
        slots_SD: torch.Tensor,
        slots_UL: torch.Tensor,
        rows_U: torch.Tensor,
        positions_U: torch.Tensor,
        width: int,
        q_UNH: torch.Tensor,
        sinks_N: torch.Tensor | None,
        compression: Compression,
    ) -> torch.Tensor:
        """Return the outputs [U, N, H] of queries with `width` columns."""
        head_dim, window = store.head_dim, store.local_window
        columns_UW = positions_U.unsqueeze(1) + torch.arange(1 - window, 1)
        in_window = columns_UW >= 0
        window_slots = slots_UL.gather(1, columns_UW.clamp(min=0))
        number_U = (positions_U + 1) // store.rate
        most = int(number_U.max())
        ends_E = (torch.arange(most) + 1) * store.rate - 1
        exists_UE = torch.arange(most) < number_U.unsqueeze(1)
        entry_slots = torch.where(exists_UE, slots_UL[:, ends_E], NULL_SLOT)
        if compression.index is not None and most > store.num_chosen:
            assert compression.queries_TJI is not None and compression.weights_TJ is not None
            entry_slots, exists_UE = self._chosen(
                store,
                slots_SD[:, slots_SD.shape[1] - store.index_dim :],
                entry_slots,
                number_U,
                compression.queries_TJI[rows_U],
                compression.weights_TJ[rows_U],
            )
        first = sum(store.widths[:5])
        keys = torch.cat(
            [
                slots_SD[:, :head_dim][window_slots],
                slots_SD[:, first : first + head_dim][entry_slots],
            ],
            1,
        )
        seen = torch.cat([in_window, exists_UE], 1)
        missing = width - seen.shape[1]
        keys_U1LH = pad(keys, (0, 0, 0, missing)).unsqueeze(1)
        seen_UL = pad(seen, (0, missing), value=False)
        shown = torch.zeros((), dtype=q_UNH.dtype)
        mask = torch.where(seen_UL, shown, shown - torch.inf)[:, None, None]
        mask = mask.expand(-1, 1, q_UNH.shape[1], -1).contiguous()
        sinks_1N = None if sinks_N is None else sinks_N.unsqueeze(0)
        out = attend_tiles(q_UNH.unsqueeze(1), keys_U1LH, keys_U1LH, mask, store.scale, sinks_1N)
        return out.squeeze(1)

    def _chosen(
        self,
        store: CompressedStore,
        index_SI: torch.Tensor,
        entry_slots_UE: torch.Tensor,
        number_U: torch.Tensor,
        queries_UJI: torch.Tensor,
        weights_UJ: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the slots of the entries that each row's indexer chooses, and which of them exist.

        A row with no more entries than may be chosen has all of them.
        """
        count = store.num_chosen
        places = torch.arange(count)
        chosen_UK = places.expand(len(number_U), -1).clone()
        for row in (number_U > count).nonzero()[:, 0].tolist():
            own = slice(row, row + 1)
            keys_1EI = index_SI[entry_slots_UE[own, : int(number_U[row])]]
            chosen_UK[own] = chosen_entries(queries_UJI[own], weights_UJ[own], keys_1EI, count)
        return entry_slots_UE.gather(1, chosen_UK), places < number_U.unsqueeze(1)


def _num_entries(store: CompressedStore, position: int) -> int:
    """Return how many entries the query at a position attends to."""
    number = (position + 1) // store.rate
    return min(number, store.num_chosen) if store.index_dim else number
