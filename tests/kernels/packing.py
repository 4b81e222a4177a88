"""Packed weights of every layout, with random numbers and scales."""

from __future__ import annotations

import torch

from eyas.kernels.packed import Layout, PackedWeight

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
        exponents = weight.scales.view(torch.uint8)
        exponents -= torch.randint(0, 4, exponents.shape, generator=generator).to(torch.uint8)
    else:
        weight.scales.add_(torch.randint(0, 90, weight.scales.shape, generator=generator))
        zeros = torch.randint(-8, 8, weight.scales.shape, generator=generator)
        weight.scales.add_(zeros << 16)
    return PackedWeight(
        layout, weight.numbers.to(device), weight.scales.to(device), shape[-1], dtype
    )
