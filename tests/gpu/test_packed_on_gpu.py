"""Weights that stay packed on a GPU: the bits of their values, in products and in an engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eyas.kernels import experts, gemm
from eyas.kernels.packed import Layout, PackedWeight
from eyas.kernels.tiles import MANY_ROWS, PACKED_TILES, STAGED_TILES, tiles_for
from eyas.layers.compute import Compute
from eyas.layers.gemm.products import Products
from eyas.layers.gemm.variants import PARTS_SPLITS
from eyas.layers.linear import Linear
from eyas.layers.rope import RopeSpec, RopeTable
from eyas.layers.row_order import RowOrder
from eyas.models import ModelFiles
from eyas.ops.add_norm import summed
from eyas.ops.dequantise import dequantised
from eyas.ops.rotate_and_store import HeadNorm, KVDestination, rotate_and_store
from tests.gpu.test_layers_on_gpu import PROMPTS, ask, make, shown
from tests.kernels.packing import (
    LAYOUTS,
    expected_gated,
    expected_product,
    random_weight,
    stored_fp8,
)
from tests.laws.world import write_layers
from tests.models.quantised import CASES, write_quantised

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")
ALL_TILES = tuple(
    dict.fromkeys(tile for _, tiles in (*PACKED_TILES, *STAGED_TILES) for tile in tiles)
)
PLAIN = tiles_for(64)[0]
COUNTS = (1, 2, 7, 16, 17, 33, 64, 100, 300)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_tile_has_the_bits_of_the_values(layout: Layout, dtype: torch.dtype) -> None:
    for num_out, num_in in ((1536, 2048), (1408 * 2, 4096), (2880, 2880)):
        weight = random_weight(layout, num_out, num_in, dtype=dtype, device=CUDA)
        x_TI = torch.randn(max(COUNTS), num_in, device=CUDA).to(dtype)
        expected = expected_product(x_TI, weight, PLAIN)
        split = expected_product(x_TI, weight, PLAIN, num_splits=4)
        gated = expected_gated(x_TI, weight, PLAIN)
        for tile in ALL_TILES:
            for count in COUNTS:
                x = x_TI[:count]
                for pdl in (False, True):
                    found = gemm.product(x, weight, tile=tile, pdl=pdl)
                    assert torch.equal(found, expected[:count]), (num_out, tile, count)
                found = gemm.product(x, weight, tile=tile, num_splits=4)
                assert torch.equal(found, split[:, :count]), (num_out, tile, count)
                found = gemm.gated_product(x, weight, tile=tile)
                assert torch.equal(found, gated[:count]), (num_out, tile, count)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_fp8_tiles_by_the_copy_engine_add_biases_and_take_rows_of_any_alignment(
    dtype: torch.dtype,
) -> None:
    weight = random_weight(LAYOUTS[0], 2816, 2880, dtype=dtype, device=CUDA)
    bias_O = torch.randn(2816, device=CUDA).to(dtype)
    wide_TX = torch.randn(33, 2881, device=CUDA).to(dtype)
    staged = [tile for _, tiles in STAGED_TILES for tile in tiles]
    for x_TI in (wide_TX[:, :2880].contiguous(), wide_TX[:, 1:]):
        gated = gemm.gated_product(x_TI, weight, bias_2F=bias_O)
        for num_splits in (1, 4):
            expected = gemm.product(x_TI, weight, bias_O=bias_O, num_splits=num_splits)
            for tile in staged:
                found = gemm.product(x_TI, weight, tile=tile, bias_O=bias_O, num_splits=num_splits)
                assert torch.equal(found, expected), (tile, num_splits)
                found = gemm.gated_product(x_TI, weight, tile=tile, bias_2F=bias_O)
                assert torch.equal(found, gated), tile


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_packed_experts_have_the_bits_of_the_values(layout: Layout) -> None:
    from eyas.ops.apply_experts import apply_experts

    num_experts, hidden, size, num_chosen, dtype = 32, 2880, 1408, 4, torch.bfloat16
    gate_up = random_weight(layout, num_experts, 2 * size, hidden, dtype=dtype, device=CUDA)
    down = random_weight(layout, num_experts, hidden, size, dtype=dtype, device=CUDA)
    biases = [torch.randn(num_experts, n, device=CUDA).to(dtype) for n in (2 * size, hidden)]
    plain = (dequantised(gate_up), dequantised(down))
    x_TD = torch.randn(700, hidden, device=CUDA).to(dtype)
    experts_TK = torch.rand(700, num_experts, device=CUDA).topk(num_chosen).indices.int()
    weights_TK = torch.rand(700, num_chosen, device=CUDA)
    assert 700 * num_chosen > experts.FEW
    for activation in ("silu", "clamped_swiglu"):
        for count in (1, 2, 8, 16, 17, 64, 300, 700):
            inputs = (x_TD[:count], experts_TK[:count], weights_TK[:count])
            found = apply_experts(*inputs, gate_up, down, *biases, activation)
            if not layout.scales_sums:
                expected = apply_experts(*inputs, *plain, *biases, activation)
                assert torch.equal(found, expected), (activation, count)
                continue
            expected = apply_experts.by_torch(*inputs, gate_up, down, *biases, activation)
            torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
            alone = [each[count - 1 : count] for each in inputs]
            row = apply_experts(*alone, gate_up, down, *biases, activation)
            assert torch.equal(found[:, -1:], row), (activation, count)


@pytest.mark.parametrize("power", [-40, 0, 40])
@pytest.mark.parametrize("layout", [LAYOUTS[0], LAYOUTS[3], LAYOUTS[4]], ids=str)
def test_every_number_has_its_value_beside_rows_of_any_size(layout: Layout, power: int) -> None:
    """Numbers that are subnormal where they are placed, too."""
    weight = layout.empty(256, 256, dtype=torch.bfloat16, device=CUDA)
    codes = torch.arange(256, dtype=torch.uint8, device=CUDA)
    codes = torch.stack([codes.roll(row) for row in range(256)])[:, : weight.numbers.shape[1]]
    if layout.kind == "fp8":
        codes = stored_fp8(codes)
    weight.numbers.copy_(codes)
    ones = {"fp8": 1.0, "mxfp4": 0x7F7F7F7F, "int4": 11 << 16 | 0x3F80}  # with a zero point
    weight.scales.fill_(ones[layout.kind])
    x_TI = torch.eye(256, device=CUDA, dtype=torch.bfloat16) * 2.0**power
    found = gemm.product(x_TI, weight, out_dtype=torch.float32)
    assert torch.equal(found, (dequantised(weight).float() * 2.0**power).t())


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("exact", [True, False])
def test_a_layer_has_the_bits_of_its_weight_by_every_variant(layout: Layout, exact: bool) -> None:
    order = RowOrder(products=Products(exact, CUDA, 600))
    parts = {"gate": 512, "up": 512}
    packed = Linear(1024, parts, Compute(torch.bfloat16, CUDA, order), layout=layout)
    source = random_weight(layout, 1024, 1024, dtype=torch.bfloat16, device=CUDA)
    for index, part in enumerate(parts):
        rows = source[512 * index : 512 * (index + 1)]
        weight = packed.parameters()[f"{part}.weight"]
        assert isinstance(weight, PackedWeight)
        weight.copy_(rows)
    packed.seal()
    x_TI = torch.randn(512, 1024, device=CUDA).bfloat16()
    for count in (1, 8, 16, 48, 128, 512):
        x = x_TI[:count]
        assert torch.equal(packed(x), expected_product(x, source, PLAIN)), count
        assert torch.equal(packed.gated(x), expected_gated(x, source, PLAIN)), count
        expected = summed(expected_product(x, source, PLAIN, num_splits=PARTS_SPLITS))
        assert torch.equal(summed(packed.parts(x)), expected), count
        is_divided = layout.scales_sums
        assert torch.equal(summed(packed.heads(x)), expected if is_divided else packed(x)), count


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layout", [LAYOUTS[0], LAYOUTS[3], LAYOUTS[4]], ids=str)
def test_heads_of_a_row_are_the_same_in_any_call(layout: Layout, bias: bool) -> None:
    """Normalised, rotated and stored: of parts for few rows, and of what many rows have folded."""
    num_query, num_kv, dim, hidden, most = 16, 2, 128, 1024, 1024
    compute = Compute(torch.bfloat16, CUDA, RowOrder(products=Products(True, CUDA, most)))
    width = (num_query + 2 * num_kv) * dim
    qkv = Linear(hidden, {"qkv": width}, compute, bias=bias, layout=layout)
    views = qkv.views()
    weight = views["qkv.weight"]
    assert isinstance(weight, PackedWeight)
    weight.copy_(random_weight(layout, width, hidden, dtype=torch.bfloat16, device=CUDA))
    if bias:
        views["qkv.bias"].normal_(0.0, 3.0)
    qkv.seal()
    norm = HeadNorm.of(1e-6, *torch.randn(2, dim, device=CUDA).bfloat16(), num_query, num_kv)
    table = RopeTable(RopeSpec("default", 10000.0, dim), 2048, compute)
    x_TI = torch.randn(most, hidden, device=CUDA).bfloat16()
    position_T = torch.arange(most, device=CUDA)

    def run(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        kv_S2GH = torch.zeros(most, 2, num_kv, dim, device=CUDA, dtype=torch.bfloat16)
        destination = KVDestination.of(kv_S2GH, position_T[:count])
        heads, angles = qkv.heads(x_TI[:count]), table.at(position_T[:count])
        q_TNH = rotate_and_store(heads, angles, destination, num_query, num_kv, norm)
        return q_TNH, kv_S2GH[:count]

    expected_TNH, expected_T2GH = run(most)
    assert expected_TNH.isfinite().all()
    for count in (*range(1, 65), 96, 128, 192, 256, 512):
        q_TNH, kv_T2GH = run(count)
        assert torch.equal(q_TNH, expected_TNH[:count]), count
        assert torch.equal(kv_T2GH, expected_T2GH[:count]), count


@pytest.mark.parametrize("name", ["fp8 blocks", "compressed fp8 channels", "awq rows"])
def test_an_engine_answers_alike_in_any_company(name: str, tmp_path: Path) -> None:
    directory = write_layers(tmp_path / "model", "experts")
    write_quantised(directory, CASES[name])
    storage = ModelFiles.open(directory).storage
    assert storage.layouts, storage.description
    with make(directory, "root", "bfloat16") as llm:
        expected = shown(ask(llm, PROMPTS, batch=1))
    for drafter, batch in (("root", 1), ("root", len(PROMPTS)), ("tree", 4)):
        with make(directory, drafter, "bfloat16") as llm:
            assert llm.info.exact, llm.info.exact_reason
            assert shown(ask(llm, PROMPTS, batch=batch)) == expected, (drafter, batch)


def test_all_row_counts_have_a_tile() -> None:
    assert PACKED_TILES[-1][0] == MANY_ROWS
