"""The kernels of `ops.state_lines`: the lines of a forward pass, from the sequence table.

Promises: one launch each, one program a lane; nodes of a tree follow their parents all at once.
Does not know: layers, how a state is updated.

Legend: Y lanes (B with a tree, then C with a prompt chunk), L lines, J taps, P reach, E input columns
of a seat, B sequences with a tree, W nodes, X numbers, A seats, C columns of the sequence table.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import enter, launch_options

_NUM_FIELDS = 8
_BLOCK = 128
"""Rows of a prompt chunk at once."""
_NUMBERS = ("num_rooted", "num_runs", "num_rows", "num_seats", "num_nodes")
_MOST = ("most_stored", "most_steps")
_STRIDES = ("nodes_stride", "roots_stride", "parents_stride", "slots_stride")


@triton.jit
def _source(history, known, first_row, at, mask):
    """The sources of the inputs `at` of a lane: the first `known` ones are in memory, then come the
    rows of its chunk."""
    stored = tl.load(history + at, mask=mask & (at < known), other=0)
    return tl.where(at < known, stored, first_row + at - known)


@triton.jit(do_not_specialize=(*_NUMBERS, *_MOST, *_STRIDES))
def state_lines_kernel(
    seats, runs, nodes, roots, parents, slots, positions, node_slots,
    lanes, taps, windows, steps, histories,
    num_rooted, num_runs, num_rows, num_seats, num_nodes, most_stored, most_steps,
    nodes_stride, roots_stride, parents_stride, slots_stride,
    REACH: tl.constexpr, IS_TREE: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One lane: its numbers, the sources of its lines, its walk through its tree."""
    enter(PDL)
    y = tl.program_id(0).to(tl.int64)
    num_lanes = tl.num_programs(0).to(tl.int64)
    seat = tl.load(seats + y)
    num_columns = most_stored.to(tl.int64) + REACH
    has_run = y >= num_rooted
    tree = y
    is_part = y < 0
    if has_run:
        rooted_B = tl.arange(0, BLOCK_B)
        is_rooted_B = rooted_B < num_rooted
        own_B = is_rooted_B & (tl.load(seats + rooted_B, mask=is_rooted_B, other=-1) == seat)
        tree = tl.min(tl.where(own_B, rooted_B, BLOCK_B), 0).to(tl.int64)
        tree = tl.where(tree < BLOCK_B, tree, -1)
    else:
        run_C = tl.arange(0, BLOCK_C)
        is_run_C = run_C < num_runs
        chunked_C = tl.load(seats + num_rooted + run_C, mask=is_run_C, other=-1)
        is_part = tl.max((is_run_C & (chunked_C == seat)).to(tl.int32), 0) > 0
    run = runs + (y - num_rooted) * 3
    first_row = tl.load(run, mask=has_run, other=0)
    root = tl.load(roots + y * roots_stride, mask=y < num_rooted, other=0)
    start = tl.load(run + 1, mask=has_run, other=root)
    count = tl.load(run + 2, mask=has_run, other=0)

    # The accepted nodes: those whose slots stand in the table from the state's position on.
    position = tl.load(positions + seat)
    is_first = start == 0
    num_stored = tl.where(is_first, 0, start - position)
    is_lost = (num_stored < 0) | (num_stored > most_stored) | ((position < 0) & (start > 0))
    num_stored = tl.where(is_lost | is_part, 0, num_stored)
    history = histories + y * num_columns
    at_E = tl.arange(0, BLOCK_E)
    own_slots = node_slots + seat * most_stored
    slot_E = tl.load(own_slots + at_E, mask=at_E < most_stored, other=-1)
    stored = 0
    while stored < num_stored:
        slot = tl.load(slots + seat * slots_stride + position + stored)
        column = tl.min(tl.where((slot_E == slot) & (at_E < most_stored), at_E, BLOCK_E), 0)
        is_lost = is_lost | (column == BLOCK_E)
        source = -2 - (seat * num_columns + REACH + tl.minimum(column, most_stored - 1))
        tl.store(history + REACH + stored, source)
        stored += 1
    num_stored = tl.where(is_lost, 0, num_stored)
    base = tl.where(is_first, num_seats.to(tl.int64), seat)
    first_column = base * num_columns
    for column in tl.static_range(REACH):
        tl.store(history + column, -2 - (first_column + column))
    base = tl.where(is_lost, -1, base)
    tl.debug_barrier()

    known = REACH + num_stored
    trunk = num_stored + count
    num_taps: tl.constexpr = REACH + 1
    own_taps = taps + (num_rows + y * most_stored) * num_taps
    for tap in tl.static_range(num_taps):
        is_line_E = at_E < most_stored
        is_stored_E = is_line_E & (at_E < num_stored)
        source_E = _source(history, known, first_row, at_E + tap, is_stored_E)
        source_E = tl.where(is_stored_E, source_E, -1)
        tl.store(own_taps + at_E * num_taps + tap, source_E, mask=is_line_E)
        done = y * 0
        while done < count:
            row_X = done + tl.arange(0, BLOCK)
            is_row_X = row_X < count
            source_X = _source(history, known, first_row, num_stored + row_X + tap, is_row_X)
            tl.store(taps + (first_row + row_X) * num_taps + tap, source_X, mask=is_row_X)
            done += BLOCK
    for column in tl.static_range(REACH):
        at = trunk + column
        source = tl.load(history + at, mask=at < known, other=0)
        source = tl.where(at < known, source, first_row + at - known)
        tl.store(windows + y * REACH + column, tl.where(is_part, -1, source))

    num_steps = y * 0
    if (tree >= 0) & (is_part == 0):
        node_W = tl.arange(0, BLOCK_W)
        is_node_W = node_W < num_nodes
        own_rows, own_parents = nodes + tree * nodes_stride, parents + tree * parents_stride
        row_W = tl.load(own_rows + node_W, mask=is_node_W, other=-1)
        is_node_W = is_node_W & (row_W >= 0)
        is_inner_W = is_node_W & (node_W < 0)
        depth_W = tl.where(is_node_W, node_W, -1).to(tl.int64)
        if IS_TREE:
            child = 1
            while child < num_nodes:
                is_child = tl.load(own_rows + child) >= 0
                parent = tl.load(own_parents + child)
                is_inner_W = is_inner_W | (is_child & (node_W == parent))
                child += 1
            depth_W = tl.full((BLOCK_W,), -1, tl.int64)
            above_W = tl.where(is_node_W, node_W, -1).to(tl.int64)
            step = 0
            while (step < num_nodes) & (tl.max(above_W, 0) >= 0):
                is_above_W = above_W >= 0
                depth_W += is_above_W.to(tl.int64)
                above_W = tl.load(own_parents + above_W, mask=is_above_W, other=-1)
                step += 1
        else:
            next_W = tl.load(own_rows + node_W + 1, mask=node_W + 1 < num_nodes, other=-1)
            is_inner_W = next_W >= 0
        is_leaf_W = is_node_W & (is_inner_W == 0)
        length_W = tl.where(is_leaf_W, depth_W + 1, 0)
        end_W = tl.cumsum(length_W, 0)
        num_steps = tl.minimum(tl.max(end_W, 0), most_steps)
        own_steps = steps + tree * most_steps
        above_W = tl.where(is_node_W, node_W, -1).to(tl.int64)
        step = 0
        while (step < num_nodes) & (tl.max(above_W, 0) >= 0):
            is_above_W = above_W >= 0
            source_W = tl.load(own_rows + above_W, mask=is_above_W, other=-1)
            if IS_TREE:
                next_W = tl.load(own_parents + above_W, mask=is_above_W, other=-1)
            else:
                next_W = above_W - 1
            at_W = end_W - 1 - step
            starts_W = (step == depth_W) & (at_W > 0)
            is_step_W = is_above_W & is_leaf_W & (step <= depth_W) & (at_W < most_steps)
            tl.store(own_steps + at_W, 2 * source_W + starts_W.to(tl.int64), mask=is_step_W)
            if step <= REACH:
                tap_W = taps + row_W * num_taps + REACH - step
                tl.store(tap_W, source_W, mask=is_above_W)
            above_W = next_W
            step += 1
        for tap in tl.static_range(REACH):
            # The tap is REACH - tap positions before the node, above the root.
            at_W = REACH + trunk + depth_W + tap - REACH
            is_above_W = is_node_W & (depth_W + tap < REACH)
            source_W = _source(history, known, first_row, at_W, is_above_W)
            tl.store(taps + row_W * num_taps + tap, source_W, mask=is_above_W)

    own = lanes + y
    end = tl.where(is_lost, -1, start + count)
    tl.store(own, tl.where(is_part, -1, seat))
    tl.store(own + num_lanes, tl.where(is_part, -1, base))
    tl.store(own + 2 * num_lanes, tl.where(is_part, -1, num_stored))
    tl.store(own + 3 * num_lanes, tl.where(is_part, -1, first_row))
    tl.store(own + 4 * num_lanes, tl.where(is_part, -1, count))
    tl.store(own + 5 * num_lanes, tl.where(is_part, -1, tree))
    tl.store(own + 6 * num_lanes, tl.where(is_part, -1, num_steps))
    tl.store(own + 7 * num_lanes, tl.where(is_part, -1, end))
    if is_part == 0:
        tl.store(positions + seat, -1)


