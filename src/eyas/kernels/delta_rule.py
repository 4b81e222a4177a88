"""The kernels of `ops.delta_rule`: the convolution of all lines at once, then a walk along each lane.

A program of the walk keeps a tile of a head's state, all keys and some of the values, in registers: it
updates it with the accepted nodes and the rows of a chunk, writes it to the seat, and goes on through
the tree, from leaf to leaf; before each further leaf it reads the tile back. There is one loop with
one update, so that a line has the same instructions wherever it stands.

Promises: a line's bits depend on its path alone; tiles have one size, and sums one order. Only programs
of a lane's own seat write there. Running twice gives the same outputs and states once positions have
been noted (`finish_lines`).
Does not know: how lines were found.

Legend: T rows, L lines, X numbers of a row's inputs, C convolved columns of it, N value heads, G key
heads, H key dim, D value dim, J taps, A rows of the states, E input columns of a seat, Y lanes, W
nodes, P reach.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import enter, launch_options

BLOCK_VALUES = 32
"""Values of a head that a program of the walk has."""
NUM_WARPS = 4
BLOCK_INPUTS = 1024
"""Inputs that a program stores."""


@triton.jit
def _convolved(inputs, stored, taps, own_taps, column_X, is_inside_X, row_stride, size,
               NUM_TAPS: tl.constexpr):  # fmt: skip
    """silu of the sum of taps over columns of a line's inputs, float32."""
    mixed_X = tl.zeros(column_X.shape, tl.float32)
    for tap in tl.static_range(NUM_TAPS):
        x_X = _inputs(
            inputs, stored, tl.load(own_taps + tap), column_X, is_inside_X, row_stride, size
        )
        weight_X = tl.load(taps + column_X * NUM_TAPS + tap, mask=is_inside_X, other=0.0)
        mixed_X += x_X.to(tl.float32) * weight_X
    return mixed_X / (1.0 + tl.exp(-mixed_X))


@triton.jit
def _inputs(inputs, stored, source, column_X, is_inside_X, row_stride, size):
    """Columns of the inputs of a source: a row, or a stored one."""
    is_row = source >= 0
    own_X = tl.load(
        inputs + tl.maximum(source, 0) * row_stride + column_X, mask=is_inside_X & is_row, other=0.0
    )
    kept_X = tl.load(
        stored + tl.maximum(-2 - source, 0) * size + column_X,
        mask=is_inside_X & (is_row == 0),
        other=0.0,
    )
    return tl.where(is_row, own_X, kept_X)


