"""Products with packed weights: the bits of the same weights unpacked."""

from __future__ import annotations

import itertools

import pytest
import torch

from eyas.kernels import experts, gemm
from eyas.kernels.packed import Layout
from eyas.kernels.tiles import Tile
from eyas.ops.dequantise import dequantised, fp4_bytes, fp4_numbers, fp8_bytes, fp8_pairs
from tests.kernels.packing import (
    LAYOUTS,
    expected_gated,
    expected_product,
    expected_sums,
    plain_tile,
    random_weight,
    stored_fp8,
)
from tests.thorough import drawn

TILES = (Tile(64, 16, 128, 4, 4), Tile(128, 64, 256, 4, 3))


def dtypes(device: torch.device) -> tuple[torch.dtype, ...]:
    """The interpreter has no products of bfloat16."""
    plain = (torch.float32, torch.float16)
    return (*plain, torch.bfloat16) if device.type == "cuda" else plain


def numbers(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Random numbers; in the interpreter those with which float32 holds the sums of a step exactly, as
    numpy adds up in an order that depends on how operands lie in memory."""
    generator = torch.Generator().manual_seed(sum(shape))
    if device.type == "cpu":
        return (torch.randint(-4, 5, shape, generator=generator) / 4).to(dtype)
    return torch.randn(shape, generator=generator).to(device, dtype)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_packed_product_has_the_bits_of_the_unpacked_one(
    layout: Layout, device: torch.device
) -> None:
    for dtype in dtypes(device):
        sizes = ((136, 544), (64, 256))[: 1 + (dtype == torch.float16)]
        for num_out, num_in in drawn(sizes[-1:], sizes):
            weight = random_weight(layout, num_out, num_in, dtype=dtype, device=device)
            plain_OI = dequantised(weight)
            assert plain_OI.dtype == dtype and plain_OI.shape == (num_out, num_in)
            assert 0.02 < plain_OI.float().std() * num_in**0.5 < 5
            x_TI = numbers(33, num_in, dtype=dtype, device=device)
            bias_O = numbers(num_out, dtype=dtype, device=device)
            cases = ((33, TILES[1]), (1, TILES[0]))
            for num_rows, tile in cases[: drawn(1 + (dtype != torch.float32), 2)]:
                x = x_TI[:num_rows]
                for options in ({"bias_O": bias_O}, {"num_splits": 2}):
                    expected = expected_product(x, weight, tile, **options)  # type: ignore[arg-type]
                    found = gemm.product(x, weight, tile=tile, **options)  # type: ignore[arg-type]
                    assert torch.equal(found, expected), (dtype, num_in, tile)
                expected = expected_gated(x, weight, tile)
                assert torch.equal(gemm.gated_product(x, weight, tile=tile), expected)


@pytest.mark.parametrize("layout", [LAYOUTS[0], LAYOUTS[2], LAYOUTS[3], LAYOUTS[4]], ids=str)
def test_parts_of_a_packed_product_are_folded_in_their_order_and_the_first_has_the_bias(
    layout: Layout, device: torch.device
) -> None:
    """Also where there are more parts than columns for them."""
    dtype = dtypes(device)[-1]
    weight = random_weight(layout, 136, 544, dtype=dtype, device=device)
    x_TI = torch.randn(9, 544, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    for bias_O in (None, numbers(136, dtype=dtype, device=device)):
        parts = gemm.product(x_TI, weight, num_splits=4, tile=TILES[0])
        if bias_O is not None:
            parts[0] += bias_O.float()
        found = gemm.product(x_TI, weight, num_splits=4, tile=TILES[0], bias_O=bias_O)
        assert torch.equal(found, parts)
        folded = gemm.product(x_TI, weight, num_splits=4, folded=True, tile=TILES[0], bias_O=bias_O)
        assert folded.shape == (1, 9, 136)
        assert torch.equal(folded[0], ((parts[0] + parts[1]) + parts[2]) + parts[3])
        assert not parts[3].any()


@pytest.mark.parametrize(
    ("layout", "activation"),
    [(LAYOUTS[0], "silu"), (LAYOUTS[3], "clamped_swiglu"), (LAYOUTS[4], "silu")],
    ids=str,
)
def test_packed_experts_have_the_bits_of_unpacked_ones(
    layout: Layout, activation: str, device: torch.device
) -> None:
    num_experts, size, num_in, dtype = 5, 96, 272, dtypes(device)[-1]
    kinds = {"dtype": dtype, "device": device}
    gate_up = random_weight(layout, num_experts, 2 * size, num_in, **kinds)
    down = random_weight(layout, num_experts, num_in, size, **kinds)
    biases = numbers(num_experts, 2 * size, **kinds), numbers(num_experts, num_in, **kinds)
    for num_rows in (1, 7):
        x_TI = numbers(num_rows, num_in, **kinds)
        generator = torch.Generator().manual_seed(num_rows)
        scores = torch.rand(num_rows, num_experts, generator=generator)
        experts_TK = scores.topk(2).indices.int().to(device)
        weights_TK = torch.rand(num_rows, 2, generator=generator).to(device)
        tile = experts.tile_for(num_rows, 2, num_experts, dtype)
        x_NF = numbers(2 * num_rows, size, **kinds)
        gated_NF = experts.gated_product(x_TI, gate_up, biases[0], experts_TK, 2, activation, tile)
        out_KTO = experts.weighted_product(x_NF, down, biases[1], experts_TK, weights_TK, tile)
        if not layout.scales_sums:
            plain = plain_tile(tile, device)
            chosen = experts_TK, weights_TK, plain
            expected_NF = experts.gated_product(
                x_TI, dequantised(gate_up), biases[0], experts_TK, 2, activation, plain
            )
            assert torch.equal(gated_NF, expected_NF)
            expected = experts.weighted_product(x_NF, dequantised(down), biases[1], *chosen)
            assert torch.equal(out_KTO, expected)
            continue
        for row, place in itertools.product(range(num_rows), range(2)):
            expert, each = int(experts_TK[row, place]), 2 * row + place
            bias = biases[0][expert]
            expected = expected_gated(x_TI[row : row + 1], gate_up[expert], tile, bias)
            assert torch.equal(gated_NF[each : each + 1], expected)
            (sums,) = expected_sums(x_NF[each : each + 1], down[expert], tile)
            sums = (sums + biases[1][expert].float()) * weights_TK[row, place]
            assert torch.equal(out_KTO[place, row], sums[0])


def test_rows_of_a_packed_weight_are_filled_one_after_another() -> None:
    for layout in LAYOUTS:
        whole = random_weight(layout, 3, 256, 320, dtype=torch.float32, device=torch.device("cpu"))
        copy = layout.empty(3, 256, 320, dtype=torch.float32)
        for expert in range(3):
            for rows in (slice(0, 128), slice(128, 256)):
                copy[expert][rows].copy_(whole[expert][rows])
        assert torch.equal(dequantised(copy), dequantised(whole))
        assert whole[0].num_bytes == layout.bytes_of(256, 320)


@pytest.mark.parametrize("kind", ["fp8", "mxfp4", "int4"])
def test_every_number_has_its_value(kind: str) -> None:
    """The smallest and largest scales too, of which FP4 has one that float32 holds as a subnormal."""
    layout = {each.kind: each for each in LAYOUTS}[kind]  # type: ignore[index]
    weight = layout.empty(64, 256, dtype=torch.float32)
    codes = torch.arange(256, dtype=torch.uint8)
    weight.numbers.copy_(codes.repeat(64, 2)[:, : weight.numbers.shape[1]])
    if kind == "fp8":
        weight.numbers.copy_(stored_fp8(codes))
        weight.scales.copy_(torch.logspace(-30, 30, 64)[:, None])
    elif kind == "mxfp4":
        exponents = torch.arange(64 * 8).remainder(250).to(torch.uint8).view(64, 8)
        weight.scales.copy_(exponents.view(torch.int32))
    else:
        weight.scales.copy_((torch.arange(64)[:, None] % 16 << 16) | 0x3C01)
    plain_OI = dequantised(weight)
    assert plain_OI.isfinite().all() and plain_OI.count_nonzero() > 1000
    for column in (0, 77, 255):
        x_TI = torch.zeros(1, 256)
        x_TI[0, column] = 1.0
        assert torch.equal(gemm.product(x_TI, weight)[0], plain_OI[:, column])


def test_bits_of_fp8_are_where_instructions_look_for_them() -> None:
    """The second number of each pair as bfloat16 has it, the first after shifts in both directions."""
    numbers = torch.randint(0, 256, (7, 500), dtype=torch.uint8)
    stored = fp8_pairs(numbers)
    assert torch.equal(fp8_bytes(stored), numbers)
    low, high = stored.int().unflatten(-1, (-1, 2)).unbind(-1)
    halves = low | high << 8
    wanted = (numbers.int() >> 7) << 15 | (numbers.int() & 0x7F) << 4
    assert torch.equal(halves & 0x87F0, wanted[:, 1::2])
    first = (halves << 4 & 0x80F0) | (halves >> 4 & 0x0700)
    assert torch.equal(first, wanted[:, ::2])


def test_bits_of_fp4_are_where_instructions_look_for_them() -> None:
    """Of eight numbers those of two halves of a word as bfloat16 has them, after one shift or rotation
    (`kernels.unpack`, whose instructions the interpreter does not run)."""
    numbers = torch.randint(0, 16, (500, 8), dtype=torch.uint8)
    stored = fp4_bytes(numbers)
    assert torch.equal(fp4_numbers(stored), numbers)
    word = stored.view(torch.int32).long().squeeze(1) & 0xFFFFFFFF
    sizes, signs = numbers.long() & 7, numbers.long() >> 3
    halves = (signs << 15 | sizes << 6).unflatten(1, (2, 4))
    wanted = halves[:, 0] | halves[:, 1] << 16
    moved = (word << 6, word << 2, word >> 4 | word << 28)
    for slot, bits in enumerate(moved):
        assert torch.equal(bits & 0x81C081C0, wanted[:, slot])
    fourth = (word >> 8 & 0x00400040) | (word & 0x81808180)
    assert torch.equal(fourth, wanted[:, 3])