@triton.jit(do_not_specialize=("num_nodes", "most_stored", "nodes_stride", "slots_stride"))
def finish_lines_kernel(
    lanes, nodes, slots, positions, node_slots,
    num_nodes, most_stored, nodes_stride, slots_stride,
    BLOCK_E: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One lane: the position of its seat's state, the slots of its nodes."""
    enter(PDL)
    y = tl.program_id(0).to(tl.int64)
    num_lanes = tl.num_programs(0).to(tl.int64)
    seat = tl.load(lanes + y)
    tree = tl.load(lanes + 5 * num_lanes + y)
    if seat >= 0:
        tl.store(positions + seat, tl.load(lanes + 7 * num_lanes + y))
        at_E = tl.arange(0, BLOCK_E)
        is_node_E = (at_E < num_nodes) & (tree >= 0)
        row_E = tl.load(nodes + tree * nodes_stride + at_E, mask=is_node_E, other=-1)
        slot_E = tl.load(slots + tree * slots_stride + at_E, mask=is_node_E, other=-1)
        slot_E = tl.where(row_E >= 0, slot_E, -1)
        tl.store(node_slots + seat * most_stored + at_E, slot_E, mask=at_E < most_stored)


def state_lines(
    seats_Y: torch.Tensor,
    runs_C3: torch.Tensor,
    nodes_BW: torch.Tensor,
    roots_B: torch.Tensor,
    parents_BW: torch.Tensor | None,
    slots_AC: torch.Tensor,
    positions_A: torch.Tensor,
    node_slots_AW: torch.Tensor,
    reach: int,
    num_rows: int,
    most_steps: int,
    *,
    pdl: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`lanes_8Y`, `taps_LJ`, `windows_YP` and `steps_BX` of `ops.state_lines.Lines`. Reference:
    `ops.state_lines.by_torch`, whose arguments these are."""
    num_rooted, num_nodes = nodes_BW.shape
    num_lanes, num_runs, most_stored = len(seats_Y), len(runs_C3), node_slots_AW.shape[1]
    assert num_lanes == num_rooted + num_runs and positions_A.is_contiguous()
    assert node_slots_AW.is_contiguous() and runs_C3.is_contiguous() and slots_AC.stride(1) == 1
    if nodes_BW.stride(1) != 1:
        nodes_BW = nodes_BW.contiguous()
    if parents_BW is not None and parents_BW.stride(1) != 1:
        parents_BW = parents_BW.contiguous()

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int64, device=seats_Y.device)

    lanes_8Y, windows_YP = empty(_NUM_FIELDS, num_lanes), empty(num_lanes, reach)
    taps_LJ = empty(num_rows + num_lanes * most_stored, reach + 1)
    steps_BX = empty(num_rooted, most_steps)
    state_lines_kernel[(num_lanes,)](
        seats_Y, runs_C3, nodes_BW, roots_B, nodes_BW if parents_BW is None else parents_BW,
        slots_AC, positions_A, node_slots_AW,
        lanes_8Y, taps_LJ, windows_YP, steps_BX, empty(num_lanes, reach + most_stored),
        num_rooted, num_runs, num_rows, len(positions_A), num_nodes, most_stored, most_steps,
        nodes_BW.stride(0), roots_B.stride(0), 0 if parents_BW is None else parents_BW.stride(0),
        slots_AC.stride(0),
        REACH=reach, IS_TREE=parents_BW is not None,
        BLOCK_B=triton.next_power_of_2(max(num_rooted, 1)),
        BLOCK_C=triton.next_power_of_2(max(num_runs, 1)),
        BLOCK_W=triton.next_power_of_2(num_nodes),
        BLOCK_E=triton.next_power_of_2(max(most_stored, 1)),
        BLOCK=_BLOCK, PDL=pdl, num_warps=1 if num_nodes <= 32 else 4, **launch_options(pdl),
    )  # fmt: skip
    return lanes_8Y, taps_LJ, windows_YP, steps_BX


def finish_lines(
    lanes_8Y: torch.Tensor,
    nodes_BW: torch.Tensor,
    slots_BW: torch.Tensor,
    positions_A: torch.Tensor,
    node_slots_AW: torch.Tensor,
    *,
    pdl: bool = False,
) -> None:
    """Write positions and slots of nodes. Reference: `ops.state_lines.finish_lines.by_torch`."""
    most_stored = node_slots_AW.shape[1]
    assert nodes_BW.stride(1) == 1 and slots_BW.stride(1) == 1 and lanes_8Y.is_contiguous()
    finish_lines_kernel[(lanes_8Y.shape[1],)](
        lanes_8Y, nodes_BW, slots_BW, positions_A, node_slots_AW,
        nodes_BW.shape[1], most_stored, nodes_BW.stride(0), slots_BW.stride(0),
        BLOCK_E=triton.next_power_of_2(max(most_stored, 1)), PDL=pdl, num_warps=1,
        **launch_options(pdl),
    )  # fmt: skip
