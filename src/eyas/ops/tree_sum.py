"""Sums in a fixed binary tree, independent of which rank computes which part.

Promises: the bits of a sum over 8 parts are the same if they are all added at once, or if the halves,
quarters or eighths of them are added apart and then their sums.
Does not know: products, ranks.

Legend: Z parts of a sum.
"""

from __future__ import annotations

import torch

from eyas.ops.dispatch import Operation


@Operation
def tree_sum(parts_Z: torch.Tensor) -> torch.Tensor:
    """Return the sum over the first dimension: neighbours are added until one is left.

    parts_Z: [Z, ...], contiguous, Z being 1, 2, 4 or 8.
    """
    while len(parts_Z) > 1:
        parts_Z = parts_Z[0::2] + parts_Z[1::2]
    return parts_Z[0]


@tree_sum.kernel
def _by_kernel(parts_Z: torch.Tensor) -> torch.Tensor:
    from eyas.kernels.tree_sum import tree_sum as launch

    return launch(parts_Z, pdl=parts_Z.is_cuda)
