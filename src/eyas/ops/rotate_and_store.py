"""Normalise and rotate the heads of queries and keys, and store keys and values in their slots.

Promises: a row's bits depend on that row alone; halves of a head are paired, as in Hugging Face
checkpoints; only finite numbers are stored, rounded to the cache's number format (`to_stored`).
Does not know: what attends, which slots are free, how angles are made.

Legend: T rows, X = (N + 2G) * H columns of a row, N query heads, G key/value heads, H head dim, S
slots, P positions, Z parts of a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from eyas.native.rows import compiled_rows
from eyas.ops.add_norm import normalized, summed
from eyas.ops.dispatch import Operation


@dataclass(slots=True)
class Angles:
    """The angles of a forward's rows, for all its layers.

    table_P2H: cosine and signed sine of each position, [P, 2, 1, H]. positions_T: of the rows.
    """

    table_P2H: torch.Tensor
    positions_T: torch.Tensor
    _rows: tuple[torch.Tensor, torch.Tensor] | None = None

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosine and signed sine of the rows, [T, 1, H] each. They are gathered once."""
        if self._rows is None:
            cosine_T1H, sine_T1H = self.table_P2H.index_select(0, self.positions_T).unbind(1)
            self._rows = cosine_T1H, sine_T1H
        return self._rows


@dataclass(frozen=True, slots=True)
class KVDestination:
    """Where a layer's keys and values are stored: row t of the forward in kv_S2GH[slots_T[t]],
    whose views keys_SGH and values_SGH are ([S, 1, G, H] where values are part of the keys). What is
    written must be finite. key_scale, value_scale: where the cache has a narrower number format than
    the model, what is stored times this is the key or value (`to_stored`)."""

    kv_S2GH: torch.Tensor
    slots_T: torch.Tensor
    keys_SGH: torch.Tensor
    values_SGH: torch.Tensor
    key_scale: float = 1.0
    value_scale: float = 1.0

    @classmethod
    def of(cls, kv_S2GH: torch.Tensor, slots_T: torch.Tensor) -> KVDestination:
        return cls(kv_S2GH, slots_T, kv_S2GH.select(1, 0), kv_S2GH.select(1, -1))

    def store_keys(self, keys_TGH: torch.Tensor) -> None:
        """Write the keys of the rows to their slots."""
        _copy_rows(self.keys_SGH, self.slots_T, keys_TGH, self.key_scale)

    def store_values(self, values_TGH: torch.Tensor) -> None:
        """Write the values of the rows to their slots."""
        _copy_rows(self.values_SGH, self.slots_T, values_TGH, self.value_scale)


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """The RMS norm of query and key heads: the weight of each kind [H], and of each head [N + G,
    H]."""

    epsilon: float
    q_weight_H: torch.Tensor
    k_weight_H: torch.Tensor
    weight_NH: torch.Tensor

    @classmethod
    def of(
        cls,
        epsilon: float,
        q_weight_H: torch.Tensor,
        k_weight_H: torch.Tensor,
        num_query_heads: int,
        num_kv_heads: int,
    ) -> HeadNorm:
        rows = [q_weight_H] * num_query_heads + [k_weight_H] * num_kv_heads
        return cls(epsilon, q_weight_H, k_weight_H, torch.stack(rows))


@Operation
def rotate_and_store(
    heads: torch.Tensor,
    angles: Angles,
    destination: KVDestination,
    num_query_heads: int,
    num_kv_heads: int,
    norm: HeadNorm | None,
) -> torch.Tensor:
    """Return rotated queries [T, N, H]; write keys and values to their rows' slots.

    heads: query, key and value heads of each row next to each other, [T, X], or float32 parts [Z, T, X]
    of their sum, which is rounded to the type of the angles. norm: None where heads are not
    normalised. Rows that share a slot (the null slot) leave it with the numbers of one of them.
    """
    head_dim, num_rotated = destination.kv_S2GH.shape[3], num_query_heads + num_kv_heads
    heads_TX = summed(heads).to(angles.table_P2H.dtype)
    heads_TNH = heads_TX.view(-1, num_rotated + num_kv_heads, head_dim)
    qk_TNH = heads_TNH.narrow(1, 0, num_rotated)
    if norm is not None:
        qk_TNH = normalized(qk_TNH, None, norm.epsilon) * norm.weight_NH
    qk_TNH = rotate(qk_TNH, *angles.rows())
    q_TNH, k_TGH = torch.split_with_sizes(qk_TNH, (num_query_heads, num_kv_heads), 1)
    v_TGH = heads_TNH.narrow(1, num_rotated, num_kv_heads)
    destination.store_keys(k_TGH)
    destination.store_values(v_TGH)
    return q_TNH


