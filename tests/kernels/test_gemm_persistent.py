"""Products by persistent programs: they compile for Hopper, and where they cannot run others do. Their
bits are compared on a device, in tests/gpu/test_persistent_products.py."""

from __future__ import annotations

import pytest
import torch

from eyas.kernels.gate import gated_silu
from eyas.kernels.gemm import gated_product, product
from eyas.kernels.tiles import (
    GROUP_ROWS,
    PERSISTENT_FOLDED_TILES,
    PERSISTENT_TILES,
    SPLIT_MULTIPLE,
    Tile,
    persistent_tiles_for,
)
from tests.kernels.hopper import Job, compile_for_hopper
from tests.thorough import drawn

PLAIN = tuple(dict.fromkeys(tile for _, tiles in PERSISTENT_TILES for tile in tiles))
FOLDED = tuple(dict.fromkeys(tile for _, tiles in PERSISTENT_FOLDED_TILES for tile in tiles))
MOST_SHARED = 227 * 1024


def persistent_job(
    tile: Tile,
    dtype: str = "bf16",
    *,
    num_parts: int = 1,
    gated: bool = False,
    has_bias: bool = False,
) -> Job:
    from eyas.kernels.gemm_persistent import NEIGHBOURS
    from eyas.kernels.gemm_warpgroups import BLOCK_K, WARPS, shared_layout

    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    block_out = tile.block_out // 2 if gated else tile.block_out
    signature = {
        name: f"tensordesc<{dtype}[{high},{BLOCK_K}],{shared_layout(high, kind)!r}>"
        for name, high in (("x_blocks", tile.block_rows), ("weight_blocks", block_out))
    }
    signature |= {"bias_O": f"*{dtype}", "out_TO": "*fp32" if num_parts > 1 else f"*{dtype}"}
    strides = ("num_out", "num_columns", "part_columns")
    counts = ("num_rows", "num_units", "row_tiles", "weight_tiles")
    signature |= dict.fromkeys((*strides, *counts), "i32")
    constants: dict[str, object] = {
        "OUT": tile.block_out,
        "STAGES": tile.num_stages,
        "PARTS": num_parts,
        "NEIGHBOURS": NEIGHBOURS,
        "GATED": gated,
        "HAS_BIAS": has_bias,
        "PDL": True,
    }
    kernel = "eyas.kernels.gemm_persistent:persistent_product_kernel"
    return Job(kernel, signature, constants, WARPS, 3, strides)


def test_persistent_programs_compile_for_hopper_within_its_means() -> None:
    jobs = [persistent_job(tile, num_parts=4) for tile in FOLDED]
    jobs += [persistent_job(tile, gated=True) for tile in PLAIN]
    jobs += [persistent_job(tile, "fp16", has_bias=True) for tile in PLAIN]
    for tile in drawn((), PLAIN):
        jobs += [persistent_job(tile), persistent_job(tile, "fp16", gated=True, has_bias=True)]
    for job, compiled in zip(jobs, compile_for_hopper(*jobs), strict=True):
        assert compiled.uses_wgmma and compiled.num_spilled == 0, (job, compiled)
        assert compiled.shared <= MOST_SHARED, (job, compiled)


def test_persistent_programs_are_for_many_rows() -> None:
    for num_rows in (1, 256, 257, 512, 513, 8192):
        for folded in (False, True):
            tiles = persistent_tiles_for(num_rows, folded=folded)
            assert bool(tiles) == (num_rows > 256)
            assert persistent_tiles_for(num_rows, torch.float32, folded=folded) == ()
    for tile in (*PLAIN, *FOLDED):
        assert tile.by_warpgroups and tile.is_persistent and tile.block_rows == 2 * GROUP_ROWS
        assert SPLIT_MULTIPLE % tile.block_k == 0


def test_rows_the_copy_engine_cannot_bring_take_another_tile(device: torch.device) -> None:
    quarters = torch.randint(-4, 5, (500, 65), device=device) / 4
    weight_OK, x_TK = quarters[:200, :64].half().contiguous(), quarters[200:].half()[:, :64]
    exact_TO = x_TK.double() @ weight_OK.double().T
    for tile in PLAIN:
        assert torch.equal(product(x_TK, weight_OK, tile=tile), exact_TO.half())
        found_TF = gated_product(x_TK, weight_OK, tile=tile)
        assert torch.equal(found_TF, gated_silu(exact_TO.half()))
    for tile in FOLDED:
        found = product(x_TK, weight_OK, num_splits=4, folded=True, tile=tile)
        assert torch.equal(found[0], exact_TO.float())


@pytest.mark.parametrize("num_splits", [2, 4])
def test_persistent_programs_leave_no_sums_apart(num_splits: int) -> None:
    weight_OK, x_TK = torch.zeros(64, 64).half(), torch.zeros(300, 64).half()
    with pytest.raises(AssertionError, match="persistent programs have all columns"):
        product(x_TK, weight_OK, num_splits=num_splits, tile=PLAIN[0])
