"""Experts of ranks that have sequences of their own: each rank sends its rows to the ranks of their
experts, and gets the results.

Promises: a row gets the contributions that one rank would compute, in the order in which it chose its
experts. Rows of padding are neither sent nor computed. What is sent depends on the numbers of rows
alone, which the host knows, and not on the choice of experts, for which it would have to wait.
Does not know: how experts are chosen, how a rank computes those that it holds.

Legend: T rows of a rank, padding included, t of one exchange, R of one exchange and all ranks, D hidden
size, K experts that a row chooses, N ranks, X bytes of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F

from eyas.layers.expert_blocks import chosen
from eyas.parallel.shard import Shard

EXCHANGED_ROWS = 256
"""Most rows that a rank sends at a time, since results of all ranks' rows are held until then."""


class Held(Protocol):
    """The experts that a rank holds."""

    def __call__(
        self, x_TD: torch.Tensor, experts_TK: torch.Tensor, weights_TK: torch.Tensor
    ) -> torch.Tensor:
        """Return [K, T, D]: results of experts that are held, and anything for the others."""
        ...


class ExchangedExperts:
    """The experts of a layer, for rows that this rank alone has.

    held: runs this rank's experts. num_experts: of the layer.
    """

    def __init__(self, held: Held, num_experts: int, shard: Shard) -> None:
        self._held = held
        self._num_experts = num_experts
        self._shard = shard

    def __call__(
        self,
        x_TD: torch.Tensor,
        experts_TK: torch.Tensor,
        weights_TK: torch.Tensor,
        rank_rows: Sequence[int],
    ) -> torch.Tensor:
        """Return the weighted results of the chosen experts, float32 [K, T, D]; zeros for padding.

        rank_rows: number of rows that each rank has. Those of this one are followed by padding.
        """
        count = rank_rows[self._shard.rank]
        parts = []
        for start in range(0, max(rank_rows), EXCHANGED_ROWS):
            own = slice(start, min(start + EXCHANGED_ROWS, count))
            rows_N = [min(max(rows - start, 0), EXCHANGED_ROWS) for rows in rank_rows]
            parts.append(self._exchange(x_TD[own], experts_TK[own], weights_TK[own], rows_N))
        results_KtD = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return F.pad(results_KtD, (0, 0, 0, len(x_TD) - count))

    def _exchange(
        self,
        x_tD: torch.Tensor,
        experts_tK: torch.Tensor,
        weights_tK: torch.Tensor,
        rows_N: list[int],
    ) -> torch.Tensor:
        """Return the results [K, t, D] of this rank's rows. rows_N: how many each rank has."""
        group, size = self._shard.group, self._shard.size
        assert group is not None, "layers of one rank exchange nothing"
        of_rank = (x_tD, experts_tK, weights_tK)
        columns = [as_bytes(x) for x in of_rank]
        count, num_chosen = experts_tK.shape
        mine = torch.cat(columns, dim=1).repeat(size, 1)
        all_RX = group.all_to_all(mine, [count] * size, rows_N)
        widths = [column.shape[1] for column in columns]
        x_RD, experts_RK, weights_RK = (
            part.contiguous().view(x.dtype)
            for part, x in zip(all_RX.split(widths, dim=1), of_rank, strict=True)
        )
        results_KRD = self._held(x_RD, experts_RK, weights_RK)
        width = num_chosen * x_tD.shape[1]
        results = torch.cat([part.flatten() for part in results_KRD.split(rows_N, dim=1)])
        results_NKtD = group.all_to_all(
            results, [width * rows for rows in rows_N], [width * count] * size
        ).view(size, num_chosen, *x_tD.shape)
        rank_Kt = experts_tK.t().long() * size // self._num_experts
        return chosen(results_NKtD, rank_Kt)


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """Return the bytes [T, X] of a matrix."""
    return x.contiguous().view(torch.uint8)


def exchange_bytes(
    num_ranks: int, num_chosen: int, hidden_size: int, intermediate_size: int
) -> int:
    """Return an upper bound of the bytes that a layer's exchange takes on a rank: rows of all ranks and
    what their experts make of them, and three times results (as computed, as sent, as received)."""
    numbers = 2 * hidden_size + num_chosen * (3 * hidden_size + intermediate_size)
    return num_ranks * EXCHANGED_ROWS * numbers * 4