@rotate_and_store.kernel
def _by_kernel(
    heads: torch.Tensor,
    angles: Angles,
    destination: KVDestination,
    num_query_heads: int,
    num_kv_heads: int,
    norm: HeadNorm | None,
) -> torch.Tensor:
    return _launcher()(
        heads,
        angles.positions_T,
        angles.table_P2H,
        destination.slots_T,
        destination.kv_S2GH,
        num_query_heads,
        num_kv_heads,
        destination.kv_S2GH.shape[3],
        key_scale=destination.key_scale,
        value_scale=destination.value_scale,
        q_weight_H=None if norm is None else norm.q_weight_H,
        k_weight_H=None if norm is None else norm.k_weight_H,
        epsilon=0.0 if norm is None else norm.epsilon,
        pdl=heads.is_cuda,
    )


@rotate_and_store.native
def _by_native(
    heads: torch.Tensor,
    angles: Angles,
    destination: KVDestination,
    num_query_heads: int,
    num_kv_heads: int,
    norm: HeadNorm | None,
) -> torch.Tensor:
    kv_S2GH, table_P2H = destination.kv_S2GH, angles.table_P2H
    weight_NH = None if norm is None else norm.weight_NH
    rows = compiled_rows(heads, kv_S2GH, table_P2H, weight_NH)
    if rows is None or heads.dim() > 2 or kv_S2GH.shape[1] != 2 or kv_S2GH.shape[3] % 2:
        return NotImplemented
    return rows.rotate_and_store(
        heads if heads.stride(1) == 1 else heads.contiguous(),
        table_P2H,
        angles.positions_T.contiguous(),
        destination.slots_T.contiguous(),
        kv_S2GH,
        num_query_heads,
        weight_NH,
        0.0 if norm is None else norm.epsilon,
    )


def rotate(x_TNH: torch.Tensor, cosine_T1H: torch.Tensor, sine_T1H: torch.Tensor) -> torch.Tensor:
    """Return each pair (h, h + H/2) turned by its angle. sine_T1H: its first half negated.

    There are products and sums only: each is rounded correctly, so a row does not depend on the
    others.
    """
    swapped_TNH = x_TNH.roll(x_TNH.shape[-1] // 2, -1)
    return (x_TNH * cosine_T1H).add_(swapped_TNH.mul_(sine_T1H))


def finite(x: torch.Tensor) -> torch.Tensor:
    """Return `x` with zeros for what is no finite number.

    0 times infinity is not 0, so a masked key would spread to rows that must not see it, and from
    shared slots to other requests.
    """
    return x.nan_to_num(0.0, 0.0, 0.0)


def to_stored(x: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """Return `x` as a cache of this type stores it: zeros for what is no finite number; in a narrower
    type, `x` divided by `scale`, rounded to the nearest number, ties to even, and at most the largest
    one of the type."""
    x = finite(x)
    if dtype == x.dtype:
        return x
    largest = torch.finfo(dtype).max
    return (x.float() * (1.0 / scale)).clamp_(-largest, largest).to(dtype)


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """Return numbers of 8 bits as bytes, which torch can index on every device; others as they are."""
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x


def _copy_rows(
    stored_SGH: torch.Tensor, slots_T: torch.Tensor, rows_TGH: torch.Tensor, scale: float
) -> None:
    rows_TGH = to_stored(rows_TGH, scale, stored_SGH.dtype)
    as_bytes(stored_SGH).index_copy_(0, slots_T, as_bytes(rows_TGH))


@cache
def _launcher() -> Callable[..., torch.Tensor]:
    """The kernel's launcher: an import in each of a forward's many calls would cost microseconds."""
    from eyas.kernels.rotate_and_store import rotate_and_store as launch

    return launch
