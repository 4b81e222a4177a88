"""Products in one reduction order: against torch, and one row count against another."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
import torch.nn.functional as F

from eyas.kernels import has_warpgroups
from eyas.kernels.gate import gated_silu
from eyas.kernels.gemm import (
    LINE_BYTES,
    MOST_LINES,
    PREFETCHED_BYTES,
    gated_product,
    prefetched_lines,
    product,
    split_columns,
)
from eyas.kernels.packed import Layout
from eyas.kernels.tiles import (
    FLOAT32_TILES,
    FOLDED_TILES,
    GROUP_ROWS,
    GROUPED_TILES,
    LEAST_OUT,
    PACKED_FOLDED_TILES,
    STAGED_TILES,
    TILES,
    Tile,
    folded_tiles_for,
    gated_tiles_for,
    grouped_tiles_for,
    packed_tiles_for,
    tiles_for,
)
from tests.kernels.hopper import Job, compile_for_hopper
from tests.kernels.packing import LAYOUTS
from tests.thorough import drawn

ROW_COUNTS = (1, 2, 7, 16, 17, 33, 64, 65, 100)
ALL_GROUPED = tuple(tile for _, tiles in GROUPED_TILES for tile in tiles)
ALL_TILES = tuple(dict.fromkeys(tile for _, tiles in TILES for tile in tiles))
MOST_SHARED = 227 * 1024


def dtypes(device: torch.device) -> tuple[torch.dtype, ...]:
    """The interpreter has no products of bfloat16."""
    plain = (torch.float32, torch.float16)
    return (*plain, torch.bfloat16) if device.type == "cuda" else plain


def quarters(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Random numbers whose products and sums float32 holds exactly."""
    return (torch.randint(-4, 5, shape, device=device) / 4).to(dtype)


def test_products_equal_torch_with_every_tile_and_row_count(device: torch.device) -> None:
    for dtype in dtypes(device):
        weight_OK = quarters(200, 352, dtype=dtype, device=device)
        x_TK = quarters(100, 400, dtype=dtype, device=device)[:, :352]
        expected_TO = (x_TK.double() @ weight_OK.double().T).float()
        for num_rows in drawn(ROW_COUNTS[::3] + ROW_COUNTS[-1:], ROW_COUNTS):
            for tile in tiles_for(num_rows, dtype):
                out_TO = product(x_TK[:num_rows], weight_OK, tile=tile, out_dtype=torch.float32)
                assert torch.equal(out_TO, expected_TO[:num_rows]), (dtype, num_rows, tile)
                rounded_TO = product(x_TK[:num_rows], weight_OK, tile=tile)
                assert torch.equal(rounded_TO, expected_TO[:num_rows].to(dtype))


def test_the_copy_engine_brings_the_same(device: torch.device) -> None:
    for num_columns in (256, 304):
        weight_OK = quarters(200, num_columns, dtype=torch.float16, device=device)
        wide_TK = quarters(70, 401, dtype=torch.float16, device=device)
        assert wide_TK.stride(0) % 8, "rows the copy engine cannot bring"
        x_TK = wide_TK[:, :num_columns].clone()
        for tile in (Tile(64, 32, 64, 4, 4, True), Tile(128, 128, 64, 8, 4, True)):
            for num_splits in (1, 2):
                expected = product(x_TK, weight_OK, num_splits=num_splits)
                found = product(x_TK, weight_OK, num_splits=num_splits, tile=tile)
                assert torch.equal(found, expected)
                apart_TK = wide_TK[:, :num_columns]
                found = product(apart_TK, weight_OK, num_splits=num_splits, tile=tile)
                assert torch.equal(found, expected)


def test_a_tile_may_have_more_rows_than_its_block(device: torch.device) -> None:
    tiles = (Tile(64, 32, 64, 4, 4, True, 16), Tile(128, 16, 64, 4, 4, True, 32))
    x_TK = quarters(100, 304, dtype=torch.float16, device=device)
    weight_OK = quarters(200, 304, dtype=torch.float16, device=device)
    bias_O = torch.randn(200, device=device).half()
    for tile in tiles:
        whole = tile.block_rows + tile.more_rows
        for num_rows in (1, tile.block_rows, tile.block_rows + 1, whole, whole + 1, 100):
            x = x_TK[:num_rows]
            for how in ({"bias_O": bias_O}, {"num_splits": 2}, {"num_splits": 2, "folded": True}):
                expected = product(x, weight_OK, **how)  # type: ignore[arg-type]
                assert torch.equal(product(x, weight_OK, tile=tile, **how), expected)  # type: ignore[arg-type]
    wide_TK = quarters(70, 401, dtype=torch.float16, device=device)[:, :304]
    expected = product(wide_TK, weight_OK)
    assert torch.equal(product(wide_TK, weight_OK, tile=tiles[0]), expected), "not aligned"


