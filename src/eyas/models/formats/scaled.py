"""Numbers of 8 bits with a scale for each block: FP8 of every layout, and INT8.

Promises: a value is number x scale, or (number - zero point) x scale, in float32; one rule for
scales of the whole tensor, of a row, of a group of columns and of blocks of rows and columns, whose
last blocks may be incomplete.
Does not know: names of tensors, configurations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from eyas.kernels.packed import STEP, Layout, PackedWeight
from eyas.models.formats.base import SCALE_TYPES, Packing, StoredTensor, check_type, wrong_shape
from eyas.ops.dequantise import arrange


@dataclass(frozen=True, slots=True)
class Scaled(Packing):
    """The packing of a weight [..., O, I] whose blocks have a scale each, in the order of the blocks.

    pieces: "weight", "scale" and perhaps "zeros". block: its rows and columns.
    """

    block: tuple[int, int]

    def decode(self, pieces: Mapping[str, torch.Tensor], start: int, stop: int) -> torch.Tensor:
        shape = tuple(pieces["weight"].shape)
        values = floats(pieces["weight"][start:stop])
        for role, apply in (("zeros", torch.Tensor.sub_), ("scale", torch.Tensor.mul_)):
            if role not in pieces:
                continue
            blocks = self._of_rows(pieces[role], shape, start, stop)
            width = min(self.block[1], shape[-1])
            whole = shape[-1] // width * width
            apply(
                values[..., :whole].unflatten(-1, (-1, width)), blocks[..., : whole // width, None]
            )
            if whole < shape[-1]:  # the last block is incomplete
                apply(values[..., whole:], blocks[..., -1:])
        return values

    @property
    def layout(self) -> Layout | None:
        weight, (rows, columns) = self.pieces["weight"], self.block
        columns = 0 if columns >= weight.shape[-1] else columns
        if weight.dtype != "F8_E4M3" or "zeros" in self.pieces or columns % STEP:
            return None
        return Layout("fp8", min(rows, weight.shape[-2]), columns)

    def pack(
        self,
        pieces: Mapping[str, torch.Tensor],
        start: int,
        stop: int,
        layout: Layout,
        dtype: torch.dtype,
        device: torch.device,
    ) -> PackedWeight:
        shape = tuple(pieces["weight"].shape)
        numbers = pieces["weight"][start:stop].view(torch.uint8).to(device)
        blocks = pieces["scale"].float().reshape(block_counts(shape, self.block))
        if len(shape) > 2:
            blocks, start, stop = blocks[start:stop], 0, shape[-2]
        rows = torch.arange(start, stop, layout.rows) // self.block[0]
        scales = blocks.index_select(-2, rows).to(device)
        return PackedWeight(layout, arrange(numbers, "fp8"), scales, shape[-1], dtype)

    def _of_rows(
        self, blocks: torch.Tensor, shape: tuple[int, ...], start: int, stop: int
    ) -> torch.Tensor:
        """Return the numbers of the blocks along each of the rows `start` to `stop`, as float32."""
        blocks = blocks.float().reshape(block_counts(shape, self.block))
        if len(shape) > 2:
            blocks, start, stop = blocks[start:stop], 0, shape[-2]
        return blocks.index_select(-2, torch.arange(start, stop) // self.block[0])


def floats(numbers: torch.Tensor) -> torch.Tensor:
    """Return integers or FP8 (e4m3) as float32.

    The bits of an e4m3 number are those of a float16 whose exponent is 8 lower, but for NaN, which
    would be 480. torch's own conversion is several times slower.
    """
    if not numbers.is_floating_point():
        return numbers.float()
    halves = numbers.view(torch.int8).to(torch.int16)
    halves.bitwise_left_shift_(7).bitwise_and_(-16512)  # the copies of the sign below bit 15 go
    values = halves.view(torch.float16).float().mul_(256)
    lowest, highest = values.aminmax()
    if max(float(highest), -float(lowest)) > torch.finfo(numbers.dtype).max:
        return numbers.float()
    return values


def block_counts(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """Return the number of blocks of a tensor [..., O, I] along each dimension."""
    return (*shape[:-2], -(-shape[-2] // block[0]), -(-shape[-1] // block[1]))


def scaled_tensor(
    name: str,
    pieces: Mapping[str, StoredTensor],
    blocks: Sequence[tuple[int, int]],
    why: str,
    types: tuple[str, ...],
) -> StoredTensor:
    """Return the logical tensor of a weight and its scales.

    name: of the result. pieces: as in `Scaled`. blocks: sizes of blocks that are allowed (rows and
    columns, 0 for all); the first that the scales fit is taken. why: what allows them, for messages.
    types: in which the weight may be stored.
    ValueError: none fits, or a piece has another type.
    """
    weight, scale = pieces["weight"], pieces["scale"]
    check_type(weight, types, "quantised weights")
    check_type(scale, SCALE_TYPES, "scales")
    if len(weight.shape) < 2 or 0 in weight.shape:
        raise wrong_shape(weight, (1, 1), "the format (at least), which is of matrices")
    sizes = [(rows or weight.shape[-2], columns or weight.shape[-1]) for rows, columns in blocks]
    counts = [block_counts(weight.shape, size) for size in sizes]
    stripped = [_without_last_ones(count) for count in counts]
    if _without_last_ones(scale.shape) not in stripped:
        raise wrong_shape(scale, counts[-1], f"{why} and {weight.name!r} of {list(weight.shape)}")
    index = stripped.index(_without_last_ones(scale.shape))
    zeros = pieces.get("zeros")
    if zeros is not None and _without_last_ones(zeros.shape) != stripped[index]:
        raise wrong_shape(zeros, counts[index], f"{scale.name!r}")
    packing = Scaled(pieces, sizes[index])
    return StoredTensor(name, weight.file, weight.shape, "F32", packing)


def _without_last_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape without sizes of 1 at its end: one scale may be [], [1] or [1, 1]."""
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape
