"""Append what each verdict accepted to the device's record of its sequence.

Promises: only the sequence's own seat is written, and of its columns those of what is appended
(`by_torch` also writes the last column, which holds nothing).
Does not know: how a verdict came about.

Legend: B sequences, W nodes, X entries of a report (W tokens, W nodes, the count), A seats, C
columns.
"""

from __future__ import annotations

import torch

from eyas.native.steps import compiled_steps
from eyas.ops.dispatch import Operation
from eyas.ops.table import TableSequences


@Operation
def advance(
    report_BX: torch.Tensor,
    sequences: TableSequences,
    lengths_A: torch.Tensor,
    is_chain: bool,
    padding_seat: int,
) -> None:
    """Append each verdict in place: its tokens after the root, the accepted nodes' slots from the
    root on.

    report_BX: `draft_tree.Verdict.report_BX`; a count of -1 appends nothing. is_chain: the slots of
    nodes stand in the table already. lengths_A: of all seats. padding_seat: sequences there change
    nothing.
    """
    tokens_AC, seats_B, roots_B = sequences.tokens_AC, sequences.seats_B, sequences.roots_B
    width, trash_column = report_BX.shape[1] // 2, tokens_AC.shape[1] - 1
    counts_B = torch.where(seats_B == padding_seat, 0, report_BX[:, -1].clamp(min=0))
    offsets_W = torch.arange(width, device=report_BX.device)
    kept_BW = offsets_W < counts_B.unsqueeze(1)
    columns_BW = roots_B.unsqueeze(1) + offsets_W
    seats_B1 = seats_B.unsqueeze(1)
    token_columns_BW = torch.where(kept_BW, columns_BW + 1, trash_column)
    tokens_AC[seats_B1, token_columns_BW] = report_BX[:, :width]
    if not is_chain:
        slot_columns_BW = torch.where(kept_BW, columns_BW, trash_column)
        nodes_BW = report_BX[:, width:-1]
        slots_BW = sequences.node_slots_BW.gather(1, nodes_BW)
        sequences.slots_AC[seats_B1, slot_columns_BW] = slots_BW
    lengths_A[seats_B] = roots_B + 1 + counts_B


@advance.native
def _by_native(
    report_BX: torch.Tensor,
    sequences: TableSequences,
    lengths_A: torch.Tensor,
    is_chain: bool,
    padding_seat: int,
) -> None:
    steps = compiled_steps(report_BX.device)
    if steps is None:
        return NotImplemented
    steps.advance(sequences, report_BX, lengths_A, is_chain=is_chain, padding_seat=padding_seat)
    return None


@advance.kernel
def _by_kernel(
    report_BX: torch.Tensor,
    sequences: TableSequences,
    lengths_A: torch.Tensor,
    is_chain: bool,
    padding_seat: int,
) -> None:
    from eyas.kernels.advance import advance as launch

    launch(
        sequences.seats_B,
        sequences.roots_B,
        report_BX,
        sequences.node_slots_BW,
        sequences.tokens_AC,
        sequences.slots_AC,
        lengths_A,
        is_chain=is_chain,
        trash_seat=padding_seat,
    )
