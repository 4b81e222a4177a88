"""Sums in a fixed binary tree, independent of which rank computes which part.

Promises: the bits of a sum over `PIECES` pieces are the same if one rank adds all of them, or if each
of 2, 4 or 8 ranks adds its own and the sums of the ranks are then added.
Does not know: products, ranks.

Legend: Z parts of a sum.
"""

from __future__ import annotations

import torch

PIECES = 8
"""Pieces of the input features of a product that ranks divide. A rank has 8, 4, 2 or 1 of them."""


def tree_sum(parts_Z: torch.Tensor) -> torch.Tensor:
    """Return the sum over the first dimension: neighbours are added until one is left.

    parts_Z: [Z, ...], Z being a power of 2.
    """
    while len(parts_Z) > 1:
        parts_Z = parts_Z[0::2] + parts_Z[1::2]
    return parts_Z[0]
