"""The kernel of `ops.tail_rows`: the missing rows of a draft network, as short chains up to the root.

Promises: one launch, one program a sequence. What is read of the table and written to it belongs to
the sequence's own seat; sequences in the padding seat all write the same there.
Does not know: features, networks, trees.

Legend: B sequences, P rows of a sequence, T rows (B * P), A seats, C columns (positions), X
numbers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import block_of, enter, launch_options
from eyas.kernels.node_rows import empty_numbers

_NUM_ROW_FIELDS, _NUM_SEQUENCE_FIELDS = 6, 4
_NUMBERS = ("longest", "padded_rows", "padded_sequences", "max_position", "null_slot")
_STRIDES = ("node_slots_stride", "table_tokens_stride", "table_slots_stride")


@triton.jit(
    do_not_specialize=(*_NUMBERS, *_STRIDES),
    do_not_specialize_on_alignment=("seats", "roots", "node_slots"),
)
def tail_rows_kernel(
    seats, roots, made, drafts, node_slots, table_tokens, table_slots, numbers, of_sequences,
    longest, padded_rows, padded_sequences, max_position, null_slot,
    node_slots_stride, table_tokens_stride, table_slots_stride,
    HAS_DRAFTS: tl.constexpr, BLOCK_P: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (sequence), one warp: `made` is read before any thread of it writes."""
    enter(PDL)
    b = tl.program_id(0).to(tl.int64)
    seat = tl.load(seats + b)
    root = tl.load(roots + b)
    start = tl.minimum(tl.load(made + seat), root)
    root_slot = tl.load(node_slots + b * node_slots_stride)
    own_slots = table_slots + seat * table_slots_stride
    own_tokens = table_tokens + seat * table_tokens_stride
    drafts_here = True
    if HAS_DRAFTS:
        drafts_here = tl.load(drafts + b) != 0
        start = tl.where(drafts_here, start, root)
    step_P = tl.arange(0, BLOCK_P)
    is_row_P = step_P < longest
    position_P = start + step_P
    is_real_P = position_P <= root
    position_P = tl.where(is_real_P, position_P, 0)
    token_P = tl.load(own_tokens + position_P, mask=is_row_P, other=0)
    previous_P = tl.maximum(position_P - 1, 0)
    # The root's own slot is put into the table below.
    slot_P = tl.load(own_slots + position_P, mask=is_row_P & (position_P != root), other=0)
    slot_P = tl.where(position_P == root, root_slot, slot_P)
    before_P = tl.load(own_slots + previous_P, mask=is_row_P & (previous_P != root), other=0)
    before_P = tl.where(previous_P == root, root_slot, before_P)
    written_P = tl.where(is_real_P & drafts_here, slot_P, null_slot)
    row_P = b * longest + step_P
    own = numbers + row_P
    stride = padded_rows.to(tl.int64)
    tl.store(own, token_P, mask=is_row_P)
    tl.store(own + stride, tl.minimum(position_P, max_position), mask=is_row_P)
    tl.store(own + 2 * stride, written_P, mask=is_row_P)
    tl.store(own + 3 * stride, before_P, mask=is_row_P)
    tl.store(own + 4 * stride, slot_P, mask=is_row_P)
    tl.store(own + 5 * stride, row_P, mask=is_row_P)
    tl.store(of_sequences + b, start)
    last = tl.minimum(root - start, longest - 1)
    tl.store(of_sequences + padded_sequences + b, b * longest + last)
    tl.store(of_sequences + 2 * padded_sequences + b, tl.load(own_tokens + root))
    tl.store(of_sequences + 3 * padded_sequences + b, b)
    tl.store(own_slots + root, root_slot)
    if drafts_here:
        tl.store(made + seat, root + 1)


def tail_rows(
    seats_B: torch.Tensor,
    roots_B: torch.Tensor,
    made_A: torch.Tensor,
    drafts_B: torch.Tensor | None,
    node_slots_BW: torch.Tensor,
    tokens_AC: torch.Tensor,
    slots_AC: torch.Tensor,
    longest: int,
    max_position: int,
    null_slot: int,
    *,
    pdl: bool = False,
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """`longest` rows of each sequence, from its first missing one on; those past its root stand at
    position 0. Reference: `ops.tail_rows.by_torch`, whose arguments these are.

    Returns token, position, written slot, slot before, own slot and number of each row, then first
    position, root's row, root's token and number of each sequence.
    """
    num, device = len(seats_B), seats_B.device
    numbers_XT = empty_numbers(_NUM_ROW_FIELDS, num * longest, device)
    of_sequences_XB = empty_numbers(_NUM_SEQUENCE_FIELDS, num, device)
    if num:
        tail_rows_kernel[(num,)](
            seats_B, roots_B, made_A, made_A if drafts_B is None else drafts_B, node_slots_BW,
            tokens_AC, slots_AC, numbers_XT, of_sequences_XB,
            longest, numbers_XT.stride(0), of_sequences_XB.stride(0), max_position, null_slot,
            node_slots_BW.stride(0), tokens_AC.stride(0), slots_AC.stride(0),
            drafts_B is not None, block_of(longest), pdl,
            num_warps=1, **launch_options(pdl),
        )  # fmt: skip
    return numbers_XT.unbind(0), of_sequences_XB.unbind(0)
