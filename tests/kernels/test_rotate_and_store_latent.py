"""The kernels of latent attention's layer against torch: heads' products, latent rows stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from eyas.cache.store import LayerStore
from eyas.kernels import gemm
from eyas.kernels.head_product import TILES, head_product
from eyas.kernels.tiles import FLOAT32_TILES
from eyas.layers import linear
from eyas.layers.compute import Compute
from eyas.layers.gemm.products import Products
from eyas.layers.latent_attention import LatentAttention, LatentSizes
from eyas.layers.rope import RopeSpec, RopeTable
from eyas.layers.row_order import RowOrder
from eyas.ops.add_norm import add_norm, new_weight
from eyas.ops.rotate_and_store import KVDestination
from eyas.ops.rotate_and_store_latent import rotate_and_store_latent
from tests.kernels.bodies import take_kernels
from tests.kernels.hopper import Job, compile_for_hopper
from tests.models.dense_attend import DenseCache

EPSILON = 1e-6
DTYPES = [torch.float32, torch.float16]
if torch.cuda.is_available():
    DTYPES.append(torch.bfloat16)  # the interpreter cuts off where it should round


def heads(
    shape: tuple[int, int, int], num_rows: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of heads that stand apart, and weights, [T, N, I] and [N, O, I]: quarters, whose sums are
    exact in float32."""
    num_heads, num_out, num_in = shape
    generator = torch.Generator().manual_seed(num_rows)
    x_TNX = torch.randint(-3, 4, (num_rows, num_heads, num_in + 24), generator=generator) / 4
    weight_NOI = torch.randint(-3, 4, (num_heads, num_out, num_in), generator=generator) / 4
    return x_TNX.to(device, dtype)[..., 8 : 8 + num_in], weight_NOI.to(device, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 128, 64), (2, 72, 40), (4, 20, 16)])
