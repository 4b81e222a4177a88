"""Products with a weight of each head: a row's bits do not depend on how many rows are in the call.

Promises: on a CPU each head is a `Linear`, whose row counts `row_probe.find_row_order` tries if its
shape is among the model's; on a device one kernel runs all heads in one reduction order.
Does not know: what the heads are projected to.

Legend: T rows, N heads, I input features, O output features.
"""

from __future__ import annotations

import torch

from eyas.layers.compute import Compute
from eyas.layers.linear import Linear


class HeadLinear:
    """`out[t, n] = weight[n] @ x[t, n]`.

    weight_NOI: the filled weights; they are copied on a CPU, kept as they are on a device.
    """

    def __init__(self, weight_NOI: torch.Tensor, compute: Compute) -> None:
        self._weight_NOI: torch.Tensor | None = None
        self._heads: list[Linear] = []
        if compute.order.products is not None:
            from eyas.kernels.head_product import head_product

            self._product = head_product
            self._weight_NOI = weight_NOI.contiguous()
            return
        for weight_OI in weight_NOI:
            num_out, num_in = weight_OI.shape
            head = Linear(num_in, {"head": num_out}, compute)
            head.tensors()["head.weight"].copy_(weight_OI)
            head.seal()
            self._heads.append(head)

    def __call__(self, x_TNI: torch.Tensor, out_TNO: torch.Tensor) -> None:
        """Write the products to `out_TNO`; the row order must allow T. Rows and heads of both may stand
        apart."""
        if self._weight_NOI is not None:
            self._product(x_TNI, self._weight_NOI, out_TNO, pdl=x_TNI.is_cuda)
            return
        for n, head in enumerate(self._heads):
            out_TNO[:, n] = head(x_TNI[:, n].contiguous())
