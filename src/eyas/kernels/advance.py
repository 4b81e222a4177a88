"""The kernel of `ops.advance`: one program a sequence.

Promises: only the sequence's own seat is written.
Does not know: how a verdict came about, which sequence owns a seat.

Legend: B sequences, W nodes, X entries of a report (W tokens, W nodes, the count), A seats, C columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import block_of, enter, launch_options

_KEPT = ("report", "node_slots", "table_tokens", "table_slots")
_ADVANCE_NUMBERS = ("width", "trash_seat", *(f"{name}_stride" for name in _KEPT))
"""One compiled kernel serves all widths of a power of two."""


@triton.jit(do_not_specialize=_ADVANCE_NUMBERS)
def _advance_kernel(
    seats, roots, report, node_slots, table_tokens, table_slots, lengths,
    width, trash_seat, report_stride, node_slots_stride, table_tokens_stride, table_slots_stride,
    IS_CHAIN: tl.constexpr, HAS_TRASH: tl.constexpr, BLOCK_W: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One sequence's tokens after the root, its accepted nodes' slots from the root on, its length."""
    b = tl.program_id(0).to(tl.int64)
    enter(PDL)
    seat = tl.load(seats + b)
    is_kept = True
    if HAS_TRASH:
        is_kept = seat != trash_seat
    if is_kept:
        root = tl.load(roots + b)
        own_report = report + b * report_stride
        count = tl.maximum(tl.load(own_report + 2 * width), 0)
        at_W = tl.arange(0, BLOCK_W)
        is_kept_W = (at_W < count) & (at_W < width)
        token_W = tl.load(own_report + at_W, mask=is_kept_W, other=0)
        own_tokens = table_tokens + seat * table_tokens_stride + root + 1
        tl.store(own_tokens + at_W, token_W, mask=is_kept_W)
        if not IS_CHAIN:
            node_W = tl.load(own_report + width + at_W, mask=is_kept_W, other=0)
            slot_W = tl.load(node_slots + b * node_slots_stride + node_W, mask=is_kept_W, other=0)
            own_slots = table_slots + seat * table_slots_stride + root
            tl.store(own_slots + at_W, slot_W, mask=is_kept_W)
        tl.store(lengths + seat, root + 1 + count)


def advance(
    seats_B: torch.Tensor,
    roots_B: torch.Tensor,
    report_BX: torch.Tensor,
    node_slots_BW: torch.Tensor,
    tokens_AC: torch.Tensor,
    slots_AC: torch.Tensor,
    lengths_A: torch.Tensor,
    *,
    is_chain: bool,
    trash_seat: int | None,
    pdl: bool = False,
) -> None:
    """Append each verdict to its seat; a count of -1 appends nothing. Sequences at `trash_seat` change
    nothing. No column is written but those of what is appended (torch writes the trash column too).

    Torch: `ops.advance.by_torch`.
    """
    num, width = report_BX.shape[0], report_BX.shape[1] // 2
    if not num:
        return
    _advance_kernel[(num,)](
        seats_B,
        roots_B,
        report_BX,
        node_slots_BW,
        tokens_AC,
        slots_AC,
        lengths_A,
        width,
        -1 if trash_seat is None else trash_seat,
        report_BX.stride(0),
        node_slots_BW.stride(0),
        tokens_AC.stride(0),
        slots_AC.stride(0),
        IS_CHAIN=is_chain,
        HAS_TRASH=trash_seat is not None,
        BLOCK_W=block_of(width),
        PDL=pdl,
        num_warps=1,
        **launch_options(pdl),
    )