def test_the_copy_engine_brings_gate_and_up_as_two_blocks(device: torch.device) -> None:
    small, large = Tile(128, 32, 64, 4, 4, True, 16), Tile(128, 128, 64, 8, 3, True)
    half_too_small = Tile(64, 32, 64, 4, 4, True, 16)
    dtype = torch.float16
    for size, num_columns in ((128, 256), (100, 304), (56, 64)):
        weight_2FK = quarters(2 * size, num_columns, dtype=dtype, device=device)
        wide_TK = quarters(70, 401, dtype=dtype, device=device)[:, :num_columns]
        both = (None, torch.randn(2 * size, device=device).to(dtype))
        for bias_2F in drawn((both[size == 100],), both):
            expected_TF = gated_silu(product(wide_TK, weight_2FK, bias_O=bias_2F))
            for x_TK in (wide_TK.clone(), wide_TK):
                for tile in (small, large, half_too_small):
                    for num_rows in (1, 33, 70):
                        x = x_TK[:num_rows]
                        found_TF = gated_product(x, weight_2FK, tile=tile, bias_2F=bias_2F)
                        assert torch.equal(found_TF, expected_TF[:num_rows]), (size, tile)


def test_no_gate_meets_an_up_that_is_no_number(device: torch.device) -> None:
    """A block of the gate may reach into the rows of "up", whose sums it then throws away."""
    weight_2FK = quarters(2 * 56, 64, dtype=torch.float16, device=device)
    x_TK = quarters(3, 64, dtype=torch.float16, device=device)
    tile = Tile(128, 16, 64, 4, 4, True)
    expected_TF = gated_product(x_TK, weight_2FK, tile=tile)
    weight_2FK[56 + 5] = float("nan")
    found_TF = gated_product(x_TK, weight_2FK, tile=tile)
    kept = [column for column in range(56) if column != 5]
    assert torch.equal(found_TF[:, kept], expected_TF[:, kept])
    assert found_TF[:, 5].isnan().all()


def test_splits_are_ranges_of_the_columns_whatever_the_rows(device: torch.device) -> None:
    for num_columns, num_splits in ((1040, 2), (1040, 3), (272, 2), (256, 2), (1024, 4)):
        weight_OK = quarters(72, num_columns, dtype=torch.float32, device=device)
        x_TK = quarters(33, num_columns, dtype=torch.float32, device=device)
        border = split_columns(num_columns, num_splits)
        for num_rows in (1, 17, 33):
            parts_STO = product(x_TK[:num_rows], weight_OK, num_splits=num_splits)
            assert parts_STO.shape == (num_splits, num_rows, 72)
            for split, part_TO in enumerate(parts_STO):
                columns = slice(split * border, (split + 1) * border)
                expected_TO = x_TK[:num_rows, columns] @ weight_OK[:, columns].T
                assert torch.equal(part_TO, expected_TO)
            folded_1TO = product(x_TK[:num_rows], weight_OK, num_splits=num_splits, folded=True)
            assert torch.equal(folded_1TO[0], parts_STO.sum(0))


def test_a_bias_is_added_before_the_rounding(device: torch.device) -> None:
    for dtype in dtypes(device):
        weight_OK = quarters(72, 64, dtype=dtype, device=device)
        x_TK = quarters(5, 64, dtype=dtype, device=device)
        bias_O = torch.randn(72, device=device).to(dtype)
        exact_TO = x_TK.float() @ weight_OK.float().T + bias_O.float()
        assert torch.equal(product(x_TK, weight_OK, bias_O=bias_O), exact_TO.to(dtype))


