"""Normalise heads, and turn neighbouring numbers of their last dimensions by their row's angles.

Promises: a row's bits depend on that row alone.
Does not know: what the heads are.

Legend: T rows, N heads, H head dim, R rotated dimensions.
"""

from __future__ import annotations

import torch

from eyas.ops.add_norm import normalized
from eyas.ops.dispatch import Operation
from eyas.ops.rotate_and_store import Angles


@Operation
def turn_heads(
    x_TNH: torch.Tensor,
    angles: Angles,
    epsilon: float | None = None,
    weight: torch.Tensor | None = None,
    *,
    backwards: bool = False,
    out_TNH: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the heads [T, N, H], turned by their row's angles, or back by them.

    epsilon: of the RMS norm of each head that comes first; None is none. weight: of that norm, from
    `add_norm.new_weight`. out_TNH: where to write them, which may be the input; None is a new tensor.
    """
    if epsilon is not None:
        x_TNH = normalized(x_TNH, weight, epsilon)
    cosine, sine = angles.rows()
    turned_TNH = rotate_pairs(x_TNH, cosine, sine, backwards=backwards)
    return turned_TNH if out_TNH is None else out_TNH.copy_(turned_TNH)


@turn_heads.kernel
def _by_kernel(
    x_TNH: torch.Tensor,
    angles: Angles,
    epsilon: float | None = None,
    weight: torch.Tensor | None = None,
    *,
    backwards: bool = False,
    out_TNH: torch.Tensor | None = None,
) -> torch.Tensor:
    from eyas.kernels.turn import turn_heads as launch

    if out_TNH is None:
        out_TNH = torch.empty(x_TNH.shape, dtype=x_TNH.dtype, device=x_TNH.device)
    launch(
        x_TNH,
        angles.positions_T,
        angles.table_P2H,
        epsilon,
        weight if weight is None or weight.dim() == 1 else weight[0],
        out_TNH,
        backwards=backwards,
        pdl=x_TNH.is_cuda,
    )
    return out_TNH


def rotate_pairs(
    x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, *, backwards: bool = False
) -> torch.Tensor:
    """Return x with its last R dimensions turned, neighbours (2i, 2i + 1) being a pair.

    cosine, sine: [..., R] from `Angles`, whose first half of sines is negated; they broadcast to x.
    """
    num_rotated = cosine.shape[-1]
    half = num_rotated // 2
    cosine, sine = cosine[..., :half].float(), sine[..., half:].float()
    if backwards:
        sine = -sine
    plain, turned = x.float().split([x.shape[-1] - num_rotated, num_rotated], -1)
    first, second = turned.unflatten(-1, (half, 2)).unbind(-1)
    pairs = torch.stack([first * cosine - second * sine, second * cosine + first * sine], -1)
    return torch.cat([plain, pairs.flatten(-2)], -1).to(x.dtype)
