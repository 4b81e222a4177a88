"""Weights that stay packed on a GPU: the bits of their values, in products and in an engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eyas.kernels import experts, gemm
from eyas.kernels.packed import Layout, PackedWeight
from eyas.kernels.tiles import MANY_ROWS, PACKED_TILES
from eyas.layers.linear import Linear
from eyas.layers.products import Products
from eyas.layers.row_order import RowOrder
from eyas.models import ModelFiles
from eyas.ops.dequantise import dequantised
from tests.gpu.test_layers_on_gpu import PROMPTS, ask, make, shown
from tests.kernels.packing import LAYOUTS, random_weight
from tests.laws.world import write_layers
from tests.models.quantised import CASES, write_quantised

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")
ALL_TILES = tuple(dict.fromkeys(tile for _, tiles in PACKED_TILES for tile in tiles))
COUNTS = (1, 2, 7, 16, 17, 33, 64, 100, 300)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_tile_has_the_bits_of_the_values(layout: Layout, dtype: torch.dtype) -> None:
    for num_out, num_in in ((1536, 2048), (1408 * 2, 4096), (2880, 2880)):
        weight = random_weight(layout, num_out, num_in, dtype=dtype, device=CUDA)
        plain_OI = dequantised(weight)
        x_TI = torch.randn(max(COUNTS), num_in, device=CUDA).to(dtype)
        expected = gemm.product(x_TI, plain_OI)
        split = gemm.product(x_TI, plain_OI, num_splits=4)
        gated = gemm.gated_product(x_TI, plain_OI)
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
            expected = apply_experts(*inputs, *plain, *biases, activation)
            assert torch.equal(found, expected), (activation, count)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("exact", [True, False])
def test_a_layer_has_the_bits_of_its_values_by_every_variant(layout: Layout, exact: bool) -> None:
    order = RowOrder(products=Products(exact, CUDA, 600))
    parts = {"gate": 512, "up": 512}
    options = {"dtype": torch.bfloat16, "device": CUDA, "order": order}
    packed = Linear(1024, parts, layout=layout, **options)  # type: ignore[arg-type]
    kernels_alone = RowOrder(products=Products(True, CUDA, 600))
    plain = Linear(1024, parts, **{**options, "order": kernels_alone})  # type: ignore[arg-type]
    source = random_weight(layout, 1024, 1024, dtype=torch.bfloat16, device=CUDA)
    for index, part in enumerate(parts):
        rows = source[512 * index : 512 * (index + 1)]
        weight = packed.parameters()[f"{part}.weight"]
        assert isinstance(weight, PackedWeight)
        weight.copy_(rows)
        plain.parameters()[f"{part}.weight"].copy_(dequantised(rows))  # type: ignore[arg-type]
    packed.seal()
    plain.seal()
    x_TI = torch.randn(512, 1024, device=CUDA).bfloat16()
    for count in (1, 8, 16, 48, 128, 512):
        x = x_TI[:count]
        assert torch.equal(packed(x), plain(x)), count
        assert torch.equal(packed.gated(x), plain.gated(x)), count
        sums = [layer.parts(x) for layer in (packed, plain)]
        if all(each.dim() == 3 for each in sums) and len(sums[0]) == len(sums[1]):
            assert torch.equal(*sums), count


@pytest.mark.parametrize("name", ["fp8 blocks", "compressed fp8 channels", "awq rows"])
def test_an_engine_answers_as_with_the_values(name: str, tmp_path: Path) -> None:
    directory = write_layers(tmp_path / "model", "experts")
    plain = write_quantised(directory, CASES[name])
    storage = ModelFiles.open(directory).storage
    assert storage.layouts, storage.description
    with make(plain, "root", "bfloat16") as llm:
        expected = shown(ask(llm, PROMPTS, batch=1))
    for drafter, batch in (("root", 1), ("root", len(PROMPTS)), ("tree", 4)):
        with make(directory, drafter, "bfloat16") as llm:
            assert llm.info.exact, llm.info.exact_reason
            assert shown(ask(llm, PROMPTS, batch=batch)) == expected, (drafter, batch)


def test_all_row_counts_have_a_tile() -> None:
    assert PACKED_TILES[-1][0] == MANY_ROWS
