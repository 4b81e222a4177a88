"""Turn prompt chunks into the rows of a forward pass, and into tiles of rows.

Promises: the host does not wait for the device, so that both can be part of a CUDA graph that is
replayed with other chunks.
Does not know: tree nodes, models.

Legend: C chunks, T rows of all chunks, A seats, X tiles.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class PromptRows(NamedTuple):
    """The rows of prompt chunks, int64 [T]: their tokens, positions and slots."""

    tokens_T: torch.Tensor
    positions_T: torch.Tensor
    write_slots_T: torch.Tensor


def prompt_rows(
    seats_C: torch.Tensor,
    runs_C3: torch.Tensor,
    num_rows: int,
    tokens_AC: torch.Tensor,
    slots_AC: torch.Tensor,
) -> PromptRows:
    """Return the rows of chunks from the table of sequences (`runner.table.SequenceTable`).

    seats_C: of each chunk. runs_C3: as in `attention.base.PromptChunks`. num_rows: T.
    """
    rows_T = torch.arange(num_rows, device=runs_C3.device)
    chunk_T = torch.searchsorted(runs_C3[:, 0] + runs_C3[:, 2], rows_T, right=True)
    positions_T = rows_T + (runs_C3[:, 1] - runs_C3[:, 0])[chunk_T]
    seats_T = seats_C[chunk_T]
    return PromptRows(tokens_AC[seats_T, positions_T], positions_T, slots_AC[seats_T, positions_T])


def tiles_of_chunks(
    runs_C3: torch.Tensor, first_row: int, num_rows: int, first_sequence: int, height: int
) -> torch.Tensor:
    """Return tiles of up to `height` rows of one chunk, int64 [X, 4], those with most keys first:
    sequence, row, position and count. A tile of no rows has the position 0.

    runs_C3, first_row, num_rows: as in `attention.base.PromptChunks`. first_sequence: that of the first
    chunk.
    """
    num_chunks = len(runs_C3)
    row_C, start_C, count_C = runs_C3.unbind(1)
    tiles_C = (count_C + height - 1) // height
    ends_C = tiles_C.cumsum(0)
    x_X = torch.arange(num_rows // height + num_chunks, device=runs_C3.device)
    chunk_X = torch.searchsorted(ends_C, x_X, right=True).clamp(max=num_chunks - 1)
    offset_X = (x_X - (ends_C - tiles_C)[chunk_X]) * height
    count_X = (count_C[chunk_X] - offset_X).clamp(0, height)
    position_X = torch.where(count_X > 0, start_C[chunk_X] + offset_X, 0)
    row_X = first_row + torch.where(count_X > 0, row_C[chunk_X] + offset_X, 0)
    tiles_X4 = torch.stack([chunk_X + first_sequence, row_X, position_X, count_X], 1)
    return tiles_X4[position_X.argsort(descending=True)]