def test_a_gated_product_is_the_product_and_the_activation(device: torch.device) -> None:
    for dtype in dtypes(device):
        for size in drawn((64 if dtype == torch.float32 else 100,), (64, 100)):
            weight_2FK = quarters(2 * size, 160, dtype=dtype, device=device)
            bias_2F = torch.randn(2 * size, device=device).to(dtype)
            x_TK = quarters(65, 160, dtype=dtype, device=device)
            for num_rows in (1, 17, 65):
                for tile in gated_tiles_for(num_rows, dtype):
                    x = x_TK[:num_rows]
                    expected_TF = gated_silu(product(x, weight_2FK, tile=tile, bias_O=bias_2F))
                    found_TF = gated_product(x, weight_2FK, tile=tile, bias_2F=bias_2F)
                    assert torch.equal(found_TF, expected_TF)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_no_row_meets_what_is_no_number_in_another(device: torch.device) -> None:
    weight_OK = quarters(72, 80, dtype=torch.float16, device=device)
    x_TK = quarters(20, 80, dtype=torch.float16, device=device)
    expected_TO = product(x_TK, weight_OK)
    x_TK[3, 5], x_TK[17] = float("inf"), float("nan")
    out_TO = product(x_TK, weight_OK)
    kept = [row for row in range(20) if row not in (3, 17)]
    assert torch.equal(out_TO[kept], expected_TO[kept])
    assert not out_TO[17].isfinite().any()


def test_no_rows_give_no_rows(device: torch.device) -> None:
    weight_OK = torch.zeros(64, 32, device=device)
    nothing = torch.zeros(0, 32, device=device)
    assert product(nothing, weight_OK).shape == (0, 64)
    assert product(nothing, weight_OK, num_splits=2).shape == (2, 0, 64)
    assert gated_product(nothing, weight_OK).shape == (0, 32)


def test_odd_widths_are_refused_by_name(device: torch.device) -> None:
    weight_OK = torch.zeros(64, 40, device=device)
    with pytest.raises(ValueError, match="multiples of 16 input features, not 40"):
        product(torch.zeros(1, 40, device=device), weight_OK)


def test_tiles_use_one_instruction_and_blocks_that_splits_are_made_of() -> None:
    for tile in (*ALL_TILES, *FOLDED_TILES, *FLOAT32_TILES):
        assert tile.block_out >= LEAST_OUT and tile.num_warps in (4, 8)
        assert split_columns(4096, 2) % tile.block_k == 0
    for num_rows in (1, 16, 17, 64, 128, 256, 8192):
        for tile in gated_tiles_for(num_rows):
            assert tile in tiles_for(num_rows)
            assert not tile.by_copy_engine or tile.block_out // 2 >= LEAST_OUT
        for tile in folded_tiles_for(num_rows):
            registers = 2 * tile.block_out * tile.block_rows // (32 * tile.num_warps)
            assert registers <= 128, "two sums leave no room"


def hopper_job(
    tile: Tile,
    dtype: str = "bf16",
    out: str = "fp32",
    *,
    gated: bool = False,
    num_folded: int = 1,
    even: bool = True,
    layout: Layout | None = None,
) -> Job:
    strides = ("num_out", "num_columns", "split_columns", "x_stride", "weight_stride")
    signature = {"x_TI": f"*{dtype}", "weight_OI": f"*{dtype}", "out_ZTO": f"*{out}"}
    signature["scales_stride"] = "i32"
    signature |= dict.fromkeys((*strides, "num_rows", "group_tiles", "num_groups"), "i32")
    constants: dict[str, object] = {
        "BLOCK_OUT": tile.block_out,
        "BLOCK_ROWS": tile.block_rows,
        "MORE_ROWS": tile.more_rows,
        "BLOCK_K": tile.block_k,
        "NUM_STAGES": tile.num_stages,
        "EVEN_OUT": even,
        "EVEN_K": even,
        "HAS_BIAS": False,
        "bias_O": None,
        "GATED": gated,
        "NUM_FOLDED": num_folded,
        "BY_COPY_ENGINE": tile.by_copy_engine,
        "PREFETCH": MOST_LINES,
        "PDL": True,
        "LAYOUT": "plain",
        "SCALE": "",
        "SCALE_ROWS": 1,
        "SCALE_COLUMNS": 0,
        "NUMBERS": 1,
    }
    if layout is None:
        constants["scales_OG"] = None
    else:
        numbers, word, scale = {
            "fp8": (4, "*i32", "*fp32"),
            "mxfp4": (8, "*i32", "*i32"),
            "int4": (8, "*i32", "*i32"),
        }[layout.kind]
        signature |= {"weight_OI": word, "scales_OG": scale}
        constants |= {"NUMBERS": numbers, "BLOCK_K": max(128, tile.block_k)}
        constants |= {"LAYOUT": layout.kind, "SCALE": layout.scale_dtype}
        constants |= {"SCALE_ROWS": layout.rows, "SCALE_COLUMNS": layout.num_splittable}
    if tile.by_copy_engine:
        signature["x_blocks"] = f"tensordesc<{dtype}[{tile.block_rows}, {tile.block_k}]>"
        block_out = tile.block_out // 2 if gated else tile.block_out
        signature["weight_blocks"] = f"tensordesc<{dtype}[{block_out}, {tile.block_k}]>"
    else:
        constants |= {"x_blocks": None, "weight_blocks": None}
    if tile.more_rows:
        signature["more_blocks"] = f"tensordesc<{dtype}[{tile.more_rows}, {tile.block_k}]>"
    else:
        constants["more_blocks"] = None
    kernel = "eyas.kernels.gemm:product_kernel"
    return Job(kernel, signature, constants, tile.num_warps, tile.num_stages, strides)


