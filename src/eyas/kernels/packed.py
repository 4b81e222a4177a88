"""Weights that stay packed on a device: numbers of 8 or 4 bits, and scales.

Promises: data alone. A weight is two tensors, whatever its layout, and can be divided and filled by
rows as a plain one. `ops.dequantise` defines the values, their places and the sums of products, which
kernels compute in registers.
Does not know: checkpoints, layers.

Legend: O rows (output features), I columns (input features), E experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

Kind = Literal["fp8", "mxfp4", "int4"]
"""FP8 (e4m3); numbers of 4 bits (e2m1) with a power of two; integers of 4 bits with a zero point."""
STEP = 128
"""Columns of a step of the kernels: rows are filled up to a multiple of it, and numbers have other
places within it (`ops.dequantise.arrange`)."""
MOST_EXPONENT = 192
"""The largest exponent of FP4's powers of two that kernels take, plus 127."""

DEVIATIONS: dict[Kind, float] = {"fp8": 0.55, "mxfp4": 2.926, "int4": 4.637}
"""Standard deviations of random numbers without their scales; of "fp8", of those below 2."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a weight is packed.

    rows, columns: of a block that shares a scale; columns 0 are all. A scale is a float32 ("fp8"), a
    byte of a word that holds those of STEP columns, an exponent plus 127 ("mxfp4"), or the lower half
    of a word, whose upper half is the zero point ("int4"). scale_dtype: of the scales in words.
    """

    kind: Kind
    rows: int
    columns: int
    scale_dtype: Literal["", "float16", "bfloat16"] = ""

    @property
    def columns_per_byte(self) -> int:
        return 1 if self.kind == "fp8" else 2

    @property
    def scales_sums(self) -> bool:
        """Whether a product multiplies sums of STEP columns by scales, and not each number."""
        return self.kind != "mxfp4"

    @property
    def num_splittable(self) -> int:
        """The columns of a scale, or of the word that holds it; 0 are all."""
        return STEP if self.kind == "mxfp4" else self.columns

    @property
    def divisible(self) -> int:
        """The number of columns of whose multiples a weight can be divided: no scale and no step, in
        which numbers have other places, is then of two parts."""
        return math.lcm(STEP, self.columns or 1)

    def num_bytes(self, num_columns: int) -> int:
        """Return the bytes of a row's numbers."""
        return -(-num_columns // STEP) * STEP // self.columns_per_byte

    def num_scales(self, num_columns: int) -> int:
        """Return the number of scales, or words of scales, of a row."""
        return -(-num_columns // self.num_splittable) if self.num_splittable else 1

    def bytes_of(self, num_rows: int, num_columns: int) -> int:
        """Return the bytes of a weight of this size."""
        scales = -(-num_rows // self.rows) * self.num_scales(num_columns) * 4
        return num_rows * self.num_bytes(num_columns) + scales

    def empty(
        self, *shape: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> PackedWeight:
        """Return a weight [..., O, I] that is not filled, whose values have type `dtype`."""
        *outer, num_rows, num_columns = shape
        numbers = torch.zeros(
            *outer, num_rows, self.num_bytes(num_columns), dtype=torch.uint8, device=device
        )
        scales = torch.zeros(
            *outer,
            self.num_scales(num_columns),
            -(-num_rows // self.rows),
            dtype=torch.float32 if self.kind == "fp8" else torch.int32,
            device=device,
        )
        return PackedWeight(self, numbers, scales.mT, num_columns, dtype)

    def __str__(self) -> str:
        columns = self.columns or "all"
        return f"{self.kind} {self.rows}x{columns}{' ' * bool(self.scale_dtype)}{self.scale_dtype}"


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A weight [O, I] or [E, O, I] whose values are not stored.

    numbers: uint8, of each row `layout.num_bytes`. scales: of each block of `layout.rows` rows
    `layout.num_scales`, float32 or words of int32; those of neighbouring blocks of rows are next to
    each other in memory, because a program reads those of all its rows at once. dtype: of the values.
    """

    layout: Layout
    numbers: torch.Tensor
    scales: torch.Tensor
    num_columns: int
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.numbers.shape[:-1], self.num_columns)

    @property
    def device(self) -> torch.device:
        return self.numbers.device

    @property
    def num_bytes(self) -> int:
        return self.numbers.numel() + self.scales.numel() * self.scales.element_size()

    def __len__(self) -> int:
        return len(self.numbers)

    def dim(self) -> int:
        return self.numbers.dim()

    def is_contiguous(self) -> bool:
        return self.numbers.is_contiguous() and self.scales.mT.is_contiguous()

    def __getitem__(self, index: int | slice) -> PackedWeight:
        """Return an expert, or experts; or, of [O, I], rows that begin where a block of rows does."""
        if self.dim() > 2:
            return self._of(self.numbers[index], self.scales[index])
        assert isinstance(index, slice)
        start, stop, _ = index.indices(len(self))
        high = self.layout.rows
        assert start % high == 0 and (stop % high == 0 or stop == len(self))
        return self._of(self.numbers[start:stop], self.scales[start // high : -(-stop // high)])

    def of_columns(self, start: int, stop: int) -> PackedWeight:
        """Return some columns, which begin and end where the layout is divisible, or end with the
        weight."""
        step, num_scales = self.layout.divisible, self.layout.num_scales
        assert start % step == 0 and (stop % step == 0 or stop == self.num_columns)
        per_byte = self.layout.columns_per_byte
        numbers = self.numbers[..., start // per_byte :]
        scales = self.scales
        if self.layout.num_splittable:
            scales = scales[..., start // self.layout.num_splittable :]
        count = stop - start
        return PackedWeight(
            self.layout,
            numbers[..., : self.layout.num_bytes(count)],
            scales[..., : num_scales(count)],
            count,
            self.dtype,
        )

    def unsqueeze(self, dim: int) -> PackedWeight:
        """Return [O, I] as the weight [1, O, I] of one expert."""
        assert dim == 0
        return self._of(self.numbers.unsqueeze(0), self.scales.unsqueeze(0))

    def copy_(self, other: PackedWeight) -> None:
        """Take the numbers and scales of another weight of the same layout and shape."""
        assert isinstance(other, PackedWeight) and other.layout == self.layout
        assert other.shape == self.shape
        self.numbers.copy_(other.numbers)
        self.scales.copy_(other.scales)

    def normal_(self, mean: float, std: float, *, generator: torch.Generator | None = None) -> None:
        """Fill in random numbers, as `torch.Tensor.normal_`, whose values have about this deviation;
        they are not distributed normally. mean: 0."""
        assert mean == 0.0
        self.numbers.random_(0, 256, generator=generator)
        scale = std / DEVIATIONS[self.layout.kind]
        if self.layout.kind == "fp8":
            # The upper bits of both exponents (`ops.dequantise.fp8_pairs`): all below 2, none NaN.
            self.numbers[..., 1::2].bitwise_and_(0xBB)
            self.scales.fill_(scale)
        elif self.layout.kind == "mxfp4":
            exponent = 127 + round(math.log2(scale))
            self.scales.fill_(int.from_bytes(bytes([exponent] * 4), "little", signed=True))
        else:
            half = torch.tensor(scale, dtype=getattr(torch, self.layout.scale_dtype))
            self.scales.fill_((8 << 16) | (int(half.view(torch.int16)) & 0xFFFF))

    def _of(self, numbers: torch.Tensor, scales: torch.Tensor) -> PackedWeight:
        return PackedWeight(self.layout, numbers, scales, self.num_columns, self.dtype)


Weight = torch.Tensor | PackedWeight
"""A weight whose values are stored, or one that is packed."""


def some_columns(weight: Weight, start: int, stop: int) -> Weight:
    """Return columns of a weight [..., O, I]."""
    if isinstance(weight, PackedWeight):
        return weight.of_columns(start, stop)
    return weight[..., start:stop]


def bytes_of(weight: Weight) -> int:
    """Return the bytes that a weight takes."""
    return weight.num_bytes if isinstance(weight, PackedWeight) else weight.nbytes


def by_row(weight: Weight) -> tuple[torch.Tensor, ...]:
    """Return the tensors that hold a matrix row by row; in a packed one each row has its own scales."""
    if isinstance(weight, torch.Tensor):
        return (weight,)
    assert weight.layout.rows == 1
    return weight.numbers, weight.scales
