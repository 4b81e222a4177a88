"""The values of packed weights: the definition that kernels follow in registers.

Promises: a value is the one that decoding the checkpoint at load gives: number x scale, or (number -
zero point) x scale, in float32, rounded once to the type of the weight.
Does not know: checkpoints, products.

Legend: O rows (output features), I columns (input features), E experts.
"""

from __future__ import annotations

import torch

from eyas.kernels.packed import HALF, STEP, PackedWeight, Weight

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the lower three bits of an FP4 number; the fourth is the sign."""


def dequantised(weight: Weight) -> torch.Tensor:
    """Return the values of a weight [..., O, I], in its type; of a plain one, itself."""
    if isinstance(weight, torch.Tensor):
        return weight
    layout = weight.layout
    if layout.kind == "fp8":
        numbers = weight.numbers.view(torch.float8_e4m3fn).float()
        return (numbers * _of_rows(weight, weight.scales, layout.columns)).to(weight.dtype)
    numbers = _four_bits(weight.numbers)[..., : weight.num_columns]
    if layout.kind == "mxfp4":
        table = torch.tensor((*E2M1, *(-value for value in E2M1)), device=weight.device)
        exponents = weight.scales.contiguous().view(torch.uint8)
        scales = exponents.view(torch.float8_e8m0fnu).float()
        values = table[numbers.long()] * _of_rows(weight, scales, layout.columns)
        return values.to(weight.dtype)
    zeros = (weight.scales >> 16).float()
    halves = weight.scales.to(torch.int16).view(getattr(torch, layout.scale_dtype)).float()
    values = numbers.float() - _of_rows(weight, zeros, layout.columns)
    return (values * _of_rows(weight, halves, layout.columns)).to(weight.dtype)


def pair_up(numbers: torch.Tensor) -> torch.Tensor:
    """Return numbers of 4 bits [..., I] as the bytes that hold two of them, filled up with zeros.

    The reverse is what `dequantised` does first.
    """
    num_columns = numbers.shape[-1]
    missing = -num_columns % STEP
    wide = torch.nn.functional.pad(numbers.to(torch.uint8), (0, missing))
    pairs = wide.unflatten(-1, (-1, 2, HALF))
    return (pairs[..., 0, :] | (pairs[..., 1, :] << 4)).flatten(-2)


def _four_bits(pairs: torch.Tensor) -> torch.Tensor:
    """Return the numbers of bytes from `pair_up`, uint8."""
    halves = pairs.unflatten(-1, (-1, HALF))
    return torch.stack((halves & 15, halves >> 4), -2).flatten(-3)


def _of_rows(weight: PackedWeight, blocks: torch.Tensor, columns: int) -> torch.Tensor:
    """Return the number of each value's block [..., O, I], or [..., O, 1]."""
    num_rows = weight.shape[-2]
    rows = blocks.repeat_interleave(weight.layout.rows, -2)[..., :num_rows, :]
    if columns == 0:
        return rows
    return rows.repeat_interleave(columns, -1)[..., : weight.num_columns]