def hardest(tiles: Iterable[Tile], *, also_shared: bool = True) -> list[Tile]:
    """Return of each way of loading the tile that needs the most registers and, with `also_shared`, the
    one that needs the most shared memory; all tiles with `--thorough`."""
    groups: dict[tuple[bool, bool], list[Tile]] = {}
    for tile in tiles:
        groups.setdefault((tile.by_copy_engine, tile.more_rows > 0), []).append(tile)

    def accumulators(tile: Tile) -> float:
        return tile.block_out * (tile.block_rows + tile.more_rows) / tile.num_warps

    def shared(tile: Tile) -> int:
        high = tile.block_out + tile.block_rows + tile.more_rows
        return high * tile.block_k * tile.num_stages

    needs = (accumulators, shared) if also_shared else (accumulators,)
    picked = [max(group, key=need) for group in groups.values() for need in needs]
    return drawn(list(dict.fromkeys(picked)), list(dict.fromkeys(tiles)))


@pytest.mark.parametrize(
    ("num_out", "num_in", "num_splits", "lines"),
    [
        (6144, 4096, 1, 4),  # q, k and v of Llama-3.1-8B
        (4096, 4096, 4, 2),
        (28672, 4096, 1, 1),
        (128256, 4096, 1, 0),  # its output layer
        (128, 2048, 8, 4),  # a router, whose splits have no more
        (64, 16384, 1, MOST_LINES),
        (64, 48, 1, 0),
    ],
)
def test_a_product_prefetches_a_bounded_part_of_its_weights(
    num_out: int, num_in: int, num_splits: int, lines: int
) -> None:
    weight_OI = torch.empty(num_out, num_in, dtype=torch.bfloat16, device="meta")
    assert prefetched_lines(weight_OI, num_splits) == lines
    assert lines * LINE_BYTES * num_out * num_splits <= PREFETCHED_BYTES
    assert lines * LINE_BYTES * num_splits <= 2 * num_in