@triton.jit(do_not_specialize=("row_stride", "size"))
def convolve_kernel(
    inputs, stored, line_taps, taps, log_decays, time_biases,
    queries, keys, values, decays, strengths,
    row_stride, size, epsilon, scale,
    NUM_KEY_HEADS: tl.constexpr, NUM_VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, NUM_TAPS: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a line and key head (its query and key), or value head (its values and gates)."""
    enter(PDL)
    line, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    own_taps = line_taps + line * NUM_TAPS
    latest = tl.load(own_taps + NUM_TAPS - 1)
    num_keys: tl.constexpr = NUM_KEY_HEADS * KEY_DIM
    if latest != -1:
        if head < NUM_KEY_HEADS:
            inner_H = tl.arange(0, BLOCK_H)
            is_inside_H = inner_H < KEY_DIM
            column_H = head * KEY_DIM + inner_H
            q_H = _convolved(
                inputs, stored, taps, own_taps, column_H, is_inside_H, row_stride, size, NUM_TAPS
            )
            k_H = _convolved(
                inputs, stored, taps, own_taps, num_keys + column_H, is_inside_H, row_stride, size,
                NUM_TAPS,
            )  # fmt: skip
            q_H = q_H * tl.rsqrt(tl.sum(q_H * q_H, 0) + epsilon) * scale
            k_H = k_H * tl.rsqrt(tl.sum(k_H * k_H, 0) + epsilon)
            tl.store(queries + line * num_keys + column_H, q_H, mask=is_inside_H)
            tl.store(keys + line * num_keys + column_H, k_H, mask=is_inside_H)
        else:
            n = head - NUM_KEY_HEADS
            inner_D = tl.arange(0, BLOCK_D)
            is_inside_D = inner_D < VALUE_DIM
            column_D = n * VALUE_DIM + inner_D
            v_D = _convolved(
                inputs, stored, taps, own_taps, 2 * num_keys + column_D, is_inside_D, row_stride,
                size, NUM_TAPS,
            )  # fmt: skip
            tl.store(
                values + line * (NUM_VALUE_HEADS * VALUE_DIM) + column_D, v_D, mask=is_inside_D
            )
            gate_2 = tl.arange(0, 2)
            gates = 2 * num_keys + NUM_VALUE_HEADS * VALUE_DIM + gate_2 * NUM_VALUE_HEADS + n
            gate_2 = _inputs(
                inputs, stored, latest, gates, gate_2 >= 0, row_stride, size
            ).to(tl.float32)  # fmt: skip
            is_time_2 = tl.arange(0, 2) == 1
            strength = tl.sum(tl.where(is_time_2, 0.0, gate_2), 0)
            time = tl.sum(tl.where(is_time_2, gate_2, 0.0), 0) + tl.load(time_biases + n)
            power = tl.exp(-tl.abs(time))
            above = 1.0 + power  # log(1 + x) that keeps small x (Kahan)
            rest = tl.where(above == 1.0, power, tl.log(above) * power / (above - 1.0))
            time = tl.where(time > 20.0, time, tl.maximum(time, 0.0) + rest)
            decay = tl.exp(-tl.exp(tl.load(log_decays + n)) * time)
            tl.store(decays + line * NUM_VALUE_HEADS + n, decay)
            tl.store(strengths + line * NUM_VALUE_HEADS + n, 1.0 / (1.0 + tl.exp(-strength)))


@triton.jit
def _line(s, first_stored, num_stored, first_row, trunk, num_lines, steps):
    """The line at place s of a lane's walk, twice, plus 1 where the walk starts again."""
    in_tree = (s >= trunk) & (s < num_lines)
    step = tl.load(steps + tl.maximum(s - trunk, 0), mask=in_tree, other=0)
    line = tl.where(s < num_stored, first_stored + s, first_row + s - num_stored)
    return tl.where(s >= trunk, step, 2 * line)


@triton.jit
def _walk(
    queries, keys, values, decays, strengths, states, lanes, steps, out, y, part,
    num_rows, most_stored, most_steps,
    NUM_KEY_HEADS: tl.constexpr, NUM_VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, NUM_PARTS: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    num_lanes = tl.num_programs(0).to(tl.int64)
    own = lanes + y
    seat, base = tl.load(own), tl.load(own + num_lanes)
    num_stored = tl.load(own + 2 * num_lanes)
    first_row = tl.load(own + 3 * num_lanes)
    trunk = num_stored + tl.load(own + 4 * num_lanes)
    tree, num_steps = tl.load(own + 5 * num_lanes), tl.load(own + 6 * num_lanes)
    if seat >= 0:
        n = part // NUM_PARTS
        g = n // (NUM_VALUE_HEADS // NUM_KEY_HEADS)
        key_H = tl.arange(0, BLOCK_H)
        value_V = (part % NUM_PARTS) * BLOCK_V + tl.arange(0, BLOCK_V)
        is_key_H, is_value_V = key_H < KEY_DIM, value_V < VALUE_DIM
        is_inside_HV = is_key_H[:, None] & is_value_V[None, :]
        tile_HV = n * (KEY_DIM * VALUE_DIM) + key_H[:, None] * VALUE_DIM + value_V[None, :]
        state_size: tl.constexpr = NUM_VALUE_HEADS * KEY_DIM * VALUE_DIM
        own_state = states + seat * state_size + tile_HV
        source = states + tl.maximum(base, 0) * state_size + tile_HV
        state_HV = tl.load(source, mask=is_inside_HV, other=0.0)
        state_HV = tl.where(base >= 0, state_HV, float("nan"))
        own_queries = queries + g * KEY_DIM + key_H
        own_keys = keys + g * KEY_DIM + key_H
        own_values = values + n * VALUE_DIM + value_V
        own_out = out + n * VALUE_DIM + value_V
        key_size: tl.constexpr = NUM_KEY_HEADS * KEY_DIM
        value_size: tl.constexpr = NUM_VALUE_HEADS * VALUE_DIM
        first_stored = num_rows + y * most_stored
        own_steps = steps + tl.maximum(tree, 0) * most_steps
        num_lines = trunk + num_steps
        if (trunk == 0) & (base >= 0) & (base != seat):
            tl.store(own_state, state_HV, mask=is_inside_HV)
        if num_lines > 0:
            step = _line(y * 0, first_stored, num_stored, first_row, trunk, num_lines, own_steps)
            line = step // 2
            q_H = tl.load(own_queries + line * key_size, mask=is_key_H, other=0.0)
            k_H = tl.load(own_keys + line * key_size, mask=is_key_H, other=0.0)
            v_V = tl.load(own_values + line * value_size, mask=is_value_V, other=0.0)
            decay = tl.load(decays + line * NUM_VALUE_HEADS + n)
            strength = tl.load(strengths + line * NUM_VALUE_HEADS + n)
            s = y * 0
            while s < num_lines:
                # The next line is read while this one is computed.
                next_step = _line(
                    s + 1, first_stored, num_stored, first_row, trunk, num_lines, own_steps
                )
                is_line = s + 1 < num_lines
                next_line = tl.where(is_line, next_step // 2, 0)
                next_q_H = tl.load(
                    own_queries + next_line * key_size, mask=is_key_H & is_line, other=0.0
                )
                next_k_H = tl.load(
                    own_keys + next_line * key_size, mask=is_key_H & is_line, other=0.0
                )
                next_v_V = tl.load(
                    own_values + next_line * value_size, mask=is_value_V & is_line, other=0.0
                )
                next_decay = tl.load(
                    decays + next_line * NUM_VALUE_HEADS + n, mask=is_line, other=0.0
                )
                next_strength = tl.load(
                    strengths + next_line * NUM_VALUE_HEADS + n, mask=is_line, other=0.0
                )
                if (step % 2 == 1) & (base >= 0):
                    tl.debug_barrier()  # the tile may be read by other threads than wrote it
                    state_HV = tl.load(own_state, mask=is_inside_HV, other=0.0)
                state_HV = state_HV * decay
                known_V = tl.sum(state_HV * k_H[:, None], 0)
                correction_V = (v_V - known_V) * strength
                state_HV += k_H[:, None] * correction_V[None, :]
                out_V = tl.sum(state_HV * q_H[:, None], 0)
                is_row = line < num_rows
                tl.store(own_out + line * value_size, out_V, mask=is_value_V & is_row)
                s += 1
                if (s == trunk) & (base >= 0):
                    tl.store(own_state, state_HV, mask=is_inside_HV)
                step, line = next_step, next_line
                q_H, k_H, v_V = next_q_H, next_k_H, next_v_V
                decay, strength = next_decay, next_strength


@triton.jit
def _store_inputs(
    inputs, stored, lanes, windows, nodes, y, part, row_stride, size, num_columns, num_nodes,
    nodes_stride,
    REACH: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    num_lanes = tl.num_programs(0).to(tl.int64)
    seat, tree = tl.load(lanes + y), tl.load(lanes + 5 * num_lanes + y)
    base = tl.load(lanes + num_lanes + y)
    if (seat >= 0) & (base >= 0):
        column_X = part * BLOCK + tl.arange(0, BLOCK)
        is_inside_X = column_X < size
        own = stored + seat * num_columns * size + column_X
        # A window may hold stored inputs that the columns before and behind it replace.
        place_P = tl.arange(0, BLOCK_P)
        is_place_P = place_P < REACH
        source_P1 = tl.load(windows + y * REACH + place_P, mask=is_place_P, other=-1)[:, None]
        is_row_P1 = source_P1 >= 0
        is_inside_PX = is_place_P[:, None] & is_inside_X[None, :]
        row_PX = tl.load(
            inputs + tl.maximum(source_P1, 0) * row_stride + column_X[None, :],
            mask=is_inside_PX & is_row_P1,
            other=0.0,
        )
        kept_PX = tl.load(
            stored + tl.maximum(-2 - source_P1, 0) * size + column_X[None, :],
            mask=is_inside_PX & (is_row_P1 == 0),
            other=0.0,
        )
        tl.debug_barrier()
        window_PX = tl.where(is_row_P1, row_PX, kept_PX)
        tl.store(own[None, :] + place_P[:, None] * size, window_PX, mask=is_inside_PX)
        if tree >= 0:
            node = 0
            while node < num_nodes:
                row = tl.load(nodes + tree * nodes_stride + node)
                is_node_X = is_inside_X & (row >= 0)
                x_X = tl.load(
                    inputs + tl.maximum(row, 0) * row_stride + column_X, mask=is_node_X, other=0.0
                )
                tl.store(own + (REACH + node) * size, x_X, mask=is_node_X)
                node += 1


_NUMBERS = ("num_rows", "most_stored", "most_steps", "size", "num_nodes")


@triton.jit(do_not_specialize=(*_NUMBERS, "row_stride", "nodes_stride"))
def walk_kernel(
    inputs, stored, queries, keys, values, decays, strengths, states,
    lanes, windows, steps, nodes, out,
    num_rows, most_stored, most_steps, size, num_nodes, row_stride, nodes_stride,
    NUM_KEY_HEADS: tl.constexpr, NUM_VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, REACH: tl.constexpr, NUM_PARTS: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_X: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program a lane and tile of a head's state, then those that store its inputs."""
    enter(PDL)
    y, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if part < NUM_VALUE_HEADS * NUM_PARTS:
        _walk(
            queries, keys, values, decays, strengths, states, lanes, steps, out, y, part,
            num_rows, most_stored, most_steps,
            NUM_KEY_HEADS, NUM_VALUE_HEADS, KEY_DIM, VALUE_DIM, NUM_PARTS, BLOCK_H, BLOCK_V,
        )  # fmt: skip
    else:
        _store_inputs(
            inputs, stored, lanes, windows, nodes, y, part - NUM_VALUE_HEADS * NUM_PARTS,
            row_stride, size.to(tl.int64), most_stored + REACH, num_nodes, nodes_stride,
            REACH, BLOCK_P, BLOCK_X,
        )  # fmt: skip


def delta_rule(
    inputs_TX: torch.Tensor,
    states_ANHD: torch.Tensor,
    inputs_AEX: torch.Tensor,
    lines: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    num_rows: int,
    weights: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    num_key_heads: int,
    epsilon: float,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """The output of every row, float32 [T, N, D]; states and stored inputs are updated in place.

    lines: `lanes_8Y`, `taps_LJ`, `windows_YP`, `steps_BX` and `nodes_BW` of `ops.state_lines.Lines`.
    num_rows: the rows that are lines, which are the first. weights: taps_CJ, log_decay_N, time_bias_N.
    Reference: `ops.delta_rule.by_torch`.
    """
    lanes_8Y, taps_LJ, windows_YP, steps_BX, nodes_BW = lines
    taps_CJ, log_decay_N, time_bias_N = weights
    _, num_heads, key_dim, value_dim = states_ANHD.shape
    num_lines, num_taps = taps_LJ.shape
    num_lanes, reach = windows_YP.shape
    size = inputs_TX.shape[1]
    assert states_ANHD.is_contiguous() and inputs_AEX.is_contiguous() and taps_CJ.is_contiguous()
    assert inputs_TX.stride(1) == 1 and inputs_TX.dtype == inputs_AEX.dtype
    block_h, block_d = triton.next_power_of_2(key_dim), triton.next_power_of_2(value_dim)
    block_v = min(BLOCK_VALUES, block_d)

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=inputs_TX.device)

    queries, keys = (empty(num_lines, num_key_heads, key_dim) for _ in range(2))
    values, out_TND = (empty(num, num_heads, value_dim) for num in (num_lines, len(inputs_TX)))
    decays, strengths = (empty(num_lines, num_heads) for _ in range(2))
    heads = {
        "NUM_KEY_HEADS": num_key_heads,
        "NUM_VALUE_HEADS": num_heads,
        "KEY_DIM": key_dim,
        "VALUE_DIM": value_dim,
        "BLOCK_H": block_h,
    }
    if num_lines:
        convolve_kernel[(num_lines, num_key_heads + num_heads)](
            inputs_TX, inputs_AEX, taps_LJ, taps_CJ, log_decay_N, time_bias_N,
            queries, keys, values, decays, strengths,
            inputs_TX.stride(0), size, epsilon, key_dim**-0.5,
            **heads, NUM_TAPS=num_taps, BLOCK_D=block_d, PDL=pdl, num_warps=1,
            **launch_options(pdl),
        )  # fmt: skip
    if num_lanes:
        num_parts = -(-value_dim // block_v)
        walk_kernel[(num_lanes, num_heads * num_parts + -(-size // BLOCK_INPUTS))](
            inputs_TX, inputs_AEX, queries, keys, values, decays, strengths, states_ANHD,
            lanes_8Y, windows_YP, steps_BX, nodes_BW, out_TND,
            num_rows, inputs_AEX.shape[1] - reach, steps_BX.shape[1], size, nodes_BW.shape[1],
            inputs_TX.stride(0), nodes_BW.stride(0),
            **heads, REACH=reach, NUM_PARTS=num_parts, BLOCK_V=block_v,
            BLOCK_P=triton.next_power_of_2(reach), BLOCK_X=BLOCK_INPUTS, PDL=pdl,
            num_warps=NUM_WARPS, **launch_options(pdl),
        )  # fmt: skip
    if num_rows < len(out_TND):
        out_TND[num_rows:].zero_()
    return out_TND
