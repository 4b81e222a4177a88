"""The gated delta rule (Yang et al., arXiv 2412.06464) behind a short convolution: states that every
token decays and corrects.

A forward pass consists of lines. A line is one token of one sequence: a row of the pass, or a token
that an earlier pass brought as the node of a tree and that was accepted since. Each line continues
the state of the line before it on its own path, or of its seat. Lines of one level (equally far from
their seat's state) run together; levels run one after the other, so a token has the same operations
in the same order in a prompt chunk, in a chain, in a tree and after preemption.

Promises: a line's bits depend on its path alone. All sums have one order, everything is float32.
Does not know: how lines were found, projections.

Legend: T rows, L lines in order of level, P inputs that lines may read, X numbers of a row's inputs,
C convolved columns of it, N value heads, G key heads, H key dim, D value dim, J taps of the
convolution, A rows of the states, E input columns of a seat.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eyas.ops.dispatch import Operation
from eyas.ops.row_functions import exp, rsqrt, sigmoid, silu, softplus, sum_in_halves

NORM_EPSILON = 1e-6
"""Of the norms of keys and queries, in every released model."""


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """The numbers of heads, and the weights of a layer's rule, float32.

    taps_CJ: of the convolution, the oldest input first. log_decay_N: natural logarithm of the rate of
    decay. time_bias_N: added to the time step before softplus.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    taps_CJ: torch.Tensor
    log_decay_N: torch.Tensor
    time_bias_N: torch.Tensor


@dataclass(frozen=True, slots=True)
class Level:
    """The lines [start, stop). parents: for each of them the line of the level before that it
    continues, counted from that level's start; None where these are all its lines in order. kept,
    kept_seats: lines, counted from `start`, whose states become those of these seats."""

    start: int
    stop: int
    parents: torch.Tensor | None
    kept: torch.Tensor | None
    kept_seats: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a forward pass, the same for all its layers.

    The inputs that lines read are those of the pass's rows, then stored ones, then a row of zeros.
    stored: (row, column) of the stored ones in a layer's inputs. inputs_JL: which inputs the taps of
    each line read, the oldest first. bases: the states that the lines of the first level continue.
    levels: at least one. rows, lines: row `rows[i]` of the output is that of line `lines[i]`. cleared:
    seats whose state becomes zeros. saved: (input, row, column): inputs that are stored.
    """

    stored: tuple[torch.Tensor, torch.Tensor]
    inputs_JL: torch.Tensor
    bases: torch.Tensor
    levels: tuple[Level, ...]
    rows: torch.Tensor
    lines: torch.Tensor
    cleared: torch.Tensor
    saved: tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@Operation
def delta_rule(
    inputs_TX: torch.Tensor,
    states_ANHD: torch.Tensor,
    inputs_AEX: torch.Tensor,
    lines: Lines,
    rule: DeltaRule,
) -> torch.Tensor:
    """Return the output of every row, float32 [T, N, D], and update states and stored inputs in place.

    inputs_TX: queries, keys and values before the convolution, then for each value head the logit of
    its correction's strength, then its time step. Rows that are no line get zeros.
    """
    zeros_1X = inputs_TX.new_zeros((1, inputs_TX.shape[1]))
    inputs_PX = torch.cat([inputs_TX, inputs_AEX[lines.stored], zeros_1X])
    q_LNH, k_LNH, v_LND = _heads(inputs_PX, lines.inputs_JL, rule)
    num, width = rule.num_value_heads, rule.taps_CJ.shape[0]
    gates_LX = inputs_PX[lines.inputs_JL[-1], width:].float()
    strength_LN1 = sigmoid(gates_LX[:, :num]).unsqueeze(2)
    time_LN = softplus(gates_LX[:, num:] + rule.time_bias_N)
    decay_LN11 = exp(-exp(rule.log_decay_N.unsqueeze(0)) * time_LN)[:, :, None, None]
    out_LND = torch.empty_like(v_LND)
    states = states_ANHD[lines.bases]
    states_ANHD[lines.cleared] = 0
    for level in lines.levels:
        if level.parents is not None:
            states = states[level.parents]
        at = slice(level.start, level.stop)
        k_LNH1 = k_LNH[at].unsqueeze(3)
        states = states * decay_LN11[at]
        known_LND = sum_in_halves(states * k_LNH1, 2)
        correction_LND = (v_LND[at] - known_LND) * strength_LN1[at]
        states += k_LNH1 * correction_LND.unsqueeze(2)
        out_LND[at] = sum_in_halves(states * q_LNH[at].unsqueeze(3), 2)
        if level.kept is not None:
            states_ANHD[level.kept_seats] = states[level.kept]
    which, rows, columns = lines.saved
    inputs_AEX[rows, columns] = inputs_PX[which]
    out_TND = out_LND.new_zeros((len(inputs_TX), *out_LND.shape[1:]))
    out_TND[lines.rows] = out_LND[lines.lines]
    return out_TND


@delta_rule.kernel
def _by_kernel(
    inputs_TX: torch.Tensor,
    states_ANHD: torch.Tensor,
    inputs_AEX: torch.Tensor,
    lines: Lines,
    rule: DeltaRule,
) -> torch.Tensor:
    return delta_rule.by_torch(inputs_TX, states_ANHD, inputs_AEX, lines, rule)  # no kernel yet


def _heads(
    inputs_PX: torch.Tensor, inputs_JL: torch.Tensor, rule: DeltaRule
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return convolved queries and keys [L, N, H], normalised, and values [L, N, D] of all lines."""
    width, num_taps = rule.taps_CJ.shape
    mixed_LC = inputs_PX[inputs_JL[0], :width].float() * rule.taps_CJ[:, 0]
    for j in range(1, num_taps):
        mixed_LC += inputs_PX[inputs_JL[j], :width].float() * rule.taps_CJ[:, j]
    mixed_LC = silu(mixed_LC)
    num_keys = rule.num_key_heads * rule.key_dim
    q_LX, k_LX, v_LX = mixed_LC.split([num_keys, num_keys, width - 2 * num_keys], 1)
    per_key = rule.num_value_heads // rule.num_key_heads
    q_LGH = _normalised(q_LX.unflatten(1, (-1, rule.key_dim))) / rule.key_dim**0.5
    k_LGH = _normalised(k_LX.unflatten(1, (-1, rule.key_dim)))
    v_LND = v_LX.unflatten(1, (-1, rule.value_dim))
    return q_LGH.repeat_interleave(per_key, 1), k_LGH.repeat_interleave(per_key, 1), v_LND


def _normalised(x_LGH: torch.Tensor) -> torch.Tensor:
    """Return the heads with length 1."""
    return x_LGH * rsqrt(sum_in_halves(x_LGH * x_LGH, 2) + NORM_EPSILON).unsqueeze(2)