def test_tiles_compile_for_hopper_within_its_means() -> None:
    plain = [tile for tile in ALL_TILES if not tile.by_copy_engine]
    gated = dict.fromkeys(tile for most, _ in TILES for tile in gated_tiles_for(most))
    jobs = [hopper_job(tile) for tile in hardest(ALL_TILES)]
    jobs += [hopper_job(tile, out="bf16", gated=True) for tile in hardest(gated, also_shared=False)]
    jobs += [hopper_job(tile, even=False) for tile in plain[: drawn(1, 3)]]
    jobs += [hopper_job(tile, num_folded=4) for tile in hardest(FOLDED_TILES, also_shared=False)]
    for job, compiled in zip(jobs, compile_for_hopper(*jobs), strict=True):
        assert compiled.uses_wgmma and compiled.num_spilled == 0, (job, compiled)
        assert compiled.shared <= MOST_SHARED, (job, compiled)
    first, *tiles = dict.fromkeys(tile for most, _ in TILES for tile in packed_tiles_for(most))
    by_block, by_row, fp4, int4, int4_by_row = (LAYOUTS[index] for index in (0, 2, 3, 4, 6))
    jobs = [hopper_job(tile, layout=by_block) for tile in hardest(tiles)]
    jobs += [hopper_job(first, even=False, layout=layout) for layout in (by_row, fp4, int4)]
    jobs += [hopper_job(first, "fp16", layout=int4_by_row)]
    jobs += [
        hopper_job(tile, out="bf16", gated=True, layout=fp4)
        for tile in (tiles[-1], *drawn((), (first,)))
    ]
    for job, compiled in zip(jobs, compile_for_hopper(*jobs), strict=True):
        assert compiled.uses_wgmma and compiled.num_spilled == 0, (job, compiled)
        assert compiled.shared <= MOST_SHARED, (job, compiled)
    compiled = compile_for_hopper(hopper_job(first, out="bf16", gated=True, layout=by_block))[0]
    assert 4 * (compiled.shared + 1024) <= 228 * 1024, "four programs on a multiprocessor"
    assert 4 * compiled.num_registers * 32 * first.num_warps <= 65536
    (folded,) = PACKED_FOLDED_TILES
    for compiled in compile_for_hopper(
        *(hopper_job(folded, num_folded=4, layout=layout) for layout in drawn((by_block,), LAYOUTS))
    ):  # the sum so far leaves registers while the next part is added up
        assert compiled.uses_wgmma and compiled.num_spilled <= 256, compiled
        assert compiled.shared <= MOST_SHARED
    exact = [hopper_job(tile, "fp32") for tile in FLOAT32_TILES]
    assert all(compiled.num_spilled == 0 for compiled in compile_for_hopper(*exact))


def grouped_job(
    tile: Tile, dtype: str, out: str, *, gated: bool = False, has_bias: bool = False
) -> Job:
    from eyas.kernels.gemm_warpgroups import BLOCK_K, WARPS, shared_layout

    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    block_out = tile.block_out // 2 if gated else tile.block_out
    signature = {
        name: f"tensordesc<{dtype}[{high},{BLOCK_K}],{shared_layout(high, kind)!r}>"
        for name, high in (("x_blocks", GROUP_ROWS), ("weight_blocks", block_out))
    }
    signature |= {"bias_O": f"*{dtype}", "out_STO": f"*{out}", "num_rows": "i32"}
    strides = ("num_out", "num_columns", "split_columns")
    signature |= dict.fromkeys(strides, "i32")
    constants: dict[str, object] = {
        "GROUPS": tile.block_rows // GROUP_ROWS,
        "OUT": tile.block_out,
        "STAGES": tile.num_stages,
        "GATED": gated,
        "HAS_BIAS": has_bias,
        "PDL": True,
    }
    kernel = "eyas.kernels.gemm_warpgroups:grouped_product_kernel"
    return Job(kernel, signature, constants, WARPS, 3, strides)


def staged_job(
    tile: Tile, layout: Layout, dtype: str, out: str, *, gated: bool = False, has_bias: bool = False
) -> Job:
    from eyas.kernels.gemm_packed_stages import REGISTERS, WARPS, layouts

    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    block_out = tile.block_out // 2 if gated else tile.block_out
    of_rows, of_words = layouts(tile.block_rows, block_out, kind)
    signature = {
        "x_blocks": f"tensordesc<{dtype}[{tile.block_rows},{tile.block_k}],{of_rows!r}>",
        "word_blocks": f"tensordesc<i32[{block_out},{tile.block_k // 4}],{of_words!r}>",
    }
    signature |= {"scales_OG": "*fp32", "bias_O": f"*{dtype}", "out_ZTO": f"*{out}"}
    strides = ("num_out", "num_columns", "split_columns")
    signature |= dict.fromkeys((*strides, "num_rows", "scales_stride"), "i32")
    constants: dict[str, object] = {
        "SCALE_ROWS": layout.rows,
        "SCALE_COLUMNS": layout.num_splittable,
        "STAGES": tile.num_stages,
        "GATED": gated,
        "HAS_BIAS": has_bias,
        "PDL": True,
    }
    kernel = "eyas.kernels.gemm_packed_stages:staged_product_kernel"
    return Job(kernel, signature, constants, WARPS, 3, strides, REGISTERS)


