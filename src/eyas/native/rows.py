"""What a layer does to each row between its products, on a CPU: add and normalise, rotate and store,
gate.

Promises: the arithmetic of the torch bodies in `eyas.ops`, with one order of additions for a width, so
that a row's bits depend on that row alone.
Does not know: layers.

Legend: T rows, D width of a row, F feed-forward size, N query heads, G key/value heads, H head dim, P
positions, S slots.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

from eyas.native.build import Built, call, load

DTYPES = (torch.float32, torch.bfloat16)
_SIZE, _POINTER, _INT = ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_int


class _Heads(ctypes.Structure):
    """`struct heads` of rows.c."""

    _fields_ = (
        ("heads", _POINTER),
        ("row_stride", _SIZE),
        *((name, _POINTER) for name in ("table", "positions", "slots", "weights", "queries", "kv")),
        *((name, _SIZE) for name in ("slot_stride", "side_stride", "head_stride")),
        *((name, _SIZE) for name in ("num_rows", "num_query_heads", "num_kv_heads", "head_dim")),
        ("epsilon", ctypes.c_float),
        ("is_half", _INT),
    )


class CompiledRows:
    """The functions of the compiled `rows.c`. Tensors of a call have one type, one of DTYPES."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._add_norm = library.eyas_add_norm
        self._rotate_and_store = library.eyas_rotate_and_store
        self._gate = library.eyas_gate
        self._join = library.eyas_join

    def add_norm(
        self,
        stream_TD: torch.Tensor,
        parts_TD: torch.Tensor | None,
        weight: torch.Tensor | None,
        epsilon: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `ops.add_norm`. The tensors are contiguous."""
        out_TD = torch.empty_like(stream_TD)
        sum_TD = stream_TD if parts_TD is None else torch.empty_like(stream_TD)
        num_rows, size = stream_TD.shape
        call(
            "eyas::add_norm",
            self._add_norm,
            stream_TD.data_ptr(),
            None if parts_TD is None else parts_TD.data_ptr(),
            None if weight is None else weight.data_ptr(),
            num_rows,
            size,
            epsilon,
            sum_TD.data_ptr(),
            out_TD.data_ptr(),
            stream_TD.dtype == torch.bfloat16,
            torch.get_num_threads(),
        )
        return sum_TD, out_TD

    def join(
        self,
        tokens_T: torch.Tensor,
        positions_T: torch.Tensor,
        embedding_VD: torch.Tensor,
        features_TF: torch.Tensor,
        embedding_weight: torch.Tensor | None,
        feature_weight: torch.Tensor | None,
        epsilon: float,
        *,
        zero_first: bool,
        embedding_first: bool,
    ) -> torch.Tensor:
        """As `ops.join`. The tensors are contiguous; tokens and positions are int64. A token without an
        embedding has zeros."""
        num_rows, size, feature_size = len(tokens_T), embedding_VD.shape[1], features_TF.shape[1]
        out_TX = features_TF.new_empty(num_rows, size + feature_size)
        call(
            "eyas::join",
            self._join,
            *(tokens_T, positions_T, embedding_VD, len(embedding_VD), features_TF),
            *(num_rows, size, feature_size, embedding_weight, feature_weight),
            *(epsilon, zero_first, embedding_first, out_TX),
            features_TF.dtype == torch.bfloat16,
        )
        return out_TX

    def rotate_and_store(
        self,
        heads_TX: torch.Tensor,
        table_P2H: torch.Tensor,
        positions_T: torch.Tensor,
        slots_T: torch.Tensor,
        kv_S2GH: torch.Tensor,
        num_query_heads: int,
        weight_NH: torch.Tensor | None,
        epsilon: float,
    ) -> torch.Tensor:
        """As `ops.rotate_and_store`, for an even H. table_P2H: [P, 2, 1, H]; weight_NH: [N + G, H] or
        None. Both, positions and slots (int64) are contiguous."""
        num_kv_heads, head_dim = kv_S2GH.shape[2:]
        num_rows = heads_TX.shape[0]
        queries_TNH = heads_TX.new_empty(num_rows, num_query_heads, head_dim)
        work = _Heads(
            heads=heads_TX.data_ptr(),
            row_stride=heads_TX.stride(0),
            table=table_P2H.data_ptr(),
            positions=positions_T.data_ptr(),
            slots=slots_T.data_ptr(),
            weights=None if weight_NH is None else weight_NH.data_ptr(),
            queries=queries_TNH.data_ptr(),
            kv=kv_S2GH.data_ptr(),
            slot_stride=kv_S2GH.stride(0),
            side_stride=kv_S2GH.stride(1),
            head_stride=kv_S2GH.stride(2),
            num_rows=num_rows,
            num_query_heads=num_query_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            epsilon=epsilon,
            is_half=heads_TX.dtype == torch.bfloat16,
        )
        arguments = ctypes.byref(work), torch.get_num_threads()
        call("eyas::rotate_and_store", self._rotate_and_store, *arguments)
        return queries_TNH

    def gate(self, gate_up_T2F: torch.Tensor) -> torch.Tensor:
        """As `ops.gate` with silu. Columns are contiguous."""
        num_rows, size = gate_up_T2F.shape[0], gate_up_T2F.shape[1] // 2
        out_TF = gate_up_T2F.new_empty(num_rows, size)
        call(
            "eyas::gate",
            self._gate,
            gate_up_T2F.data_ptr(),
            gate_up_T2F.stride(0),
            num_rows,
            size,
            out_TF.data_ptr(),
            gate_up_T2F.dtype == torch.bfloat16,
            torch.get_num_threads(),
        )
        return out_TF


@cache
def compiled() -> Built:
    """Return the compiled library, or the reason why there is none."""
    return load(Path(__file__).with_name("rows.c"), "norms and gates", _declare, _is_right)


def _declare(library: ctypes.CDLL) -> None:
    library.eyas_add_norm.restype = None
    library.eyas_add_norm.argtypes = (
        *(_POINTER, _POINTER, _POINTER, _SIZE, _SIZE, ctypes.c_float),
        *(_POINTER, _POINTER, _INT, _INT),
    )
    library.eyas_rotate_and_store.restype = None
    library.eyas_rotate_and_store.argtypes = (ctypes.POINTER(_Heads), _INT)
    library.eyas_join.restype = None
    library.eyas_join.argtypes = (
        *(_POINTER, _POINTER, _POINTER, _SIZE, _POINTER, _SIZE, _SIZE, _SIZE),
        *(_POINTER, _POINTER, ctypes.c_float, _INT, _INT, _POINTER, _INT),
    )
    library.eyas_gate.restype = None
    library.eyas_gate.argtypes = (_POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _INT, _INT)


def _is_right(library: ctypes.CDLL) -> bool:
    """Whether small cases agree with torch's operations."""
    rows, generator = CompiledRows(library), torch.Generator().manual_seed(1)
    for dtype in DTYPES:
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        x_TD, parts_TD = torch.randn((2, 3, 44), generator=generator).to(dtype).unbind(0)
        sum_TD, norm_TD = rows.add_norm(x_TD, parts_TD, None, 1e-6)
        expected_TD = torch.rms_norm((x_TD + parts_TD).float(), (44,), None, 1e-6)
        gate_TF, up_TF = x_TD.float().chunk(2, 1)
        gated_TF = torch.nn.functional.silu(gate_TF) * up_TF
        if not (
            torch.equal(sum_TD, x_TD + parts_TD)
            and torch.allclose(norm_TD.float(), expected_TD, rtol=tolerance, atol=tolerance)
            and torch.allclose(rows.gate(x_TD).float(), gated_TF, rtol=tolerance, atol=tolerance)
        ):
            return False
    return True


@cache
def _rows_of(dtype: torch.dtype, device: torch.device) -> CompiledRows | None:
    if dtype not in DTYPES or device.type != "cpu" or (library := compiled().library) is None:
        return None
    return CompiledRows(library)


def compiled_rows(first: torch.Tensor, *others: torch.Tensor | None) -> CompiledRows | None:
    """Return the compiled functions; None where the work on these tensors is torch's: of other types or
    devices, of several types, or with gradients."""
    dtype = first.dtype
    for other in others:
        if other is not None and other.dtype != dtype:
            return None
    return None if first.requires_grad else _rows_of(dtype, first.device)