def test_each_head_has_its_own_product(
    shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    tiles = FLOAT32_TILES if dtype == torch.float32 else [tile for _, tile in TILES]
    for num_rows in (1, 5, 33, 130):
        x_TNI, weight_NOI = heads(shape, num_rows, dtype, device)
        expected = torch.einsum("tni,noi->tno", x_TNI.float(), weight_NOI.float()).to(dtype)
        for tile in (None, *tiles):
            out_TNX = torch.full((num_rows, shape[0], shape[1] + 8), 7, dtype=dtype, device=device)
            out_TNO = out_TNX[..., : shape[1]]
            head_product(x_TNI, weight_NOI, out_TNO, tile=tile, pdl=x_TNI.is_cuda)
            assert torch.equal(out_TNO, expected)
            assert bool((out_TNX[..., shape[1] :] == 7).all())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_any_tile_and_no_rows_give_none(
    dtype: torch.dtype, device: torch.device
) -> None:
    shape = (2, 136, 272)
    generator = torch.Generator(device).manual_seed(1)
    random = {"generator": generator, "device": device}
    x_TNI = torch.randn(130, 2, 272, **random).to(dtype)
    weight_NOI = torch.randn(*shape, **random).to(dtype)

    def run(rows: slice, **options: object) -> torch.Tensor:
        x = x_TNI[rows]
        out_TNO = torch.empty((len(x), *shape[:2]), dtype=dtype, device=device)
        head_product(x, weight_NOI, out_TNO, **options)  # type: ignore[arg-type]
        return out_TNO

    whole = run(slice(None))
    tiles = FLOAT32_TILES if dtype == torch.float32 else [tile for _, tile in TILES]
    for tile in tiles:
        assert torch.equal(run(slice(None), tile=tile), whole)
    for rows in (slice(3, 4), slice(7, 20), slice(60, 125)):
        assert torch.equal(run(rows), whole[rows])
    assert run(slice(0)).shape == (0, 2, 136)


class Scene:
    """Random rows, slots and angles."""

    def __init__(
        self,
        sizes: tuple[int, int, int],
        num_rows: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_heads, self.rank, self.rotated = sizes
        width = self.rank + self.rotated
        self.row_TD = torch.randn(num_rows, width + 8, device=device).to(dtype)[:, :width]
        heads_TNX = torch.randn(num_rows, self.num_heads, 16 + self.rotated, device=device)
        self.rotated_TNH = heads_TNX.to(dtype)[..., 16:]
        spec = RopeSpec("default", 10000.0, self.rotated)
        self.table = RopeTable(spec, 300, Compute(dtype, device))
        self.positions_T = torch.randint(0, 300, (num_rows,), device=device)
        self.slots_T = 1 + torch.randperm(49, device=device)[:num_rows]
        self.kv_S1GD = torch.full((50, 1, 1, width), 7.0, dtype=dtype, device=device)
        self.weight_F = (1 + 0.2 * torch.randn(self.rank, device=device)).to(dtype)

        self.scale = 1.0

    def run(self, by_kernel: bool, rows: slice = slice(None)) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries, of which the first numbers stay what they were, and all slots."""
        kv_S1GD = self.kv_S1GD.clone()
        row_TD = self.row_TD[rows]
        shape = (len(row_TD), self.num_heads, self.rank + self.rotated)
        query_TND = torch.full(shape, 3.0, dtype=row_TD.dtype, device=row_TD.device)
        weight = self.weight_F
        if not by_kernel:
            weight = new_weight(self.rank, row_TD.dtype, row_TD.device)
            (weight if weight.dim() == 1 else weight[0]).copy_(self.weight_F)
        body = rotate_and_store_latent
        (body.by_kernel if by_kernel else body.by_torch)(
            row_TD,
            self.rotated_TNH[rows],
            self.table.at(self.positions_T[rows]),
            replace(KVDestination.of(kv_S1GD, self.slots_T[rows]), key_scale=self.scale),
            weight,
            EPSILON,
            query_TND,
        )
        return query_TND, kv_S1GD


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(4, 32, 16), (9, 40, 8), (17, 512, 64)])
def test_rows_are_stored_and_queries_rotated_as_torch_does(
    sizes: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    for num_rows in (1, 5):
        scene = Scene(sizes, num_rows, dtype, device)
        query_TND, kv_S1GD = scene.run(by_kernel=True)
        expected_TND, expected_S1GD = scene.run(by_kernel=False)
        assert torch.equal(query_TND, expected_TND)
        rank = scene.rank
        assert torch.equal(kv_S1GD[..., rank:], expected_S1GD[..., rank:])
        # a square root one rounding off moves a rounded number by one at most
        tolerance = 4 * torch.finfo(dtype).eps * expected_S1GD.float().abs().max()
        assert (kv_S1GD.float() - expected_S1GD.float()).abs().max() <= tolerance


@pytest.mark.parametrize("by_kernel", [True, False])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_what_is_no_number_reaches_no_slot(by_kernel: bool, device: torch.device) -> None:
    scene = Scene((2, 32, 16), 4, torch.float32, device)
    scene.row_TD[1, 3] = torch.nan
    scene.row_TD[2, 33] = torch.inf
    _, kv_S1GD = scene.run(by_kernel)
    assert bool(kv_S1GD.isfinite().all())


def test_a_row_may_be_stored_in_bytes(device: torch.device) -> None:
    scene = Scene((4, 32, 16), 5, torch.float32, device)
    scene.kv_S1GD = scene.kv_S1GD.to(torch.float8_e4m3fn)
    scene.scale = 0.5
    stored, expected = (scene.run(by_kernel)[1].float() for by_kernel in (True, False))
    assert torch.equal(stored[..., 32:], expected[..., 32:])
    # a square root one rounding off may move a number to the next one
    assert ((stored - expected).abs() <= expected.abs() / 8).all()
    assert (stored == expected).float().mean() > 0.9


def test_a_row_has_the_same_bits_in_any_call(device: torch.device) -> None:
    scene = Scene((9, 48, 16), 33, torch.float16, device)
    whole_TND, kv_S1GD = scene.run(by_kernel=True)
    for rows in (slice(0, 1), slice(4, 11), slice(20, 33), slice(0)):
        query_TND, some_S1GD = scene.run(True, rows)
        assert torch.equal(query_TND, whole_TND[rows])
        slots = scene.slots_T[rows]
        assert torch.equal(some_S1GD[slots], kv_S1GD[slots])


def test_they_compile_for_hopper_without_spilling() -> None:
    strides = ("row_stride", "rotated_stride", "rotated_head_stride", "slot_stride")
    tensors = ("row_TD", "rotated_TNH", "table_P2H", "kv_S1D", "weight_F", "query_TND")
    storing = Job(
        "eyas.kernels.rotate_and_store_latent:rotate_and_store_latent_kernel",
        {
            **dict.fromkeys(tensors, "*bf16"),
            **dict.fromkeys(strides, "i32"),
            "positions_T": "*i64",
            "slots_T": "*i64",
            "epsilon": "fp32",
            "inverse_scale": "fp32",
        },
        {
            "NUM_HEADS": 128,
            "RANK": 512,
            "HALF": 32,
            "BLOCK_HEADS": 8,
            "BLOCK_RANK": 512,
            "BLOCK_HALF": 32,
            "LARGEST": 0.0,
            "PDL": True,
        },
        2,
        3,
        strides,
    )
    numbers = ("num_columns", "x_stride", "x_head_stride", "out_stride", "out_head_stride")
    products = [
        Job(
            "eyas.kernels.head_product:head_product_kernel",
            {
                **dict.fromkeys(("x_TNI", "weight_NOI", "out_TNO"), "*bf16"),
                **dict.fromkeys(("num_rows", "num_out", *numbers), "i32"),
            },
            {
                "BLOCK_OUT": tile.block_out,
                "BLOCK_ROWS": tile.block_rows,
                "BLOCK_K": tile.block_k,
                "EVEN_OUT": True,
                "EVEN_K": True,
                "PDL": True,
            },
            tile.num_warps,
            tile.num_stages,
            numbers,
        )
        for _, tile in TILES
    ]
    for compiled in compile_for_hopper(storing, *products):
        assert compiled.num_spilled == 0 and compiled.shared < 227 * 1024, compiled


def test_a_layer_by_kernels_is_the_layer_by_torch(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products, norms, rotation and heads' products of the whole layer, in float32. On a CPU layers
    would pack their weights."""
    sizes = LatentSizes(query_rank=48, rank=32, plain_dim=16, rotated_dim=16, value_dim=24)
    rope = RopeSpec("default", 10000.0, 16, is_interleaved=True)
    store = LayerStore(3, 1, sizes.row_dim, scale=0.2, value_dim=sizes.rank)
    x_TI = torch.randn(5, 64, device=device)
    products = Products(exact=True, device=device, max_rows=16)
    product, found = gemm.product, []

    def late(*tensors: torch.Tensor, pdl: bool, **options: Any) -> torch.Tensor:
        """The interpreter knows no early launch."""
        return product(*tensors, pdl=pdl and device.type == "cuda", **options)

    monkeypatch.setattr(gemm, "product", late)
    monkeypatch.setattr(linear, "pack_weight", lambda weight_OI: None)
    for order in (RowOrder(), RowOrder(products=products)):
        compute = Compute(torch.float32, device, order)
        layer = LatentAttention(64, 3, sizes, compute, head_layout=rope.head_layout)
        generator = torch.Generator().manual_seed(1)
        for name, parameter in layer.parameters().items():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if "norm" in name else 0.2 * noise)
        layer.seal()
        attend = DenseCache([store], device=device).extend(range(-1, 4))
        angles = RopeTable(rope, 16, Compute(torch.float32, device)).at(
            attend.positions().to(device)
        )
        with monkeypatch.context() as patch:
            if order.products is not None:
                take_kernels(patch, rotate_and_store_latent, add_norm)
            parts = layer(0, x_TI, angles, attend)
        found.append(parts if parts.dim() == 2 else parts.sum(0))
    assert found[0].abs().max() > 0.1
    assert (found[0] - found[1]).abs().max() <= 1e-5 * found[0].abs().max()