def test_tiles_of_fp8_by_the_copy_engine_compile_four_to_a_multiprocessor() -> None:
    by_block, by_row = LAYOUTS[0], LAYOUTS[2]
    jobs = []
    for tile in (tile for _, tiles in STAGED_TILES for tile in tiles):
        jobs.append(staged_job(tile, by_block, "bf16", "bf16", gated=True, has_bias=True))
        jobs.append(staged_job(tile, by_row, "fp16", "fp32", has_bias=True))
    for job, compiled in zip(jobs, compile_for_hopper(*jobs), strict=True):
        assert compiled.uses_wgmma and compiled.num_spilled == 0, (job, compiled)
        assert 4 * (compiled.shared + 1024) <= 228 * 1024
        assert compiled.arrives_together, "else a block could be overwritten while a warp reads it"


def test_tiles_by_warpgroups_compile_for_hopper_within_its_means() -> None:
    few, most = drawn([], ALL_GROUPED[:1]), hardest(ALL_GROUPED)
    jobs = [grouped_job(tile, "bf16", "fp32") for tile in few]
    jobs += [grouped_job(tile, "bf16", "bf16", gated=True) for tile in most]
    jobs += [grouped_job(tile, "fp16", "fp16", has_bias=True) for tile in most]
    jobs += [grouped_job(tile, "bf16", "bf16", gated=True, has_bias=True) for tile in few]
    for job, compiled in zip(jobs, compile_for_hopper(*jobs), strict=True):
        most_spilled = 64 if job.constants["HAS_BIAS"] else 0  # once, when all is summed
        assert compiled.uses_wgmma and compiled.num_spilled <= most_spilled, (job, compiled)
        assert compiled.shared <= MOST_SHARED, (job, compiled)


def test_tiles_by_warpgroups_are_for_some_row_counts() -> None:
    for num_rows in (1, 128, 129, 192, 193, 256, 257, 8192):
        tiles = grouped_tiles_for(num_rows)
        assert bool(tiles) == (128 < num_rows <= 256)
        assert all(tile.block_out // 2 >= LEAST_OUT for tile in tiles)
        assert all(tile.block_rows >= num_rows / 2 for tile in tiles)
        assert grouped_tiles_for(num_rows, torch.float32) == ()


def test_rows_the_copy_engine_cannot_bring_take_another_tile(device: torch.device) -> None:
    weight_OK = quarters(200, 64, dtype=torch.float16, device=device)
    x_TK = quarters(150, 65, dtype=torch.float16, device=device)[:, :64]
    expected_TO = (x_TK.double() @ weight_OK.double().T).half()
    for tile in ALL_GROUPED:
        assert torch.equal(product(x_TK, weight_OK, tile=tile), expected_TO)
        found_TF = gated_product(x_TK, weight_OK, tile=tile)
        assert torch.equal(found_TF, gated_silu(expected_TO))


@pytest.fixture
def hopper(device: torch.device) -> torch.device:
    """A device with tiles by warpgroups."""
    if not has_warpgroups(device):
        pytest.skip("tiles by warpgroups are for Hopper devices")
    return device


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1536, 4096), (1000, 2064), (72, 14336), (300, 16), (640, 272)])
def test_tiles_by_warpgroups_give_the_same_bits(
    hopper: torch.device, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    num_out, num_columns = shape
    weight_OK = torch.randn(shape, device=hopper).to(dtype)
    x_TK = torch.randn(1024, num_columns + 16, device=hopper).to(dtype)[:, :num_columns]
    bias_O = torch.randn(num_out, device=hopper).to(dtype)
    weight_2FK, bias_2F = weight_OK[: num_out // 2 * 2] / num_columns**0.5, bias_O
    expected = {splits: product(x_TK, weight_OK, num_splits=splits) for splits in (1, 2, 4)}
    how = {"bias_O": bias_O, "out_dtype": torch.float32}
    expected_with_bias = product(x_TK, weight_OK, **how)  # type: ignore[arg-type]
    gated_TF = gated_product(x_TK, weight_2FK)
    gated_with_bias_TF = gated_product(x_TK, weight_2FK, bias_2F=bias_2F)
    for tile in ALL_GROUPED:
        for num_rows in (1, 65, 130, 192, 200, 256, 257, 1024):
            start = (1024 - num_rows) // 3
            rows = slice(start, start + num_rows)
            for num_splits, sums in expected.items():
                found = product(x_TK[rows], weight_OK, num_splits=num_splits, tile=tile, pdl=True)
                assert torch.equal(found, sums[..., rows, :]), (tile, num_rows, num_splits)
            found = product(x_TK[rows], weight_OK, tile=tile, pdl=True, **how)  # type: ignore[arg-type]
            assert torch.equal(found, expected_with_bias[rows]), (tile, num_rows)
            found = gated_product(x_TK[rows], weight_2FK, tile=tile, pdl=True)
            assert torch.equal(found, gated_TF[rows]), (tile, num_rows)
            found = gated_product(x_TK[rows], weight_2FK, tile=tile, bias_2F=bias_2F, pdl=True)
            assert torch.equal(found, gated_with_bias_TF[rows]), (tile, num_rows)


@pytest.mark.gpu
def test_no_row_of_a_warpgroup_meets_what_is_no_number_in_another(hopper: torch.device) -> None:
    weight_OK = torch.randn(512, 1024, device=hopper).bfloat16()
    x_TK = torch.randn(200, 1024, device=hopper).bfloat16()
    expected_TO = product(x_TK, weight_OK)
    x_TK[3, 5], x_TK[100] = float("inf"), float("nan")
    kept = [row for row in range(200) if row not in (3, 100)]
    for tile in ALL_GROUPED:
        out_TO = product(x_TK, weight_OK, tile=tile)
        assert torch.equal(out_TO[kept], expected_TO[kept])
        assert not out_TO[100].isfinite().any()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(1536, 4096), (1000, 2064), (72, 14336)])
