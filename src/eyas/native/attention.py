"""Attention over slots on a CPU, in float32: one order of additions for any call.

Promises: the output of a query depends, bit for bit, on its own query, keys and values alone, and on
nothing that other columns or slots hold. Keys and values, float32 or bfloat16, are read where they lie.
Does not know: layers, caches, how lanes are made.

Legend: T rows, N query heads, G key/value heads, H head dim, D value dim, S slots, Y lanes, L columns,
Q queries of a lane.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

from eyas.native.build import Built, call, load

DTYPES = (torch.float32, torch.bfloat16)
"""In which keys and values may be."""
_SIZE, _POINTER = ctypes.c_ssize_t, ctypes.c_void_p
_SIZES = ("num_lanes", "num_queries", "num_kv_heads", "per_kv", "head_dim", "value_dim")


class _Work(ctypes.Structure):
    """`struct work` of attention.c."""

    _fields_ = (
        ("q", _POINTER),
        ("kv", _POINTER),
        *((name, _SIZE) for name in ("slot_stride", "head_stride", "value_offset")),
        ("slots", _POINTER),
        ("lane_stride", _SIZE),
        *((name, _POINTER) for name in ("rows", "positions")),
        *((name, _SIZE) for name in (*_SIZES, "window", "first_position")),
        ("sinks", _POINTER),
        ("out", _POINTER),
        ("scale", ctypes.c_float),
        ("is_half", ctypes.c_int),
    )


@dataclass(frozen=True, slots=True)
class Queries:
    """Queries of lanes; all int64. rows_YQ: of the forward pass, -1 where there is none.

    A query sees the columns of slots_YL up to its position, which names one of them.
    """

    slots_YL: torch.Tensor
    rows_YQ: torch.Tensor
    positions_YQ: torch.Tensor

    def __post_init__(self) -> None:
        tensors = (self.slots_YL, self.rows_YQ, self.positions_YQ)
        assert all(x.dtype == torch.int64 and x.device.type == "cpu" for x in tensors)
        assert self.slots_YL.stride(1) == 1 and self.rows_YQ.shape == self.positions_YQ.shape
        assert self.rows_YQ.is_contiguous() and self.positions_YQ.is_contiguous()


class CompiledAttention:
    """Attention by the compiled `attention.c`.

    value_dim: numbers of an output; window: positions that a query sees, None is all; first_position:
    the first with keys, an earlier query sees its own alone; scale: factor of the dot products.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        *,
        value_dim: int,
        scale: float,
        window: int | None = None,
        first_position: int = 0,
    ) -> None:
        self._run = library.eyas_attend
        self._value_dim = value_dim
        self._scale = scale
        self._window = window or 0
        self._first_position = first_position

    def __call__(
        self,
        queries: Queries,
        q_TNH: torch.Tensor,
        kv_S2GH: torch.Tensor,
        out_TND: torch.Tensor,
        sinks_N: torch.Tensor | None = None,
    ) -> None:
        """Write the outputs of all queries to their rows of out_TND.

        kv_S2GH: keys, then values, float32 or bfloat16; [S, 1, G, H] if values are the first numbers of
        keys. The others are float32 and contiguous.
        """
        num_sides, num_kv, head_dim = kv_S2GH.shape[1:]
        assert kv_S2GH.stride(3) == 1 and q_TNH.is_contiguous() and out_TND.is_contiguous()
        assert q_TNH.dtype == out_TND.dtype == torch.float32 and kv_S2GH.dtype in DTYPES
        assert sinks_N is None or (sinks_N.dtype == torch.float32 and sinks_N.is_contiguous())
        work = _Work(
            q=q_TNH.data_ptr(),
            kv=kv_S2GH.data_ptr(),
            slot_stride=kv_S2GH.stride(0),
            head_stride=kv_S2GH.stride(2),
            value_offset=kv_S2GH.stride(1) * (num_sides - 1),
            slots=queries.slots_YL.data_ptr(),
            lane_stride=queries.slots_YL.stride(0),
            rows=queries.rows_YQ.data_ptr(),
            positions=queries.positions_YQ.data_ptr(),
            num_lanes=queries.rows_YQ.shape[0],
            num_queries=queries.rows_YQ.shape[1],
            num_kv_heads=num_kv,
            per_kv=q_TNH.shape[1] // num_kv,
            head_dim=head_dim,
            value_dim=self._value_dim,
            window=self._window,
            first_position=self._first_position,
            sinks=None if sinks_N is None else sinks_N.data_ptr(),
            out=out_TND.data_ptr(),
            scale=self._scale,
            is_half=kv_S2GH.dtype == torch.bfloat16,
        )
        call("eyas::attention", self._run, ctypes.byref(work), torch.get_num_threads())


@cache
def compiled() -> Built:
    """Return the compiled library, or the reason why there is none."""
    return load(Path(__file__).with_name("attention.c"), "attention", _declare, _is_right)


def _declare(library: ctypes.CDLL) -> None:
    library.eyas_attend.restype = None
    library.eyas_attend.argtypes = (ctypes.POINTER(_Work), ctypes.c_int)


def _is_right(library: ctypes.CDLL) -> bool:
    """Whether a small case agrees with torch's attention, and single queries with all at once."""
    generator = torch.Generator().manual_seed(1)
    count, num_heads, num_kv, dim = 75, 6, 2, 40
    q_TNH = torch.randn((count, num_heads, dim), generator=generator)
    kv_S2GH = torch.randn((count, 2, num_kv, dim), generator=generator)
    slots_1L = torch.randperm(count, generator=generator).unsqueeze(0)
    rows_1T = torch.arange(count).unsqueeze(0)
    attend = CompiledAttention(library, value_dim=dim, scale=dim**-0.5)
    whole_TND, single_TND, half_TND, rounded_TND = torch.zeros(4, *q_TNH.shape)
    attend(Queries(slots_1L, rows_1T, rows_1T), q_TNH, kv_S2GH, whole_TND)
    for row_1T in rows_1T.split(1, dim=1):
        row_1T = row_1T.contiguous()
        attend(Queries(slots_1L, row_1T, row_1T), q_TNH, kv_S2GH, single_TND)
    k_GLH, v_GLH = kv_S2GH[slots_1L[0]].permute(1, 2, 0, 3)
    expected_NTD = scaled_dot_product_attention(
        q_TNH.transpose(0, 1)[None], k_GLH[None], v_GLH[None], is_causal=True, enable_gqa=True
    )[0]
    is_close = torch.allclose(whole_TND.transpose(0, 1), expected_NTD, rtol=1e-4, atol=1e-4)
    halves_S2GH = kv_S2GH.bfloat16()
    attend(Queries(slots_1L, rows_1T, rows_1T), q_TNH, halves_S2GH, half_TND)
    attend(Queries(slots_1L, rows_1T, rows_1T), q_TNH, halves_S2GH.float(), rounded_TND)
    return is_close and torch.equal(whole_TND, single_TND) and torch.equal(half_TND, rounded_TND)


def compiled_attention(
    dtype: torch.dtype,
    device: torch.device,
    *,
    value_dim: int,
    scale: float,
    window: int | None = None,
    first_position: int = 0,
) -> CompiledAttention | None:
    """Return the compiled attention; None where that of this type or device is torch's.

    dtype: of keys and values. The others: as `CompiledAttention`.
    """
    if dtype not in DTYPES or device.type != "cpu" or (library := compiled().library) is None:
        return None
    return CompiledAttention(
        library, value_dim=value_dim, scale=scale, window=window, first_position=first_position
    )
