"""Products of rows on a CPU: one order of additions for any number of rows.

Promises: an element of a product is one chain of fused multiply-adds over ascending columns, or with
`PackedWeight.by_tree` a sum of several, so its bits depend on its row and the weights alone. float32
weights whose values bfloat16 holds exactly take half the memory and give the same bits. Products of
bfloat16 add up columns in float32, where the processor has AVX-512 BF16 (two at a time) or AMX (32).
Does not know: layers.

Legend: T rows, I input features, O output features.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from eyas.native.build import Built, call, load

BLOCK = 1 << 20
"""Numbers of a weight that are packed at once; it limits the memory that packing needs."""
_SIZE = ctypes.c_ssize_t
_ARGUMENTS = (
    *(ctypes.c_void_p, _SIZE, _SIZE, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p),
    *(_SIZE, _SIZE, ctypes.c_void_p, ctypes.c_int),
)
_TREE_ARGUMENTS = (
    *(ctypes.c_void_p, _SIZE, _SIZE, ctypes.c_void_p, ctypes.c_int),
    *(_SIZE, _SIZE, ctypes.c_int, ctypes.c_void_p, ctypes.c_int),
)


class _Kind(IntEnum):
    """`enum kind` of products.c."""

    FLOATS = 0
    HALVES = 1
    PAIRS = 2


class PackedWeight:
    """A weight [O, I] in panels of outputs.

    weight_OI: float32 or, where `is_available` says so, bfloat16, on a CPU; it is copied. library: the
    compiled `products.c`.
    """

    def __init__(self, weight_OI: torch.Tensor, library: ctypes.CDLL) -> None:
        assert weight_OI.dtype in (torch.float32, torch.bfloat16)
        assert weight_OI.device.type == "cpu"
        num_out, num_in = weight_OI.shape
        self.shape = (num_out, num_in)
        self.dtype = weight_OI.dtype
        self._run = library.eyas_product
        self._run_tree = library.eyas_tree_product
        panel = int(library.eyas_panel())
        rows = panel * max(1, BLOCK // (panel * max(1, num_in)))
        blocks = [weight_OI[start : start + rows] for start in range(0, num_out, rows)]
        stored = torch.bfloat16
        if self.dtype == torch.bfloat16:
            self._kind, self._at_once = _Kind.PAIRS, 2
            multiple = 2 * int(library.eyas_pairs_at_once())
        else:
            is_half = all(torch.equal(block.bfloat16().float(), block) for block in blocks)
            self._kind, self._at_once = _Kind.HALVES if is_half else _Kind.FLOATS, 1
            stored = torch.bfloat16 if is_half else torch.float32
            multiple = 1
        self._missing = -num_in % multiple
        self._num_columns = (num_in + self._missing) // self._at_once
        size = (-(-num_out // panel), self._num_columns, panel, self._at_once)
        self._panels = torch.zeros(size, dtype=stored)
        for start, block in zip(range(0, num_out, rows), blocks, strict=True):
            if self._missing:
                block = F.pad(block, (0, self._missing))
            wide = block.unflatten(1, (-1, self._at_once))
            first, whole = start // panel, len(block) // panel
            self._panels[first : first + whole].copy_(
                wide[: whole * panel].unflatten(0, (whole, panel)).transpose(1, 2)
            )
            if len(block) % panel:
                rest = wide[whole * panel :]
                self._panels[first + whole, :, : len(rest)].copy_(rest.transpose(0, 1))

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weight."""
        return self._panels.nbytes

    def __call__(self, x_TI: torch.Tensor, bias_O: torch.Tensor | None = None) -> torch.Tensor:
        """Return x @ weight.T + bias, [T, O]. x and bias_O (contiguous) have the weight's type."""
        x_TI, out_TO = self._operands(x_TI)
        bias_O = None if bias_O is None else bias_O.float()  # kept until the call returns
        call(
            "eyas::linear",
            self._run,
            x_TI.data_ptr(),
            x_TI.stride(0) // self._at_once,
            x_TI.shape[0],
            self._panels.data_ptr(),
            self._kind,
            None if bias_O is None else bias_O.data_ptr(),
            self.shape[0],
            self._num_columns,
            out_TO.data_ptr(),
            torch.get_num_threads(),
        )
        return out_TO

    def by_tree(self, x_TI: torch.Tensor, num_pieces: int) -> torch.Tensor:
        """Return x @ weight.T, float32 [T, O]: sums over equal pieces of the columns, of which
        neighbours are added until one is left. num_pieces: 1, 2, 4 or 8; it divides the number of
        columns."""
        assert num_pieces in (1, 2, 4, 8) and self.shape[1] % num_pieces == 0
        assert self.dtype == torch.float32
        x_TI, out_TO = self._operands(x_TI)
        call(
            "eyas::linear",
            self._run_tree,
            x_TI.data_ptr(),
            x_TI.stride(0),
            x_TI.shape[0],
            self._panels.data_ptr(),
            self._kind,
            self.shape[0],
            self._num_columns,
            num_pieces,
            out_TO.data_ptr(),
            torch.get_num_threads(),
        )
        return out_TO

    def _operands(self, x_TI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return x as it can be read, and where the result [T, O] is written."""
        num_out, num_in = self.shape
        assert x_TI.dtype == self.dtype and x_TI.shape[1] == num_in
        if self._missing:
            x_TI = F.pad(x_TI, (0, self._missing))
        row_stride, stride = x_TI.stride()
        if stride != 1 or row_stride % self._at_once or x_TI.data_ptr() % 4:
            x_TI = x_TI.clone(memory_format=torch.contiguous_format)
        return x_TI, x_TI.new_empty((x_TI.shape[0], num_out))


@cache
def compiled() -> Built:
    """Return the compiled library, or the reason why there is none."""
    return load(Path(__file__).with_name("products.c"), "products", _declare, _is_right)


def _declare(library: ctypes.CDLL) -> None:
    library.eyas_panel.restype = _SIZE
    library.eyas_panel.argtypes = ()
    library.eyas_pairs_at_once.restype = _SIZE
    library.eyas_pairs_at_once.argtypes = ()
    library.eyas_has_pairs.restype = ctypes.c_int
    library.eyas_has_pairs.argtypes = ()
    library.eyas_product.restype = None
    library.eyas_product.argtypes = _ARGUMENTS
    library.eyas_tree_product.restype = None
    library.eyas_tree_product.argtypes = _TREE_ARGUMENTS


def _is_right(library: ctypes.CDLL) -> bool:
    """Whether small products agree with torch's, and have the same bits in calls of other sizes."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    x_TI, weight_OI, bias_O = random(53, 37), random(101, 37), random(101)
    weights = [weight_OI, weight_OI.bfloat16().float()]
    weights += [weight_OI.bfloat16()] * library.eyas_has_pairs()
    for weight in weights:
        product, rows_TI = PackedWeight(weight, library), x_TI.to(weight.dtype)
        bias = bias_O.to(weight.dtype)
        whole_TO, close = product(rows_TI, bias), 1e-4 if weight.dtype == torch.float32 else 2e-2
        expected_TO = rows_TI.float() @ weight.float().T + bias.float()
        if not torch.allclose(whole_TO.float(), expected_TO, rtol=close, atol=close):
            return False
        for count in (*range(1, 9), 16, 17, 20):
            if not torch.equal(product(rows_TI[count:][:count], bias), whole_TO[count:][:count]):
                return False
        if weight.dtype != torch.float32:
            continue
        of_pieces = PackedWeight(weight[:, :32], library)
        halves = [PackedWeight(weight[:, at : at + 16], library) for at in (0, 16)]
        sums = [half.by_tree(x_TI[:, 16 * i : 16 * i + 16], 4) for i, half in enumerate(halves)]
        if not torch.equal(of_pieces.by_tree(x_TI[:, :32], 8), sums[0] + sums[1]):
            return False
    return True


def is_available(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether products of this type run by compiled code on this device."""
    library = compiled().library if device.type == "cpu" else None
    if library is None:
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(library.eyas_has_pairs()))


def packed_weight(weight_OI: torch.Tensor) -> PackedWeight | None:
    """Return the packed weight, or None where products of its type or device are torch's."""
    if not is_available(weight_OI.dtype, weight_OI.device):
        return None
    library: Any = compiled().library
    return PackedWeight(weight_OI, library)
