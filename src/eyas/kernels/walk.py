"""The kernels of `ops.walk` and `ops.advance`.

Promises: one launch each, one program a sequence. Tokens and counts are those of the verifier's walks,
entry for entry; nodes up to the counts (past a walk in a tree they repeat its last node).
Does not know: how a row chose, which sequence owns a seat.

Legend: B sequences, W nodes, X entries of a report (W tokens, W nodes, the count), A seats, C columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import block_of, enter, launch_options

_WALKED = ("tokens", "parents", "sizes", "report")
_KEPT = ("report", "node_slots", "table_tokens", "table_slots")
_WALK_NUMBERS = ("width", *(f"{name}_stride" for name in _WALKED))
_ADVANCE_NUMBERS = ("width", "trash_seat", *(f"{name}_stride" for name in _KEPT))
"""One compiled kernel serves all widths of a power of two."""


@triton.jit(do_not_specialize=_WALK_NUMBERS)
def _walk_kernel(
    chosen, tokens, parents, sizes, report, width,
    tokens_stride, parents_stride, sizes_stride, report_stride,
    IS_CHAIN: tl.constexpr, BLOCK_W: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One sequence. A chain's walk is the run of draft tokens that were chosen; in a tree each step
    goes to the first child that carries the chosen token."""
    b = tl.program_id(0).to(tl.int64)
    enter(PDL)
    node_W = tl.arange(0, BLOCK_W)
    is_node_W = node_W < width
    size = tl.load(sizes + b * sizes_stride)
    token_W = tl.load(tokens + b * tokens_stride + node_W, mask=is_node_W, other=-1)
    own_chosen = chosen + b * width
    if IS_CHAIN:
        out_token_W = tl.load(own_chosen + node_W, mask=is_node_W, other=-1)
        is_after_W = is_node_W & (node_W > 0)
        before_W = tl.load(own_chosen + node_W - 1, mask=is_after_W, other=-1)
        refuses_W = is_after_W & ((before_W != token_W) | (node_W >= size))
        count = tl.min(tl.where(refuses_W, node_W, width))
        out_node_W = node_W.to(tl.int64)
        last = tl.load(own_chosen + count - 1)
    else:
        parent_W = tl.load(parents + b * parents_stride + node_W, mask=is_node_W, other=-2)
        is_real_W = is_node_W & (node_W < size)
        out_token_W = tl.full((BLOCK_W,), -1, tl.int64)
        out_node_W = tl.zeros((BLOCK_W,), tl.int64)
        at = 0
        count = 0
        last = tl.load(own_chosen)
        is_walking = True
        while is_walking:
            last = tl.load(own_chosen + at)
            out_token_W = tl.where(node_W == count, last, out_token_W)
            out_node_W = tl.where(node_W >= count, at, out_node_W)
            count += 1
            is_next_W = is_real_W & (parent_W == at) & (token_W == last)
            child = tl.min(tl.where(is_next_W, node_W, BLOCK_W))
            is_walking = (child < BLOCK_W) & (count < width)
            at = tl.where(child < BLOCK_W, child, at)
    count -= (last < 0).to(tl.int32)
    count = tl.where(count == 0, -1, count)
    own_report = report + b * report_stride
    tl.store(own_report + node_W, out_token_W, mask=is_node_W)
    tl.store(own_report + width + node_W, out_node_W, mask=is_node_W)
    tl.store(own_report + 2 * width, count.to(tl.int64))


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


def walk(
    chosen_R: torch.Tensor,
    tokens_BW: torch.Tensor,
    parents_BW: torch.Tensor | None,
    sizes_B: torch.Tensor,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """`eyas.draft_tree.Verdict.report_BX` of each tree's walk.

    chosen_R: what each node's row chose, [B * W] or [B, W] without gaps. parents_BW: None for chains.
    Torch: `ops.walk.by_torch`.
    """
    num, width = tokens_BW.shape
    report_BX = torch.empty((num, 2 * width + 1), dtype=torch.int64, device=tokens_BW.device)
    if num:
        _walk_kernel[(num,)](
            chosen_R,
            tokens_BW,
            parents_BW,
            sizes_B,
            report_BX,
            width,
            tokens_BW.stride(0),
            0 if parents_BW is None else parents_BW.stride(0),
            sizes_B.stride(0),
            2 * width + 1,
            IS_CHAIN=parents_BW is None,
            BLOCK_W=block_of(width),
            PDL=pdl,
            num_warps=1,
            **launch_options(pdl),
        )
    return report_BX


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
