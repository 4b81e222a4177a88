"""Products with weights on a device, each by one of the variants in `variants`.

Promises: the same code is measured, tried and run. Kernels use programmatic dependent launch: they
start while the kernel before them ends, and wait for its results.
The library's products are not among the variants of a packed weight.
Does not know: how a variant is chosen.

Legend: T rows, I input features, O output features, F half of O, Z parts of a sum.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from eyas.kernels import gemm
from eyas.kernels.packed import Weight
from eyas.layers.gemm.variants import SCORE_SPLITS, GemmVariant
from eyas.ops.gate import gate


def plain(
    variant: GemmVariant, x_TI: torch.Tensor, weight_OI: Weight, bias_O: torch.Tensor | None
) -> torch.Tensor:
    """Return [T, O] in x's type."""
    if variant.tile is None:
        assert isinstance(weight_OI, torch.Tensor)
        return F.linear(x_TI, weight_OI, bias_O)
    return gemm.product(x_TI, weight_OI, tile=variant.tile, bias_O=bias_O, pdl=True)


def heads(
    variant: GemmVariant,
    x_TI: torch.Tensor,
    weight_OI: Weight,
    bias_O: torch.Tensor | None,
    num_splits: int,
) -> torch.Tensor:
    """Return [T, O] in x's type, or with several splits float32 parts [Z, T, O] that the caller adds in
    order and rounds."""
    if num_splits == 1:
        return plain(variant, x_TI, weight_OI, bias_O)
    return gemm.product(
        x_TI,
        weight_OI,
        num_splits=num_splits,
        folded=variant.folded,
        tile=variant.tile,
        bias_O=bias_O,
        pdl=True,
    )


def parts(
    variant: GemmVariant, x_TI: torch.Tensor, weight_OI: Weight, num_splits: int
) -> torch.Tensor:
    """Return parts that the caller adds in order: float32 [Z, T, O], or the library's [T, O] in x's
    type."""
    if variant.tile is None:
        assert isinstance(weight_OI, torch.Tensor)
        return F.linear(x_TI, weight_OI)
    return gemm.product(
        x_TI, weight_OI, num_splits=num_splits, folded=variant.folded, tile=variant.tile, pdl=True
    )


def pieces(
    variant: GemmVariant, x_TI: torch.Tensor, weight_OI: Weight, num_pieces: int
) -> torch.Tensor:
    """Return sums over equal pieces of the columns, float32 [Z, T, O]."""
    tile = None if variant.folded else variant.tile
    sums = gemm.product(
        x_TI, weight_OI, num_splits=num_pieces, tile=tile, out_dtype=torch.float32, pdl=True
    )
    return sums.view(num_pieces, len(x_TI), -1)


def gated(
    variant: GemmVariant, x_TI: torch.Tensor, weight_OI: Weight, bias_O: torch.Tensor | None
) -> torch.Tensor:
    """Return [T, F]: silu of the first half of the outputs times the second."""
    if variant.tile is None:
        assert isinstance(weight_OI, torch.Tensor)
        return gate(F.linear(x_TI, weight_OI, bias_O), "silu")
    return gemm.gated_product(x_TI, weight_OI, tile=variant.tile, bias_2F=bias_O, pdl=True)


def scores(x_TI: torch.Tensor, weight_OI: torch.Tensor) -> torch.Tensor:
    """Return parts of float32 scores [Z, T, O], which the caller adds in order."""
    return gemm.product(x_TI, weight_OI, num_splits=SCORE_SPLITS, pdl=True)


def logits(
    variant: GemmVariant, x_TI: torch.Tensor, weight_OI: torch.Tensor, out_TO: torch.Tensor | None
) -> torch.Tensor:
    """Return float32 [T, O], written to `out_TO` if it is given."""
    if variant.tile is not None:
        return gemm.product(
            x_TI, weight_OI, tile=variant.tile, out_dtype=torch.float32, out_TO=out_TO, pdl=True
        )
    if out_TO is None:
        out_TO = x_TI.new_empty((len(x_TI), len(weight_OI)), dtype=torch.float32)
    if weight_OI.dtype == torch.float32:
        return torch.mm(x_TI, weight_OI.t(), out=out_TO)
    return torch.ops.aten.mm.dtype_out(x_TI, weight_OI.t(), torch.float32, out=out_TO)
