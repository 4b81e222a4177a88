"""Compressed entries of DeepSeek-V4: a key for a group of tokens, and the indexer's choice of them.

Promises: an entry has the same bits whatever else is computed in the call: exponentials are taken row
by row, sums in halves. Of entries with equal scores the one with the lowest index is chosen: the
indexer's ReLU makes many of them exactly zero.
Does not know: slots, sequences, trees.

Legend: L entries or rows, X positions of a group, H width, R rotated dimensions, J index heads, E
entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eyas.ops.add_norm import normalized
from eyas.ops.rotate_and_store import Angles
from eyas.ops.rotate_heads import rotate_pairs
from eyas.ops.row_functions import exp, sum_in_halves

MOST_NUMBERS = 1 << 22
"""Of the products of index queries and entries that are in memory at once."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """The learned part of the compression of one series of keys.

    bias_XC: float32, added to the gates of a group's positions; with overlap, C is twice the width.
    weight: of the RMS norm of entries, from `add_norm.new_weight`.
    """

    bias_XC: torch.Tensor
    weight: torch.Tensor
    epsilon: float


@dataclass(frozen=True, slots=True)
class Compression:
    """What a layer brings to the attention over its compressed entries.

    keys, index: how entries of both series are made; index is None without an indexer. queries_TJI,
    weights_TJ: of the indexer, for each row. angles: of the rows; its table turns entries as if they
    stood at their group's first position.
    """

    keys: Pooling
    angles: Angles
    index: Pooling | None = None
    queries_TJI: torch.Tensor | None = None
    weights_TJ: torch.Tensor | None = None


def pooled(
    inputs_LXC: torch.Tensor,
    gates_LXC: torch.Tensor,
    is_there_LX: torch.Tensor,
    starts_L: torch.Tensor,
    pooling: Pooling,
    table_P2H: torch.Tensor,
) -> torch.Tensor:
    """Return entries [L, H]: sums over X positions weighted by a softmax of gates, normalised, turned.

    With overlap X is two groups, of which the first brings the first H columns and the second the
    last. is_there_LX: False for positions before the sequence. starts_L: first position of the group;
    those of drafts that go beyond the last position of the table have its last angles.
    """
    rate, columns = pooling.bias_XC.shape
    span = inputs_LXC.shape[1]
    gates_LXC = gates_LXC.float() + pooling.bias_XC.repeat(span // rate, 1)
    inputs_LXC = inputs_LXC.float()
    if span > rate:
        width = columns // 2
        inputs_LXC, gates_LXC = (
            torch.cat([x[:, :rate, :width], x[:, rate:, width:]], 1)
            for x in (inputs_LXC, gates_LXC)
        )
    gates_LXC = gates_LXC.masked_fill(~is_there_LX.unsqueeze(-1), -torch.inf)
    gates_LXC = gates_LXC - gates_LXC.amax(1, keepdim=True)
    powers_LXC = exp(gates_LXC.flatten(0, 1)).view_as(gates_LXC)
    weights_LXC = powers_LXC / sum_in_halves(powers_LXC, 1).unsqueeze(1)
    entries_LH = sum_in_halves(inputs_LXC * weights_LXC, 1).to(pooling.weight.dtype)
    entries_LH = normalized(entries_LH, pooling.weight, pooling.epsilon)
    cosine_LR, sine_LR = table_P2H[starts_L.clamp(max=len(table_P2H) - 1)].squeeze(2).unbind(1)
    return rotate_pairs(entries_LH, cosine_LR, sine_LR)


def chosen_entries(
    queries_LJI: torch.Tensor, weights_LJ: torch.Tensor, keys_LEI: torch.Tensor, count: int
) -> torch.Tensor:
    """Return the indices [L, count] of the entries with the highest scores, in ascending order.

    A score is the sum over heads of weight * ReLU(query . key), scaled. All of keys_LEI exist.
    """
    num_heads, width = queries_LJI.shape[1:]
    num_entries = keys_LEI.shape[1]
    most = max(1, MOST_NUMBERS // (num_heads * width * num_entries))
    pieces: list[torch.Tensor] = []
    for queries, weights, keys in zip(
        queries_LJI.float().split(most),
        weights_LJ.float().split(most),
        keys_LEI.float().split(most),
        strict=True,
    ):
        products = queries.unsqueeze(1) * keys.unsqueeze(2)  # [l, E, J, I]
        dots = sum_in_halves(products, 3).relu() * width**-0.5
        scores = sum_in_halves(dots * (weights * num_heads**-0.5).unsqueeze(1), 2)
        best = scores.sort(dim=1, descending=True, stable=True).indices[:, :count]
        pieces.append(best.sort(dim=1).values)
    return torch.cat(pieces)
