"""Where each row of a forward pass finds the slots of the positions before it, for all layers.

Promises: one launch a forward pass for its tree nodes. A position before a row's root is in the
sequence table; from the root on, the slots of a tree are those of the row's own path
(`kernels.paths`).
Does not know: what is stored in the slots.

Legend: T rows, B sequences, W nodes of a tree, A seats, C columns (positions).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import enter, launch_options

ALL = 1 << 40
"""A root behind every position: all slots of the row are in the table."""
NUM_FIELDS = 4
BLOCK = 128


@triton.jit(do_not_specialize=["num_nodes", "num_columns", "limit", "num_rows"])
def node_places_kernel(
    nodes_T,
    positions_BW,
    roots_B,
    seats_B,
    places_4T,
    num_nodes,
    num_columns,
    limit,
    num_rows,
    stride,
    IS_TREE: tl.constexpr,
    ALL: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program BLOCK rows."""
    enter(PDL)
    row_T = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_row = row_T < num_rows
    node_T = tl.load(nodes_T + row_T, mask=is_row, other=-1)
    is_node = node_T >= 0
    at_T = tl.where(is_node, node_T, 0)
    position_T = tl.load(positions_BW + at_T, mask=is_node, other=-1)
    sequence_T = at_T // num_nodes
    seat_T = tl.load(seats_B + sequence_T, mask=is_node, other=0)
    root_T = tl.full((BLOCK,), ALL, tl.int64)
    if IS_TREE:
        root_T = tl.load(roots_B + sequence_T, mask=is_node, other=0)
    seen_T = tl.minimum(position_T, limit.to(tl.int64))
    tl.store(places_4T + row_T, seen_T, mask=is_row)
    tl.store(places_4T + stride + row_T, root_T, mask=is_row)
    tl.store(places_4T + 2 * stride + row_T, seat_T * num_columns, mask=is_row)
    tl.store(places_4T + 3 * stride + row_T, at_T * num_nodes + position_T, mask=is_row)


@triton.jit
def slots_at(position_L, is_there, root, table, path, slots_AC, paths_BWP, window_slots):
    """The slots of these positions on a row's path. root, table, path: its fields of the places."""
    in_table = position_L < root
    slot_L = tl.load(slots_AC + table + position_L, mask=is_there & in_table, other=0)
    slot_L += tl.load(paths_BWP + path - position_L, mask=is_there & (in_table == 0), other=0)
    if window_slots is not None:
        slot_L = tl.load(window_slots + slot_L)
    return slot_L


def node_places(
    nodes_T: torch.Tensor,
    positions_BW: torch.Tensor,
    roots_B: torch.Tensor,
    seats_B: torch.Tensor,
    places_4T: torch.Tensor,
    num_columns: int,
    limit: int,
    *,
    is_tree: bool,
    pdl: bool = False,
) -> None:
    """Write the places of rows that are nodes: the position up to which the row sees (-1 for none), its
    root, the beginning of its row of the table, and the place of position 0 in `paths_BWP`, backwards
    from which the slots of its path stand.

    nodes_T, positions_BW: from `kernels.paths.node_paths`. limit: upper bound of positions. Rows of
    places_4T beyond the nodes are left alone.
    """
    num_rows = len(nodes_T)
    if not num_rows:
        return
    node_places_kernel[(-(-num_rows // BLOCK),)](
        nodes_T,
        positions_BW,
        roots_B,
        seats_B,
        places_4T,
        positions_BW.shape[1],
        num_columns,
        limit,
        num_rows,
        places_4T.stride(0),
        IS_TREE=is_tree,
        ALL=ALL,
        BLOCK=BLOCK,
        num_warps=4,
        PDL=pdl,
        **launch_options(pdl),
    )
