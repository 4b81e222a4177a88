"""Packed weights of every layout, with random numbers and scales, and what products with them are."""

from __future__ import annotations

from dataclasses import replace

import torch

from eyas.kernels import gemm
from eyas.kernels.gate import gated_silu
from eyas.kernels.packed import STEP, Layout, PackedWeight
from eyas.kernels.tiles import Tile
from eyas.ops.dequantise import arrange, dequantised

LAYOUTS = (
    Layout("fp8", 128, 128),
    Layout("fp8", 8, 128),
    Layout("fp8", 1, 0),
    Layout("mxfp4", 1, 32),
    Layout("int4", 1, 128, "bfloat16"),
    Layout("int4", 1, 256, "float16"),
    Layout("int4", 1, 0, "float16"),
)


def random_weight(
    layout: Layout, *shape: int, dtype: torch.dtype, device: torch.device
) -> PackedWeight:
    """A packed weight [..., O, I] whose scales differ."""
    generator = torch.Generator().manual_seed(sum(shape))
    weight = layout.empty(*shape, dtype=dtype)
    weight.normal_(0.0, shape[-1] ** -0.5, generator=generator)
    if layout.kind == "fp8":
        weight.scales.mul_(0.5 + torch.rand(weight.scales.shape, generator=generator))
    elif layout.kind == "mxfp4":
        for place in range(0, 32, 8):
            weight.scales.sub_(
                torch.randint(0, 4, weight.scales.shape, generator=generator) << place
            )
    else:
        weight.scales.add_(torch.randint(0, 90, weight.scales.shape, generator=generator))
        zeros = torch.randint(-8, 8, weight.scales.shape, generator=generator)
        weight.scales.add_(zeros << 16)
    return PackedWeight(
        layout, weight.numbers.to(device), weight.scales.to(device), shape[-1], dtype
    )


def stored_fp8(numbers: torch.Tensor) -> torch.Tensor:
    """These FP8 numbers [..., I], uint8, as a weight holds them, with 0 in the place of NaN."""
    return arrange(numbers.masked_fill((numbers & 0x7F) == 0x7F, 0), "fp8")


def plain_tile(tile: Tile, device: torch.device) -> Tile:
    """The tile with which values are added up in the same steps. A device adds up 16 columns at a time
    whatever the tile; numpy, in the interpreter, those of a step."""
    if device.type == "cuda":
        return tile
    return replace(tile, block_k=STEP)


def expected_product(
    x_TI: torch.Tensor,
    weight: PackedWeight,
    tile: Tile,
    *,
    num_splits: int = 1,
    bias_O: torch.Tensor | None = None,
) -> torch.Tensor:
    """What `gemm.product` is of a packed weight, by products of stored values alone.

    FP8 and integers: the scale of a block is applied to the sum of its columns.
    """
    plain = plain_tile(tile, x_TI.device)
    if not weight.layout.scales_sums:
        return gemm.product(
            x_TI,
            dequantised(weight),
            tile=plain,
            num_splits=num_splits,
            bias_O=bias_O,
            pdl=False,
        )
    planes = expected_sums(x_TI, weight, tile, num_splits)
    if num_splits > 1:
        return torch.stack(planes)
    return (planes[0] + (0 if bias_O is None else bias_O.float())).to(x_TI.dtype)


def unscaled(weight: PackedWeight) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers [O, I] whose sums are scaled, in the weight's type, and the float32 scales [O, G]."""
    if weight.layout.kind == "fp8":
        ones = torch.ones_like(weight.scales)
        return dequantised(replace(weight, scales=ones)), weight.scales
    kind = getattr(torch, weight.layout.scale_dtype)
    one = int(torch.ones((), dtype=kind).view(torch.int16))
    scales = weight.scales.to(torch.int16).view(kind).float()
    return dequantised(replace(weight, scales=(weight.scales & ~0xFFFF) | one)), scales


def expected_sums(
    x_TI: torch.Tensor, weight: PackedWeight, tile: Tile, num_splits: int = 1
) -> list[torch.Tensor]:
    """The float32 sums [T, O] of each split of columns of a product whose sums are scaled."""
    plain = plain_tile(tile, x_TI.device)
    numbers_OI, scales_OG = unscaled(weight)
    width = gemm.split_columns(weight.num_columns, num_splits)
    planes = []
    for first in range(0, num_splits * width, width):
        total_TO = x_TI.new_zeros(len(x_TI), len(weight), dtype=torch.float32)
        for start in range(first, min(first + width, weight.num_columns), STEP):
            part = slice(start, min(start + STEP, weight.num_columns))
            numbers = numbers_OI[:, part].contiguous()
            x = x_TI[:, part].contiguous()
            sums_TO = gemm.product(x, numbers, tile=plain, out_dtype=torch.float32, pdl=False)
            group = start // weight.layout.columns if weight.layout.columns else 0
            scale_O = scales_OG[:, group].repeat_interleave(weight.layout.rows)
            total_TO = added(total_TO, sums_TO, scale_O[: len(weight)])
        planes.append(total_TO)
    return planes


def expected_gated(
    x_TI: torch.Tensor, weight: PackedWeight, tile: Tile, bias_O: torch.Tensor | None = None
) -> torch.Tensor:
    """What `gemm.gated_product` is of a packed weight."""
    if not weight.layout.scales_sums:
        plain = plain_tile(tile, x_TI.device)
        return gemm.gated_product(x_TI, dequantised(weight), tile=plain, bias_2F=bias_O, pdl=False)
    return gated_silu(expected_product(x_TI, weight, tile, bias_O=bias_O))


def added(total: torch.Tensor, sums: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """total + sums x scale. A device rounds once; the interpreter twice, as numpy."""
    if total.is_cuda:
        return (sums.double() * scale.double() + total.double()).float()
    return total + sums * scale
