"""Find the rows that a draft network lacks of the tokens that were accepted last, as chains up to
the root.

Promises: what is read of the table and written to it belongs to the sequence's own seat.
Does not know: features, networks, trees.

Legend: B sequences, P rows of a sequence, T rows, A seats, C columns (positions).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from eyas.native.steps import compiled_steps
from eyas.ops.dispatch import Operation
from eyas.ops.grids import place_chain, ragged_rows
from eyas.ops.table import TableSequences


class TailRows(NamedTuple):
    """Of each row: its token; its position, limited to the last position of a rotary table; the
    slot that is written (the null slot where the row must leave no trace); the slot of the position
    before. Of each sequence: its rows (-1 for padding), their slots, the position of the first row,
    the root's row and token, its number."""

    tokens_T: torch.Tensor
    positions_T: torch.Tensor
    write_slots_T: torch.Tensor
    previous_slots_T: torch.Tensor
    grid_BP: torch.Tensor
    slots_BP: torch.Tensor
    starts_B: torch.Tensor
    root_rows_B: torch.Tensor
    root_tokens_B: torch.Tensor
    sequence_B: torch.Tensor


@Operation
def tail_rows(
    made_A: torch.Tensor,
    drafts_B: torch.Tensor | None,
    sequences: TableSequences,
    longest: int,
    null_slot: int,
) -> TailRows:
    """Return up to `longest` rows of each sequence, from the first missing one to its root.

    made_A: by seat, the position of the first row that is not made; moved behind the root.
    drafts_B: None where all sequences draft; one that does not has its root's row alone, which
    leaves no trace. The slots of roots are written into the columns of their positions in the table.
    `by_torch` leaves out what lies past a root; the kernel gives it rows at position 0, since the
    host does not know how many there are.
    """
    seats_B, roots_B, device = sequences.seats_B, sequences.roots_B, made_A.device
    tokens_AC, slots_AC = sequences.tokens_AC, sequences.slots_AC
    starts_B = torch.minimum(made_A[seats_B], roots_B)
    if drafts_B is not None:
        starts_B = torch.where(drafts_B, starts_B, roots_B)
    place_chain(slots_AC, seats_B, roots_B, sequences.node_slots_BW[:, :1])
    positions_BP = starts_B.unsqueeze(1) + torch.arange(longest, device=device)
    real_BP = positions_BP <= roots_B.unsqueeze(1)
    positions_BP = torch.where(real_BP, positions_BP, 0)
    grid_BP, picked = ragged_rows(real_BP)
    last_B = (roots_B - starts_B).clamp(max=longest - 1)
    leaves_trace_BP = real_BP if drafts_B is None else real_BP & drafts_B.unsqueeze(1)
    slots_BP = slots_AC[seats_B.unsqueeze(1), positions_BP]
    write_slots_T = torch.where(leaves_trace_BP, slots_BP, null_slot).view(-1)
    seats_T = seats_B.unsqueeze(1).expand_as(positions_BP).reshape(-1)
    positions_T = positions_BP.view(-1)
    if picked is not None:
        seats_T, positions_T = seats_T[picked], positions_T[picked]
        write_slots_T = write_slots_T[picked]
    next_B = roots_B + 1
    made_A[seats_B] = next_B if drafts_B is None else torch.where(drafts_B, next_B, made_A[seats_B])
    return TailRows(
        tokens_T=tokens_AC[seats_T, positions_T],
        positions_T=positions_T.clamp(max=sequences.last_position),
        write_slots_T=write_slots_T,
        previous_slots_T=slots_AC[seats_T, (positions_T - 1).clamp(min=0)],
        grid_BP=grid_BP,
        slots_BP=slots_BP,
        starts_B=starts_B,
        root_rows_B=grid_BP.gather(1, last_B.unsqueeze(1)).squeeze(1),
        root_tokens_B=tokens_AC[seats_B, roots_B],
        sequence_B=torch.arange(len(seats_B), device=device),
    )


@tail_rows.native
def _by_native(
    made_A: torch.Tensor,
    drafts_B: torch.Tensor | None,
    sequences: TableSequences,
    longest: int,
    null_slot: int,
) -> TailRows:
    steps = compiled_steps(made_A.device)
    if steps is None:
        return NotImplemented
    rows, grid_BP, slots_BP, of_sequences = steps.tail_rows(
        sequences, made_A, drafts_B, longest, null_slot
    )
    tokens_T, positions_T, write_slots_T, previous_slots_T = rows
    return TailRows(
        tokens_T, positions_T, write_slots_T, previous_slots_T, grid_BP, slots_BP, *of_sequences
    )


@tail_rows.kernel
def _by_kernel(
    made_A: torch.Tensor,
    drafts_B: torch.Tensor | None,
    sequences: TableSequences,
    longest: int,
    null_slot: int,
) -> TailRows:
    from eyas.kernels.tail_rows import tail_rows as launch

    rows, of_sequences = launch(
        sequences.seats_B,
        sequences.roots_B,
        made_A,
        drafts_B,
        sequences.node_slots_BW,
        sequences.tokens_AC,
        sequences.slots_AC,
        longest,
        sequences.last_position,
        null_slot,
        pdl=made_A.is_cuda,
    )
    tokens_T, positions_T, write_slots_T, previous_slots_T, slots_T, rows_T = rows
    shape = (len(sequences.seats_B), longest)
    return TailRows(
        tokens_T,
        positions_T,
        write_slots_T,
        previous_slots_T,
        rows_T.view(shape),
        slots_T.view(shape),
        *of_sequences,
    )
