"""Experts of ranks that have sequences of their own: each rank sends its rows to the ranks of their
experts, and gets the results.

Promises: a row gets the contributions that one rank would compute, in the order in which it chose its
experts. Ranks have the same number of rows, some of which may be padding.
Does not know: how experts are chosen, how a rank computes those that it holds.

Legend: T rows of a rank, t of one exchange, R of one exchange and all ranks, D hidden size, K experts
that a row chooses, N ranks, X bytes of a row.
"""

from __future__ import annotations

from typing import Protocol

import torch

from eyas.layers.divided_experts import chosen
from eyas.parallel.cut import Parameter
from eyas.parallel.shard import Shard

EXCHANGED_ROWS = 256
"""Most rows that a rank sends at a time, since results of all ranks' rows are held until then."""


class Held(Protocol):
    """The experts that a rank holds."""

    def parameters(self) -> dict[str, Parameter]: ...
    def seal(self) -> None: ...
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

    def parameters(self) -> dict[str, Parameter]:
        return self._held.parameters()

    def seal(self) -> None:
        self._held.seal()

    def __call__(
        self, x_TD: torch.Tensor, experts_TK: torch.Tensor, weights_TK: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted results of the chosen experts, float32 [K, T, D]."""
        parts = [
            self._exchange(*rows)
            for rows in zip(
                x_TD.split(EXCHANGED_ROWS),
                experts_TK.split(EXCHANGED_ROWS),
                weights_TK.split(EXCHANGED_ROWS),
                strict=True,
            )
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _exchange(
        self, x_tD: torch.Tensor, experts_tK: torch.Tensor, weights_tK: torch.Tensor
    ) -> torch.Tensor:
        group, size = self._shard.group, self._shard.size
        assert group is not None, "layers of one rank exchange nothing"
        sent = (x_tD, experts_tK, weights_tK)
        columns = [as_bytes(x) for x in sent]
        all_RX = group.all_gather(torch.cat(columns, dim=1)).flatten(0, 1)
        widths = [column.shape[1] for column in columns]
        x_RD, experts_RK, weights_RK = (
            part.contiguous().view(x.dtype)
            for part, x in zip(all_RX.split(widths, dim=1), sent, strict=True)
        )
        results_KRD = self._held(x_RD, experts_RK, weights_RK)
        results_NKtD = results_KRD.unflatten(1, (size, len(x_tD))).transpose(0, 1)
        rank_Kt = experts_tK.t().long() * size // self._num_experts
        return chosen(group.all_to_all(results_NKtD), rank_Kt)


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
