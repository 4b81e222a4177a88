"""Add to the residual stream and normalise it by its root mean square, each row by itself.

Promises: a row's sums run over that row alone, in an order that does not depend on the other rows.
The new stream is rounded once and normalised as rounded; parts of a product are added in ascending
order.
Does not know: what the rows are (hidden states, or the heads of a query).

On a CPU torch composes its own RMS norm from seven operations, each of which costs microseconds at
one token; layer norm is one kernel. A row followed by its negative has mean 0 and an unchanged mean
square, so layer norm of the two is RMS norm of the row.

Legend: T rows, D width of a row, Z parts of a split product.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from eyas.native.rows import compiled_rows
from eyas.ops.dispatch import Operation


def new_weight(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a weight of ones as the bodies read it: [D], on a CPU [2, D], of which the first row
    counts."""
    shape = (2, size) if device.type == "cpu" else (size,)
    return torch.ones(shape, dtype=dtype, device=device)


@Operation
def add_norm(
    stream_TD: torch.Tensor,
    parts: torch.Tensor | None,
    weight: torch.Tensor | None,
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the stream with `parts` added, and its norm, [T, D] each.

    parts: [T, D] in the stream's type, or float32 [Z, T, D]; None adds nothing and returns the
    stream itself. weight: from `new_weight`; None multiplies by nothing.
    """
    stream_TD = added(stream_TD, parts)
    return stream_TD, normalized(stream_TD, weight, epsilon)


@add_norm.kernel
def _by_kernel(
    stream_TD: torch.Tensor,
    parts: torch.Tensor | None,
    weight: torch.Tensor | None,
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _launcher()(stream_TD, parts, weight, epsilon, pdl=stream_TD.is_cuda)


@add_norm.native
def _by_native(
    stream_TD: torch.Tensor,
    parts: torch.Tensor | None,
    weight: torch.Tensor | None,
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = compiled_rows(stream_TD, weight)
    if rows is None:
        return NotImplemented
    if parts is not None and (parts.dim() > 2 or parts.dtype != stream_TD.dtype):
        stream_TD, parts = added(stream_TD, parts), None
    if parts is not None:
        parts = parts.contiguous()
    return rows.add_norm(stream_TD.contiguous(), parts, weight, epsilon)


def added(stream_TD: torch.Tensor, parts: torch.Tensor | None) -> torch.Tensor:
    """Return the residual stream with the parts of a product added, in order."""
    if parts is None:
        return stream_TD
    if parts.dim() == stream_TD.dim():
        return stream_TD + parts
    return (stream_TD + summed(parts)).to(stream_TD.dtype)


def summed(parts: torch.Tensor) -> torch.Tensor:
    """Return the sum [T, D] of a product's parts, [T, D] or [Z, T, D], added in order."""
    if parts.dim() == 2:
        return parts
    total_TD = parts[0]
    for part_TD in parts[1:]:
        total_TD = total_TD + part_TD
    return total_TD


def normalized(x_TD: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + epsilon) * weight over the last dimension, by torch operations.

    There may be any dimensions before the last one.
    """
    size = x_TD.shape[-1]
    if x_TD.device.type != "cpu":
        return torch.rms_norm(x_TD, (size,), weight, epsilon)
    mirrored_T2D = x_TD.unsqueeze(-2) * _signs(x_TD.dtype)
    return torch.layer_norm(mirrored_T2D, (2, size), weight, None, epsilon).select(-2, 0)


@cache
def _signs(dtype: torch.dtype) -> torch.Tensor:
    """[2, 1] 1 and -1, on the CPU."""
    with torch.inference_mode(False):
        return torch.tensor([[1.0], [-1.0]], dtype=dtype)


@cache
def _launcher() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """The kernel's launcher: an import in each of a forward's many calls would cost microseconds."""
    from eyas.kernels.add_norm import add_norm as launch

    return launch
