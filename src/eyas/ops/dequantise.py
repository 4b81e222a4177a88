"""The values of packed weights: the definition that kernels follow in registers.

Promises: a value is number x scale, or (number - zero point) x scale, in float32, rounded once to the
type of the weight: what decoding the checkpoint at load gives. A product with FP8 or integers rounds no
value: it adds up numbers x rows of x in blocks of STEP columns, and each block's sum times its scale
(`product`).
Does not know: checkpoints, tiles.

Legend: O rows (output features), I columns (input features), E experts, T rows of x.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from eyas.kernels.packed import STEP, Kind, PackedWeight, Weight

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP4_VALUES = (*_MAGNITUDES, *(-value for value in _MAGNITUDES))
"""Values of an FP4 number (E2M1); the highest bit is the sign."""

PLACES: dict[Kind, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "fp8": ((2, 4, 2, 4, 2), (0, 3, 1, 4, 2)),
    "mxfp4": ((2, 2, 4, 4, 2), (3, 2, 4, 0, 1)),
    "int4": ((2, 2, 4, 4, 2), (3, 2, 4, 0, 1)),
}
"""How the columns of a step are divided, and in which order the parts are stored. A thread finds its
part of the left operand of several matrix instructions in 16 bytes: of 16 columns it needs 2 t and
2 t + 1 and those 8 behind them (t is 0 to 3). Pairs are in the halves of a word: "fp8" has two of them,
8 columns apart, the others four, 32 columns apart, of FP4 one of each block."""
FP8_KEPT = -0x7FF1
"""The bits of a pair of FP8 numbers, 0x800F as an int16, that are stored where they are."""


def dequantised(weight: Weight) -> torch.Tensor:
    """Return the values of a weight [..., O, I], in its type; of a plain one, itself."""
    if isinstance(weight, torch.Tensor):
        return weight
    numbers, scales = _numbers_and_scales(weight)
    return (numbers * scales).to(weight.dtype)


def product(x_TI: torch.Tensor, weight: Weight, bias_O: torch.Tensor | None = None) -> torch.Tensor:
    """Return `F.linear(x_TI, weight, bias_O)`, [T, O] in x's type, in the order of the kernels.

    FP8 and integers: sums of STEP columns of numbers x rows of x, each times the scale of its block and
    added to those before it, in float32. Else one sum of the values. How the columns of a sum are added
    is left to torch.
    """
    if isinstance(weight, torch.Tensor) or not weight.layout.scales_sums:
        return F.linear(x_TI, dequantised(weight), bias_O)
    numbers_OI, scales_OI = _numbers_and_scales(weight)
    total_TO = x_TI.new_zeros((len(x_TI), len(weight)), dtype=torch.float32)
    for start in range(0, weight.num_columns, STEP):
        part = slice(start, start + STEP)
        sums_TO = F.linear(x_TI[:, part].float(), numbers_OI[:, part])
        total_TO = total_TO + sums_TO * scales_OI[:, min(start, scales_OI.shape[1] - 1)]
    return (total_TO if bias_O is None else total_TO + bias_O.float()).to(x_TI.dtype)


def arrange(numbers: torch.Tensor, kind: Kind) -> torch.Tensor:
    """Return numbers [..., I], uint8, as the bytes that a packed weight holds, filled up with zeros."""
    shape, order = PLACES[kind]
    wide = F.pad(numbers.to(torch.uint8), (0, -numbers.shape[-1] % STEP))
    places = _permuted(wide.unflatten(-1, (-1, *shape)), order)
    stored = places.flatten(-len(shape) - 1)
    if kind == "fp8":
        return fp8_pairs(stored)
    return fp4_bytes(stored) if kind == "mxfp4" else stored[..., ::2] | (stored[..., 1::2] << 4)


def fp8_pairs(numbers: torch.Tensor) -> torch.Tensor:
    """Return FP8 numbers, uint8, with the bits of each two of the last dimension in other places.

    As 16 bits, from the highest: the sign of number 1, the upper three bits of 0's size, the sign of 0,
    1's size (seven bits) and the lower four bits of 0's size. So 1 is where bfloat16 has a sign and the
    end of an exponent, and the bits of 0 get there by shifts of 4 in both directions.
    """
    pairs = numbers.contiguous().view(torch.int16)
    moved = (pairs >> 4 & 0x07F0) | (pairs << 4 & 0x0800) | (pairs << 8 & 0x7000)
    return moved.bitwise_or_(pairs & FP8_KEPT).view(torch.uint8)


def fp8_bytes(stored: torch.Tensor) -> torch.Tensor:
    """Return the numbers that `fp8_pairs` has stored."""
    pairs = stored.contiguous().view(torch.int16)
    moved = (pairs << 4 & 0x7F00) | (pairs >> 4 & 0x0080) | (pairs >> 8 & 0x0070)
    return moved.bitwise_or_(pairs & FP8_KEPT).view(torch.uint8)


def fp4_bytes(numbers: torch.Tensor) -> torch.Tensor:
    """Return four bytes for each eight FP4 numbers of the last dimension, uint8.

    As two halves of a word, numbers 0 to 3 in the lower one, each from its highest bit: the sign of 3,
    the lowest bit of 3's size, the sign of 1, 2's size, the sign of 0, the upper bits of 3's size, 1's
    size, the sign of the *other* half's 2, and 0's size. So the bits of 0 and 1 are where bfloat16 has
    a sign and the end of an exponent if the word is shifted left by 6 and 2, those of 2 if it is
    rotated right by 4, and of 3 only the lowest bit is elsewhere.
    """
    sizes, signs = numbers & 7, numbers >> 3
    a, b, c, d = sizes.unflatten(-1, (-1, 2, 4)).unbind(-1)
    sign_a, sign_b, sign_c, sign_d = signs.unflatten(-1, (-1, 2, 4)).unbind(-1)
    low = a | sign_c.flip(-1) << 3 | b << 4 | (d & 2) << 6
    high = d >> 2 | sign_a << 1 | c << 2 | sign_b << 5 | (d & 1) << 6 | sign_d << 7
    return torch.stack((low, high), -1).flatten(-3)


def fp4_numbers(stored: torch.Tensor) -> torch.Tensor:
    """Return the numbers that `fp4_bytes` has stored, twice as many as bytes."""
    low, high = stored.unflatten(-1, (-1, 2, 2)).unbind(-1)
    numbers = (
        (high >> 1 & 1) << 3 | low & 7,
        (high >> 5 & 1) << 3 | low >> 4 & 7,
        (low >> 3 & 1).flip(-1) << 3 | high >> 2 & 7,
        high >> 7 << 3 | (high & 1) << 2 | low >> 7 << 1 | high >> 6 & 1,
    )
    return torch.stack(numbers, -1).flatten(-3)


def exponents(weight: PackedWeight) -> torch.Tensor:
    """Return the exponents of FP4's powers of two plus 127, uint8, one for each 32 columns."""
    shifts = torch.arange(0, 32, 8, dtype=torch.int32, device=weight.device)
    return (weight.scales.unsqueeze(-1) >> shifts & 0xFF).to(torch.uint8).flatten(-2)


