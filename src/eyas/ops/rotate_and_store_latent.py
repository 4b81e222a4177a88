"""Rotate a part of queries, and normalise, rotate and store the latent row that all heads share.

Promises: a row's bits depend on that row alone; halves of a rotated part are paired; only finite
numbers are stored.
Does not know: what attends, how queries came into the latent space, how angles are made.

Legend: T rows, N query heads, H rotated dimensions, F latent size, D = F + H numbers of a stored row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from eyas.ops.add_norm import normalized
from eyas.ops.dispatch import Operation
from eyas.ops.rotate_and_store import Angles, KVDestination, rotate


@Operation
def rotate_and_store_latent(
    row_TD: torch.Tensor,
    rotated_TNH: torch.Tensor,
    angles: Angles,
    destination: KVDestination,
    weight: torch.Tensor,
    epsilon: float,
    query_TND: torch.Tensor,
) -> None:
    """Write the last H numbers of queries to `query_TND`, and the latent rows to their rows' slots.

    row_TD: the latent, not normalised, then the key's part that is rotated. rotated_TNH: the part of
    queries that is rotated; its rows and heads may stand apart. weight: of the latent's RMS norm, from
    `add_norm.new_weight`. The first F numbers of `query_TND` are left alone. Rows that share a slot
    (the null slot) leave it with the numbers of one of them.
    """
    rank = row_TD.shape[1] - rotated_TNH.shape[2]
    cosine_T1H, sine_T1H = angles.rows()
    query_TND[:, :, rank:] = rotate(rotated_TNH, cosine_T1H, sine_T1H)
    latent_TF = normalized(row_TD[:, :rank], weight, epsilon)
    key_TH = rotate(row_TD[:, rank:].unsqueeze(1), cosine_T1H, sine_T1H).squeeze(1)
    stored_T1D = torch.cat([latent_TF, key_TH], dim=1).unsqueeze(1)
    destination.store_keys(stored_T1D)


@rotate_and_store_latent.kernel
def _by_kernel(
    row_TD: torch.Tensor,
    rotated_TNH: torch.Tensor,
    angles: Angles,
    destination: KVDestination,
    weight: torch.Tensor,
    epsilon: float,
    query_TND: torch.Tensor,
) -> None:
    _launcher()(
        row_TD,
        rotated_TNH,
        angles.positions_T,
        angles.table_P2H,
        destination.slots_T,
        destination.kv_S2GH,
        weight,
        epsilon,
        query_TND,
        scale=destination.key_scale,
        pdl=row_TD.is_cuda,
    )


@cache
def _launcher() -> Callable[..., None]:
    """The kernel's launcher: an import in each of a forward's many calls would cost microseconds."""
    from eyas.kernels.rotate_and_store_latent import rotate_and_store_latent as launch

    return launch
