"""Keys and values of prompts' sequences, copied from their slots to consecutive rows.

Promises: the rows of a split are the slots of its positions, in the queries' number format, which
changes no number; zeros from the sequence's end on. Splits of a sequence follow one another.
Does not know: how the copies are read.

Legend: S slots, P copied positions, B sequences, A seats, C columns (positions), X tiles, Y splits,
G key/value heads, H head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from eyas.kernels.attention_prefill import cut
from eyas.kernels.launch import enter, launch_options
from eyas.kernels.softmax import SPLIT

POSITIONS = 16
"""Positions that a program copies."""
MOST_COLUMNS = 1024


@triton.jit(do_not_specialize=["num_columns"])
def copy_slots_kernel(
    kv_S2GH,
    out_P2GH,
    splits_Y3,
    seats_B,
    slots_AC,
    num_columns,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    POSITIONS: tl.constexpr,
    SPLIT: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program some positions of a split and some columns of a slot, which has WIDTH numbers."""
    enter(PDL)
    first = tl.program_id(0).to(tl.int64) * POSITIONS
    split = splits_Y3 + first // SPLIT * 3
    table = slots_AC + tl.load(seats_B + tl.load(split)) * num_columns
    row_P = first + tl.arange(0, POSITIONS)
    position_P = tl.load(split + 1) + row_P % SPLIT
    is_stored_P = position_P < tl.load(split + 2)
    slot_P = tl.load(table + position_P, mask=is_stored_P, other=0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < WIDTH
    source = kv_S2GH + slot_P[:, None] * WIDTH + column[None, :]
    copied = tl.load(source, mask=is_stored_P[:, None] & is_column[None, :], other=0.0)
    place = out_P2GH + row_P[:, None] * WIDTH + column[None, :]
    tl.store(place, copied.to(out_P2GH.dtype.element_ty), mask=is_column[None, :])


@dataclass(frozen=True, slots=True)
class CopiedTiles:
    """The tiles of prompt rows over copies, and what is copied.

    tiles_X4: row, position, count and first copied position of the sequence, for each tile; most keys
    first. splits_Y3: sequence, first position and end of the sequence, for each split; int64 both.
    """

    tiles_X4: np.ndarray
    splits_Y3: np.ndarray


def cut_copied(runs: Sequence[tuple[int, int, int, int]], queries: int) -> CopiedTiles:
    """Cut chunks into tiles of `queries` queries, and their sequences into splits. runs: as `cut`'s."""
    splits, bases, num_splits = [], [], 0
    for sequence, _, position, count in runs:
        starts = np.arange(0, position + count, SPLIT, dtype=np.int64)
        split = np.full((len(starts), 3), position + count, dtype=np.int64)
        split[:, 0], split[:, 1] = sequence, starts
        splits.append(split)
        bases.append(num_splits * SPLIT)
        num_splits += len(starts)
    numbered = [(b, row, position, count) for b, (_, row, position, count) in enumerate(runs)]
    tiles_X4 = np.roll(cut(numbered, queries), -1, axis=1)
    tiles_X4[:, 3] = np.array(bases, dtype=np.int64)[tiles_X4[:, 3]]
    return CopiedTiles(tiles_X4, np.concatenate(splits))


def copy_slots(
    kv_S2GH: torch.Tensor,
    splits_Y3: torch.Tensor,
    seats_B: torch.Tensor,
    slots_AC: torch.Tensor,
    dtype: torch.dtype,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """Return [P, 2 * G * H] the contents of the slots of `splits_Y3` (`CopiedTiles`), SPLIT rows of
    each."""
    width = kv_S2GH[0].numel()
    copied_PX = torch.empty((len(splits_Y3) * SPLIT, width), dtype=dtype, device=kv_S2GH.device)
    columns = min(triton.next_power_of_2(width), MOST_COLUMNS)
    copy_slots_kernel[(len(copied_PX) // POSITIONS, triton.cdiv(width, columns))](
        kv_S2GH,
        copied_PX,
        splits_Y3,
        seats_B,
        slots_AC,
        slots_AC.stride(0),
        WIDTH=width,
        COLUMNS=columns,
        POSITIONS=POSITIONS,
        SPLIT=SPLIT,
        PDL=pdl,
        num_warps=4,
        **launch_options(pdl),
    )
    return copied_PX
