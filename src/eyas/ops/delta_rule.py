"""The gated delta rule (Yang et al., arXiv 2412.06464) behind a short convolution: states that every
token decays and corrects.

Each line (`ops.state_lines`) continues the state of the line before it on its own path, or of its lane.
A token has the same operations in the same order in a prompt chunk, in a chain, in a tree and after
preemption. The torch body runs the lines of one level (equally far from their lane's first state)
together, and levels one after the other; the kernel walks each lane by itself.

Promises: a line's bits depend on its path alone. All sums have one order, everything is float32.
Does not know: how lines were found, projections.

Legend: T rows, L lines, P inputs that lines may read, X numbers of a row's inputs, C convolved columns
of it, N value heads, G key heads, H key dim, D value dim, J taps of the convolution, A rows of the
states, E input columns of a seat.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from eyas.ops.dispatch import Operation
from eyas.ops.row_functions import exp, rsqrt, sigmoid, silu, softplus, sum_in_halves
from eyas.ops.state_lines import ABSENT, Level, Lines

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
    order = lines.order
    if not isinstance(order, _Order):
        order = lines.order = _Order.of(lines, inputs_TX.device)
    inputs_PX = torch.cat([inputs_AEX.flatten(0, 1)[order.stored], inputs_TX])
    q_LNH, k_LNH, v_LND = _heads(inputs_PX, order.taps_JL, rule)
    num, width = rule.num_value_heads, rule.taps_CJ.shape[0]
    gates_LX = inputs_PX[order.taps_JL[-1], width:].float()
    strength_LN1 = sigmoid(gates_LX[:, :num]).unsqueeze(2)
    time_LN = softplus(gates_LX[:, num:] + rule.time_bias_N)
    decay_LN11 = exp(-exp(rule.log_decay_N.unsqueeze(0)) * time_LN)[:, :, None, None]
    out_LND = torch.empty_like(v_LND)
    states = states_ANHD[order.bases]
    states[order.lost] = torch.nan
    states_ANHD[order.cleared] = 0
    for level in order.levels:
        if level.parents is not None:
            states = states[level.parents]
        at = slice(level.start, level.stop)
        k_LNH1 = k_LNH[at].unsqueeze(3)
        states = states * decay_LN11[at]
        known_LND = sum_in_halves(states * k_LNH1, 2)
        correction_LND = (v_LND[at] - known_LND) * strength_LN1[at]
        states += k_LNH1 * correction_LND.unsqueeze(2)
        out_LND[at] = sum_in_halves(states * q_LNH[at].unsqueeze(3), 2)
        if level.kept:
            states_ANHD[level.kept_seats] = states[level.kept]
    inputs_AEX.flatten(0, 1)[order.saved_to] = inputs_PX[order.saved]
    out_TND = out_LND.new_zeros((len(inputs_TX), *out_LND.shape[1:]))
    out_TND[order.rows] = out_LND[order.row_lines]
    return out_TND


@delta_rule.kernel
def _by_kernel(
    inputs_TX: torch.Tensor,
    states_ANHD: torch.Tensor,
    inputs_AEX: torch.Tensor,
    lines: Lines,
    rule: DeltaRule,
) -> torch.Tensor:
    from eyas.kernels.delta_rule import delta_rule as launch

    return launch(
        inputs_TX,
        states_ANHD,
        inputs_AEX,
        (lines.lanes_8Y, lines.taps_LJ, lines.windows_YP, lines.steps_BX, lines.nodes_BW),
        lines.num_rows,
        (rule.taps_CJ, rule.log_decay_N, rule.time_bias_N),
        rule.num_key_heads,
        NORM_EPSILON,
        pdl=inputs_TX.is_cuda,
    )


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


@dataclass(frozen=True, slots=True)
class _Order:
    """Lines in order of level.

    The inputs that they read are first stored ones, then those of the pass's rows. stored: which ones,
    of all seats and columns. taps_JL: which inputs the taps of each line read. bases: rows of the
    states that lanes start from; lost: lanes that have none. cleared: seats whose state becomes zeros.
    row_lines: the line of each of `rows`. saved_to, saved: where inputs are stored, and which.
    """

    stored: torch.Tensor
    taps_JL: torch.Tensor
    bases: torch.Tensor
    lost: torch.Tensor
    cleared: torch.Tensor
    levels: tuple[Level, ...]
    rows: torch.Tensor
    row_lines: torch.Tensor
    saved_to: torch.Tensor
    saved: torch.Tensor

    @classmethod
    def of(cls, lines: Lines, device: torch.device) -> _Order:
        return _Sorter(lines).sorted(device)


class _Sorter:
    """Sorts lines by level, on the host."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._taps = lines.taps_LJ.tolist()
        self._levels: list[list[tuple[int, int]]] = []  # (line, its place in the level before)
        self._kept: list[list[tuple[int, int]]] = []  # (its place in the level, seat)
        self._saved: list[tuple[int, int]] = []
        self._cleared: list[int] = []
        self._bases: list[int] = []

    def sorted(self, device: torch.device) -> _Order:
        lines = self._lines
        steps, nodes = lines.steps_BX.tolist(), lines.nodes_BW.tolist()
        windows = lines.windows_YP.tolist()
        for y, numbers in enumerate(lines.lanes_8Y.t().tolist()):
            if numbers[0] != ABSENT:
                self._add(y, numbers, windows[y], steps, nodes)
        return self._laid_out(device)

    def _add(
        self,
        y: int,
        numbers: list[int],
        window: list[int],
        steps: list[list[int]],
        nodes: list[list[int]],
    ) -> None:
        """Add a lane. numbers: as `Lanes`."""
        lines = self._lines
        seat, base, num_stored, row, count, tree, num_steps, _ = numbers
        first = lines.num_rows + y * lines.most_stored
        trunk = [
            *range(first, first + num_stored),
            *range(row, row + count),
        ]
        place = len(self._bases)
        self._bases.append(base)
        for depth, line in enumerate(trunk):
            place = self._put(depth, line, place)
        if base != ABSENT:
            if trunk:
                self._kept[len(trunk) - 1].append((place, seat))
            elif base != seat:
                self._cleared.append(seat)
        columns = seat * lines.num_columns
        self._saved += [(source, columns + c) for c, source in enumerate(window)]
        if tree == ABSENT:
            return
        reach = len(window)
        self._saved += [
            (node, columns + reach + w) for w, node in enumerate(nodes[tree]) if node >= 0
        ]
        placed: dict[int, int] = {}
        depth, at = len(trunk), place
        for step in steps[tree][:num_steps]:
            line = step // 2
            if step % 2:
                depth, at = len(trunk), place
            if line not in placed:
                placed[line] = self._put(depth, line, at)
            depth, at = depth + 1, placed[line]

    def _put(self, depth: int, line: int, parent: int) -> int:
        """Add a line to a level; return its place there."""
        if depth == len(self._levels):
            self._levels.append([])
            self._kept.append([])
        self._levels[depth].append((line, parent))
        return len(self._levels[depth]) - 1

    def _laid_out(self, device: torch.device) -> _Order:
        in_order = [line for level in self._levels for line, _ in level]
        sources = {source for line in in_order for source in self._taps[line]}
        sources |= {source for source, _ in self._saved}
        stored = [-2 - source for source in sources if source < 0]
        place_of = {-2 - index: place for place, index in enumerate(stored)}

        def place(source: int) -> int:
            return len(stored) + source if source >= 0 else place_of[source]

        def column(numbers: Iterable[int]) -> torch.Tensor:
            return torch.tensor(list(numbers), dtype=torch.int64, device=device)

        taps = [[place(source) for source in self._taps[line]] for line in in_order]
        num_rows = self._lines.num_rows
        own = [(line, number) for number, line in enumerate(in_order) if line < num_rows]
        return _Order(
            stored=column(stored),
            taps_JL=torch.tensor(taps, dtype=torch.int64, device=device).t().contiguous(),
            bases=column(self._bases),
            lost=column(y for y, base in enumerate(self._bases) if base == ABSENT),
            cleared=column(self._cleared),
            levels=tuple(self._spans()),
            rows=column(row for row, _ in own),
            row_lines=column(number for _, number in own),
            saved_to=column(to for _, to in self._saved),
            saved=column(place(source) for source, _ in self._saved),
        )

    def _spans(self) -> Iterator[Level]:
        start, num_above = 0, len(self._bases)
        for level, kept in zip(self._levels, self._kept, strict=True):
            parents = [parent for _, parent in level]
            is_same = parents == list(range(num_above))
            yield Level(
                start,
                start + len(level),
                None if is_same else parents,
                [place for place, _ in kept],
                [seat for _, seat in kept],
            )
            start, num_above = start + len(level), len(level)
