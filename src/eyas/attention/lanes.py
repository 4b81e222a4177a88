"""Lanes: the keys of one sequence, or of one root-to-leaf path, in the columns of their positions.

Promises: a tree is treated as its root-to-leaf chains, so prompts, chains and trees have the same
causal mask; each node is a query of exactly one lane. Columns past a lane's last query refer to the
null slot: they are masked, but a stale slot may hold another sequence's infinities, and 0 times
infinity is not 0.
Does not know: heads, layers, data types.

Legend: B sequences, W tree nodes, Y lanes, L key columns, Q queries of a lane, P depth of a path.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from eyas.attention.base import AttentionLayout, NodeGrid
from eyas.cache.slots import NULL_SLOT
from eyas.native.steps import compiled_steps
from eyas.ops.dispatch import Operation

KEY_BLOCK = 512
"""The key block of torch's CPU attention: widths above it are multiples of it."""
NARROW_WIDTHS = (192, 384)


def key_width(position: int) -> int:
    """Return the number of key columns of the query at `position`, which depends on nothing else."""
    for width in NARROW_WIDTHS:
        if position < width:
            return width
    return -(-(position + 1) // KEY_BLOCK) * KEY_BLOCK


@dataclass(frozen=True, slots=True)
class Lanes:
    """Lanes of one key width. rows_YQ: row of each query in the forward pass, -1 for padding."""

    slots_YL: torch.Tensor
    rows_YQ: torch.Tensor
    positions_YQ: torch.Tensor


def context_lanes(layout: AttentionLayout) -> list[Lanes]:
    """Return the lanes of prompt chunks: one for each run of queries with the same key width."""
    lanes: list[Lanes] = []
    device = layout.slots_AC.device
    for run in layout.contexts_on_host():
        start, stop = run.start, run.start + run.count
        while start < stop:
            width = key_width(start)
            end = min(stop, width)
            positions_1Q = torch.arange(start, end, device=device).unsqueeze(0)
            seat_1 = layout.seats_B[run.sequence : run.sequence + 1]
            slots_1L = layout.slots_AC[seat_1, :end]
            slots_1L = pad(slots_1L, (0, width - slots_1L.shape[1]), value=NULL_SLOT)
            lanes.append(Lanes(slots_1L, positions_1Q + (run.row - run.start), positions_1Q))
            start = end
    return lanes


@Operation
def node_lanes(nodes: NodeGrid, layout: AttentionLayout, *, may_repeat: bool = False) -> Lanes:
    """Return the lanes of tree nodes: one a sequence for chains, one a leaf for trees.

    All are as wide as the longest sequence may need. may_repeat: trees may have a lane for each node,
    which takes less time than to find leaves.
    """
    rows_BW, roots_B = nodes.rows_BW, nodes.roots_B
    width = key_width(layout.max_position)
    slots_BL = layout.slots_AC[layout.seats_B[: rows_BW.shape[0]], : layout.max_position + 1]
    slots_BL = slots_BL[:, :width]
    slots_BL = pad(slots_BL, (0, width - slots_BL.shape[1]), value=NULL_SLOT)
    if nodes.parents_BW is None:
        columns_W = torch.arange(rows_BW.shape[1], device=rows_BW.device)
        positions_BW = roots_B.unsqueeze(1) + columns_W
        last_B1 = torch.where(rows_BW >= 0, positions_BW, -1).amax(dim=1, keepdim=True)
        return Lanes(_up_to(slots_BL, last_B1), rows_BW, positions_BW)
    paths, owned = _leaf_paths(nodes.parents_BW, rows_BW)
    device = rows_BW.device
    lane_of = torch.tensor([b for b, _ in paths], device=device)
    depth = max(len(path) for _, path in paths)
    nodes_YP = torch.tensor([p + [p[-1]] * (depth - len(p)) for _, p in paths], device=device)
    # Past a path's end its last node repeats, in columns beyond every query of the lane.
    columns_YP = roots_B[lane_of].unsqueeze(1) + torch.arange(depth, device=device)
    columns_YP = columns_YP.clamp(max=width - 1)
    slots_YP = nodes.slots_BW[lane_of].gather(1, nodes_YP)
    slots_YL = slots_BL[lane_of].scatter(1, columns_YP, slots_YP)
    most = max(len(own) for own in owned)
    depths = [
        [path.index(node) for node in own] for (_, path), own in zip(paths, owned, strict=True)
    ]
    depth_YQ = torch.tensor([d + [-1] * (most - len(d)) for d in depths], device=device)
    node_YQ = nodes_YP.gather(1, depth_YQ.clamp(min=0))
    rows_YQ = torch.where(depth_YQ >= 0, rows_BW[lane_of].gather(1, node_YQ), -1)
    positions_YQ = roots_B[lane_of].unsqueeze(1) + depth_YQ.clamp(min=0)
    return Lanes(_up_to(slots_YL, positions_YQ.amax(dim=1, keepdim=True)), rows_YQ, positions_YQ)


@node_lanes.native
def _by_native(nodes: NodeGrid, layout: AttentionLayout, *, may_repeat: bool = False) -> Lanes:
    steps, parents_BW = compiled_steps(nodes.device), nodes.parents_BW
    if steps is None or not (may_repeat or parents_BW is None):
        return NotImplemented
    rows_BW, roots_B = nodes.rows_BW.contiguous(), nodes.roots_B.contiguous()
    of_keys = layout.slots_AC, layout.seats_B[: rows_BW.shape[0]], roots_B, rows_BW
    sizes = layout.max_position + 1, key_width(layout.max_position), NULL_SLOT
    if parents_BW is None:
        slots_BL, positions_BW = steps.chain_lanes(*of_keys, *sizes)
        return Lanes(slots_BL, rows_BW, positions_BW)
    slots_YL, positions_Y1, rows_Y1 = steps.tree_lanes(*of_keys, nodes.slots_BW, parents_BW, *sizes)
    return Lanes(slots_YL, rows_Y1, positions_Y1)


def split_by_width(lanes: Lanes) -> list[Lanes]:
    """Return the lanes grouped by the key width of their queries; a lane with queries of two widths is
    split."""
    rows, positions = lanes.rows_YQ.tolist(), lanes.positions_YQ.tolist()
    picked: dict[int, dict[int, list[int]]] = {}
    for c, (row_Q, position_Q) in enumerate(zip(rows, positions, strict=True)):
        for q, (row, position) in enumerate(zip(row_Q, position_Q, strict=True)):
            if row >= 0:
                picked.setdefault(key_width(position), {}).setdefault(c, []).append(q)
    if len(picked) == 1:
        width = next(iter(picked))
        return [Lanes(lanes.slots_YL[:, :width], lanes.rows_YQ, lanes.positions_YQ)]
    return [_pick(lanes, width, queries) for width, queries in sorted(picked.items())]


def _pick(lanes: Lanes, width: int, queries: dict[int, list[int]]) -> Lanes:
    """Return the given queries of the given lanes, `width` columns wide."""
    most = max(map(len, queries.values()))
    lane_Y = torch.tensor(list(queries))
    query_YQ = torch.tensor([q + [-1] * (most - len(q)) for q in queries.values()])
    at_YQ = query_YQ.clamp(min=0)
    rows_YQ = torch.where(query_YQ >= 0, lanes.rows_YQ[lane_Y].gather(1, at_YQ), -1)
    positions_YQ = lanes.positions_YQ[lane_Y].gather(1, at_YQ)
    last_Y1 = torch.where(rows_YQ >= 0, positions_YQ, -1).amax(dim=1, keepdim=True)
    return Lanes(_up_to(lanes.slots_YL[lane_Y, :width], last_Y1), rows_YQ, positions_YQ)


def _up_to(slots_YL: torch.Tensor, last_Y1: torch.Tensor) -> torch.Tensor:
    """Return the slots, with the null slot in the columns past `last_Y1`."""
    columns_L = torch.arange(slots_YL.shape[1], device=slots_YL.device)
    return torch.where(columns_L <= last_Y1, slots_YL, NULL_SLOT)


def _leaf_paths(
    parents_BW: torch.Tensor, rows_BW: torch.Tensor
) -> tuple[list[tuple[int, list[int]]], list[list[int]]]:
    """Return root-to-leaf paths as (sequence, nodes), and the nodes that are queries of each path."""
    paths: list[tuple[int, list[int]]] = []
    owned: list[list[int]] = []
    for b, (parents, rows) in enumerate(zip(parents_BW.tolist(), rows_BW.tolist(), strict=True)):
        nodes = [i for i, row in enumerate(rows) if row >= 0]
        inner = {parents[i] for i in nodes}
        taken: set[int] = set()
        for leaf in nodes:
            if leaf in inner:
                continue
            path = [leaf]
            while parents[path[-1]] >= 0:
                path.append(parents[path[-1]])
            path.reverse()
            paths.append((b, path))
            owned.append([i for i in path if i not in taken])
            taken.update(path)
    return paths, owned
