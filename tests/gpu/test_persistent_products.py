"""Products by persistent programs on a GPU: bit for bit those of the other kernels."""

from __future__ import annotations

import pytest
import torch

from eyas.kernels import has_warpgroups
from eyas.kernels.gemm import gated_product, product
from eyas.kernels.tiles import PERSISTENT_FOLDED_TILES, PERSISTENT_TILES

DEVICE = torch.device("cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or not has_warpgroups(DEVICE), reason="needs a Hopper device"
    ),
]

PLAIN = tuple(dict.fromkeys(tile for _, tiles in PERSISTENT_TILES for tile in tiles))
FOLDED = tuple(dict.fromkeys(tile for _, tiles in PERSISTENT_FOLDED_TILES for tile in tiles))
DTYPES = (torch.bfloat16, torch.float16)
MOST_ROWS = 5000
ROW_COUNTS = (1, 63, 129, 257, 384, 500, 1000, 2048, MOST_ROWS)
"""With them programs have no tile, one, or several, and the last group of row tiles is a smaller."""


def operands(
    shape: tuple[int, int], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows that do not lie one after another, weights and biases."""
    num_out, num_columns = shape
    generator = torch.Generator(DEVICE).manual_seed(num_out + num_columns)
    rows = torch.randn(MOST_ROWS, num_columns + 16, device=DEVICE, generator=generator)
    weight_OK = torch.randn(shape, device=DEVICE, generator=generator) / num_columns**0.5
    bias_O = torch.randn(num_out, device=DEVICE, generator=generator)
    return rows.to(dtype)[:, :num_columns], weight_OK.to(dtype), bias_O.to(dtype)


def places() -> list[slice]:
    starts = [(MOST_ROWS - count) // 3 for count in ROW_COUNTS]
    return [slice(start, start + count) for start, count in zip(starts, ROW_COUNTS, strict=True)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1536, 4096), (1000, 2064), (72, 14336), (300, 16), (640, 272)])
def test_folded_sums_have_the_bits_of_their_parts(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x_TK, weight_OK, _ = operands(shape, dtype)
    for num_splits in (2, 3, 4):
        first_TO, *others = product(x_TK, weight_OK, num_splits=num_splits)
        for part_TO in others:
            first_TO = first_TO + part_TO
        how = {"num_splits": num_splits, "folded": True}
        assert torch.equal(product(x_TK, weight_OK, **how)[0], first_TO)
        for tile in FOLDED:
            for rows in places():
                found = product(x_TK[rows], weight_OK, tile=tile, pdl=True, **how)
                assert torch.equal(found[0], first_TO[rows]), (tile, rows, num_splits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1536, 4096), (1000, 2064), (2800, 256), (304, 16), (602, 272)])
def test_products_in_one_range_have_the_same_bits(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x_TK, weight_OK, bias_O = operands(shape, dtype)
    for bias in (None, bias_O):
        expected_TO = product(x_TK, weight_OK, bias_O=bias)
        expected_TF = gated_product(x_TK, weight_OK, bias_2F=bias)
        for tile in PLAIN:
            for rows in places():
                found = product(x_TK[rows], weight_OK, tile=tile, bias_O=bias, pdl=True)
                assert torch.equal(found, expected_TO[rows]), (tile, rows)
                found = gated_product(x_TK[rows], weight_OK, tile=tile, bias_2F=bias, pdl=True)
                assert torch.equal(found, expected_TF[rows]), (tile, rows)


def test_no_row_meets_what_is_no_number_in_another() -> None:
    x_TK, weight_OK, _ = operands((512, 1024), torch.bfloat16)
    x_TK = x_TK[:300].clone()
    how = {"num_splits": 4, "folded": True}
    expected_TO, expected_1TO = product(x_TK, weight_OK), product(x_TK, weight_OK, **how)
    x_TK[3, 5], x_TK[100] = float("inf"), float("nan")
    kept = [row for row in range(300) if row not in (3, 100)]
    for tile in PLAIN:
        assert torch.equal(product(x_TK, weight_OK, tile=tile)[kept], expected_TO[kept])
    for tile in FOLDED:
        found = product(x_TK, weight_OK, tile=tile, **how)
        assert torch.equal(found[:, kept], expected_1TO[:, kept])
        assert not found[0, 100].isfinite().any()
