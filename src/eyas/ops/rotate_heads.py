"""Normalise heads, and turn neighbouring numbers of their last dimensions by their row's angles.

Promises: a row's bits depend on that row alone.
Does not know: what the heads are.

Legend: T rows, N heads, H head dim, R rotated dimensions, J heads of an indexer, I their width, X
numbers of a row of several heads.
"""

from __future__ import annotations

import torch

from eyas.ops.add_norm import normalized
from eyas.ops.dispatch import Operation
from eyas.ops.rotate_and_store import Angles


@Operation
def rotate_heads(
    x_TNH: torch.Tensor,
    angles: Angles,
    epsilon: float | None = None,
    weight: torch.Tensor | None = None,
    *,
    backwards: bool = False,
) -> torch.Tensor:
    """Return the heads [T, N, H], rotated by their row's angles, or back by them.

    epsilon: of the RMS norm of each head that comes first; None is none. weight: of that norm, from
    `add_norm.new_weight`.
    """
    if epsilon is not None:
        x_TNH = normalized(x_TNH, weight, epsilon)
    cosine, sine = angles.rows()
    return rotate_pairs(x_TNH, cosine, sine, backwards=backwards)


@rotate_heads.kernel
def _by_kernel(
    x_TNH: torch.Tensor,
    angles: Angles,
    epsilon: float | None = None,
    weight: torch.Tensor | None = None,
    *,
    backwards: bool = False,
) -> torch.Tensor:
    from eyas.kernels.rotate_heads import rotate_heads as launch

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


@Operation
def rotate_shared(
    q_TX: torch.Tensor,
    kv_TH: torch.Tensor,
    weight: torch.Tensor,
    angles: Angles,
    epsilon: float,
    num_heads: int,
    num_index_heads: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise and turn the one key of a row in place; return its query heads [T, N, H], normalised
    and rotated, and the heads of its indexer [T, J, I], rotated.

    q_TX: query heads, and behind them those of the indexer, of which there may be none. weight: of the
    key's norm, from `add_norm.new_weight`.
    """
    q_TNH, index_TJI = _heads_of(q_TX, kv_TH.shape[1], num_heads, num_index_heads)
    kv_T1H = kv_TH.unsqueeze(1)
    kv_T1H.copy_(rotate_heads.by_torch(kv_T1H, angles, epsilon, weight))
    if num_index_heads:
        index_TJI = rotate_heads.by_torch(index_TJI, angles)
    return rotate_heads.by_torch(q_TNH, angles, epsilon), index_TJI


@rotate_shared.kernel
def _shared_by_kernel(
    q_TX: torch.Tensor,
    kv_TH: torch.Tensor,
    weight: torch.Tensor,
    angles: Angles,
    epsilon: float,
    num_heads: int,
    num_index_heads: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    from eyas.kernels.rotate_heads import rotate_shared as launch

    rotated_TX = launch(
        q_TX,
        kv_TH,
        weight if weight.dim() == 1 else weight[0],
        angles.positions_T,
        angles.table_P2H,
        epsilon,
        num_heads,
        num_index_heads,
        pdl=q_TX.is_cuda,
    )
    return _heads_of(rotated_TX, kv_TH.shape[1], num_heads, num_index_heads)


def _heads_of(
    q_TX: torch.Tensor, head_dim: int, num_heads: int, num_index_heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    size = num_heads * head_dim
    q_TX, index_TX = q_TX.split([size, q_TX.shape[1] - size], dim=1)
    index_shape = (num_index_heads, index_TX.shape[1] // max(1, num_index_heads))
    return q_TX.unflatten(1, (num_heads, head_dim)), index_TX.unflatten(1, index_shape)


def rotate_pairs(
    x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, *, backwards: bool = False
) -> torch.Tensor:
    """Return x with its last R dimensions rotated, neighbours (2i, 2i + 1) being a pair.

    cosine, sine: [..., R] from `Angles`, whose first half of sines is negated; they broadcast to x.
    """
    num_rotated = cosine.shape[-1]
    half = num_rotated // 2
    cosine, sine = cosine[..., :half].float(), sine[..., half:].float()
    if backwards:
        sine = -sine
    plain, rotated = x.float().split([x.shape[-1] - num_rotated, num_rotated], -1)
    first, second = rotated.unflatten(-1, (half, 2)).unbind(-1)
    pairs = torch.stack([first * cosine - second * sine, second * cosine + first * sine], -1)
    return torch.cat([plain, pairs.flatten(-2)], -1).to(x.dtype)