def test_a_row_has_the_same_bits_in_any_call(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    num_out, num_columns = shape
    weight_OK = torch.randn(shape, device=device).to(dtype)
    x_TK = torch.randn(1024, num_columns, device=device).to(dtype)
    bias_O = torch.randn(num_out, device=device).to(dtype)
    for num_splits in (1, 2, 3):
        expected = product(x_TK, weight_OK, num_splits=num_splits, out_dtype=torch.float32)
        exact = x_TK.double() @ weight_OK.double().T
        summed = expected.sum(0) if num_splits > 1 else expected
        assert (summed - exact).norm() / exact.norm() < 1e-4
        for num_rows in (*ROW_COUNTS, 128, 200, 256, 257, 512, 1024):
            start = (1024 - num_rows) // 3
            rows = slice(start, start + num_rows)
            for tile in tiles_for(num_rows, dtype):
                found = product(
                    x_TK[rows],
                    weight_OK,
                    num_splits=num_splits,
                    tile=tile,
                    out_dtype=torch.float32,
                    pdl=num_rows % 2 == 1,
                )
                assert torch.equal(found, expected[..., rows, :]), (num_rows, tile)
        if num_splits > 1:
            summed = expected[0]
            for part_TO in expected[1:]:
                summed = summed + part_TO
            for tile in folded_tiles_for(1024, dtype):
                how = {"num_splits": num_splits, "folded": True, "tile": tile}
                assert torch.equal(product(x_TK, weight_OK, **how)[0], summed), tile
    expected = product(x_TK, weight_OK, bias_O=bias_O)
    for num_rows in ROW_COUNTS:
        found = product(x_TK[:num_rows], weight_OK, bias_O=bias_O, pdl=True)
        assert torch.equal(found, expected[:num_rows])


@pytest.mark.gpu
def test_gated_products_are_products_and_activations_bit_for_bit(device: torch.device) -> None:
    weight_2FK = torch.randn(2 * 1400, 4096, device=device).bfloat16() / 64
    x_TK = torch.randn(512, 4096, device=device).bfloat16()
    expected_TF = gated_silu(product(x_TK, weight_2FK))
    gate_TF, up_TF = (x_TK.float() @ weight_2FK.float().T).chunk(2, -1)
    exact_TF = F.silu(gate_TF) * up_TF
    assert (expected_TF - exact_TF).norm() / exact_TF.norm() < 1e-2
    for num_rows in (*ROW_COUNTS, 128, 256, 512):
        for tile in gated_tiles_for(num_rows):
            found_TF = gated_product(x_TK[:num_rows], weight_2FK, tile=tile, pdl=True)
            assert torch.equal(found_TF, expected_TF[:num_rows])
