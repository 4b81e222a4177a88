"""The part of a checkpoint's tensor that one rank holds.

Promises: plain data; a loader reads the regions that `Cut.regions` names, and nothing else.
Does not know: files, layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from eyas.kernels.packed import PackedWeight, Weight

Range = tuple[int, int]
"""The first index, and the one after the last."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a tensor. whole: their number. ranges: those that are held, in order."""

    whole: int
    ranges: tuple[Range, ...]

    @property
    def count(self) -> int:
        """The number of rows that are held."""
        return sum(stop - start for start, stop in self.ranges)

    def times(self, factor: int) -> Rows:
        """Return the rows where each of these is a group of `factor` rows."""
        ranges = tuple((start * factor, stop * factor) for start, stop in self.ranges)
        return Rows(self.whole * factor, ranges)

    def then(self, *others: Rows) -> Rows:
        """Return these rows and others, of tensors that are concatenated."""
        whole, ranges = self.whole, self.ranges
        for other in others:
            ranges += tuple((start + whole, stop + whole) for start, stop in other.ranges)
            whole += other.whole
        return Rows(whole, ranges)


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A parameter of which a rank holds some rows, or some columns.

    target: where they are stored, plain or packed. shape: of the whole tensor. rows: that are held.
    columns: that are held; None is all.
    """

    target: Weight
    shape: tuple[int, ...]
    rows: tuple[Range, ...]
    columns: Range | None = None

    @classmethod
    def of_rows(cls, target: Weight, rows: Rows) -> Cut:
        return cls(target, (rows.whole, *target.shape[1:]), rows.ranges)

    @classmethod
    def of_columns(cls, target: Weight, whole: int, columns: Range) -> Cut:
        return cls(target, (target.shape[0], whole), ((0, target.shape[0]),), columns)

    @classmethod
    def nothing(cls, *shape: int, like: Weight | None = None) -> Cut:
        """Return a parameter of which the rank holds nothing. like: a weight with the same
        storage."""
        return cls(torch.empty(0) if like is None else like[:0], shape, ())

    def dim(self) -> int:
        return len(self.shape)

    def t(self) -> Cut:
        """Return the cut of the transposed tensor; of one with one dimension, or packed, itself."""
        if self.dim() < 2 or isinstance(self.target, PackedWeight):
            return self
        num_rows, num_columns = self.shape
        if not self.rows:
            return replace(self, shape=(num_columns, num_rows))
        (columns,) = self.rows
        rows = ((0, num_columns) if self.columns is None else self.columns,)
        return Cut(self.target.t(), (num_columns, num_rows), rows, columns)

    def regions(self) -> Iterator[tuple[Range, Range | None, Weight]]:
        """Yield (rows, columns, their target) of the whole tensor."""
        at = 0
        for start, stop in self.rows:
            yield (start, stop), self.columns, self.target[at : at + stop - start]
            at += stop - start


Parameter = Weight | Cut
"""What a loader fills: a weight, or the part of one that a rank holds."""


def held(weight: Weight, rows: Rows) -> Parameter:
    """Return the part that a loader fills of a weight with these rows of a tensor."""
    if rows.count == rows.whole:
        return weight
    return Cut.of_rows(weight, rows)


def whole(parameter: Parameter) -> Cut:
    """Return the cut of a whole parameter, or the cut itself."""
    if isinstance(parameter, Cut):
        return parameter
    return Cut(parameter, tuple(parameter.shape), ((0, parameter.shape[0]),))


def whole_shape(blocks: Sequence[Parameter]) -> tuple[int, ...]:
    """Return the shape of the tensor that consecutive blocks of rows make."""
    return (sum(block.shape[0] for block in blocks), *blocks[0].shape[1:])