def _numbers_and_scales(weight: PackedWeight) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the float32 numbers of a weight [..., O, I], of integers less their zero points, and the
    scale of each, [..., O, I] or [..., O, 1]."""
    layout, numbers, scales = weight.layout, _in_order(weight), weight.scales
    if layout.kind == "fp8":
        values = numbers.view(torch.float8_e4m3fn).float()
    elif layout.kind == "mxfp4":
        values = torch.tensor(FP4_VALUES, device=weight.device)[numbers.long()]
        scales = exponents(weight).view(torch.float8_e8m0fnu).float()
    else:
        values = numbers.float() - _of_rows(weight, (scales >> 16).float(), layout.columns)
        scales = scales.to(torch.int16).view(getattr(torch, layout.scale_dtype)).float()
    return values, _of_rows(weight, scales, layout.columns)


def _in_order(weight: PackedWeight) -> torch.Tensor:
    """Return the numbers of a weight [..., O, I], uint8."""
    kind, numbers = weight.layout.kind, weight.numbers
    if kind == "fp8":
        numbers = fp8_bytes(numbers)
    elif kind == "mxfp4":
        numbers = fp4_numbers(numbers)
    elif kind == "int4":
        numbers = torch.stack((numbers & 15, numbers >> 4), -1).flatten(-2)
    shape, order = PLACES[kind]
    stored = [shape[place] for place in order]
    back = [order.index(place) for place in range(len(order))]
    places = _permuted(numbers.unflatten(-1, (-1, *stored)), back)
    return places.flatten(-len(shape) - 1)[..., : weight.num_columns]


def _permuted(places: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Return a tensor whose last dimensions are in another order."""
    first = places.dim() - len(order)
    return places.permute(*range(first), *(first + place for place in order))


def _of_rows(weight: PackedWeight, blocks: torch.Tensor, columns: int) -> torch.Tensor:
    """Return the number of each value's block [..., O, I], or [..., O, 1]."""
    num_rows = weight.shape[-2]
    rows = blocks.repeat_interleave(weight.layout.rows, -2)[..., :num_rows, :]
    if columns == 0:
        return rows
    return rows.repeat_interleave(columns, -1)[..., : weight.num_columns]
