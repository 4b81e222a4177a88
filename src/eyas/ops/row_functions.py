"""Functions of single numbers whose results on a CPU do not depend on the rows around them.

torch's CPU kernels use vector code for most numbers and scalar code for the last few of each run, and
the two differ in the last bit of an exponential. Here every row is a run of its own, padded to whole
steps of the vector code, and torch gets so few numbers at once that it does not split them between
threads.

Promises: a number has the same result in any row and column of any call.
Does not know: what the numbers are.

Legend: L rows, X numbers of a row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

STEP = 32
"""Float32 numbers that vector code takes at a time: two vectors, of 16 numbers with AVX-512."""
SERIAL = 1024
"""torch runs these functions on one thread up to so many numbers; some only up to 2048."""


def exp(x_LX: torch.Tensor) -> torch.Tensor:
    return _by_row(torch.ops.aten.exp.out, x_LX)


def sigmoid(x_LX: torch.Tensor) -> torch.Tensor:
    return _by_row(torch.ops.aten.sigmoid.out, x_LX)


def softplus(x_LX: torch.Tensor) -> torch.Tensor:
    return _by_row(torch.ops.aten.softplus.out, x_LX)


def sqrt(x_LX: torch.Tensor) -> torch.Tensor:
    return _by_row(torch.ops.aten.sqrt.out, x_LX)


def rsqrt(x_LX: torch.Tensor) -> torch.Tensor:
    return _by_row(torch.ops.aten.rsqrt.out, x_LX)


def silu(x_LX: torch.Tensor) -> torch.Tensor:
    return _by_row(torch.ops.aten.silu.out, x_LX)


def sum_in_halves(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the sum over a dimension, whose order depends on its size alone: its second half is added
    to the first until one number is left."""
    while (size := x.shape[dim]) > 1:
        half = size // 2
        total = x.narrow(dim, 0, half) + x.narrow(dim, size - half, half)
        x = torch.cat([total, x.narrow(dim, half, 1)], dim) if size % 2 else total
    return x.squeeze(dim)


def _by_row(function: Callable[..., torch.Tensor], x_LX: torch.Tensor) -> torch.Tensor:
    """Return function(x), each row by the same code. function: writes to its argument `out`."""
    if x_LX.device.type != "cpu":
        return function(x_LX, out=torch.empty_like(x_LX))
    num_rows, width = x_LX.shape
    if width > SERIAL:  # cut at the same columns in every call
        return torch.cat([_by_row(function, part) for part in x_LX.split(SERIAL, 1)], 1)
    padded = -(-width // STEP) * STEP
    apart = x_LX.new_zeros((num_rows, padded + STEP))[:, :padded]  # rows that touch are one run
    apart[:, :width] = x_LX
    for piece in apart.split(max(1, SERIAL // padded)):
        function(piece, out=piece)
    return apart[:, :width]
