"""Heads normalised, rotated and stored: the kernel against the torch body, number by number."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eyas.layers.compute import Compute
from eyas.layers.rope import RopeSpec, RopeTable
from eyas.ops.rotate_and_store import HeadNorm, KVDestination, rotate_and_store
from tests.kernels.hopper import Job, compile_for_hopper

EPSILON = 1e-6
DTYPES = [torch.float32, torch.float16]
if torch.cuda.is_available():
    DTYPES.append(torch.bfloat16)  # the interpreter cuts off where it should round


class Scene:
    """Random rows, slots and angles; heads hold numbers that are none."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        num_rows: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        has_norm: bool = False,
        num_slots: int = 50,
    ) -> None:
        self.shape, self.dtype = shape, dtype
        num_query, num_kv, head_dim = shape
        width = (num_query + 2 * num_kv) * head_dim
        self.heads_TX = torch.randn(num_rows, width + 16, device=device).to(dtype)[:, :width]
        spec = RopeSpec("default", 10000.0, head_dim)
        self.table = RopeTable(spec, 300, Compute(dtype, device))
        self.positions_T = torch.randint(0, 300, (num_rows,), device=device)
        self.slots_T = 1 + torch.randperm(num_slots - 1, device=device)[:num_rows]
        kv_shape = (num_slots, 2, num_kv, head_dim)
        self.kv_S2GH = torch.full(kv_shape, 7.0, dtype=dtype, device=device)
        self.norm = None
        self.scales = (1.0, 1.0)
        if has_norm:
            weights = [torch.randn(head_dim, device=device).to(dtype) for _ in range(2)]
            self.norm = HeadNorm.of(EPSILON, *weights, num_query, num_kv)

    def destination(self, kv_S2GH: torch.Tensor, slots_T: torch.Tensor) -> KVDestination:
        key_scale, value_scale = self.scales
        destination = KVDestination.of(kv_S2GH, slots_T)
        return replace(destination, key_scale=key_scale, value_scale=value_scale)

    def run(self, rows: slice = slice(None)) -> torch.Tensor:
        destination = self.destination(self.kv_S2GH, self.slots_T[rows])
        angles = self.table.at(self.positions_T[rows])
        heads_TX = self.heads_TX[rows]
        return rotate_and_store.by_kernel(heads_TX, angles, destination, *self.shape[:2], self.norm)

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries, and all slots, by torch."""
        kv_S2GH = torch.full(self.kv_S2GH.shape, 7.0, device=self.kv_S2GH.device)
        kv_S2GH = kv_S2GH.to(self.kv_S2GH.dtype)
        destination = self.destination(kv_S2GH, self.slots_T)
        angles = self.table.at(self.positions_T)
        q_TNH = rotate_and_store.by_torch(
            self.heads_TX, angles, destination, *self.shape[:2], self.norm
        )
        return q_TNH, kv_S2GH


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 2, 64), (3, 1, 80), (6, 6, 96), (9, 3, 128), (2, 1, 6)])
def test_rotation_and_storage_equal_torch_bit_for_bit(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    for num_rows in (1, 5):
        scene = Scene(shape, num_rows, dtype, device)
        q_TNH, kv_S2GH = scene.expected()
        assert torch.equal(scene.run(), q_TNH)
        assert torch.equal(scene.kv_S2GH, kv_S2GH)


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_are_normalised_first_where_they_have_weights(
    device: torch.device, dtype: torch.dtype
) -> None:
    for shape in ((8, 2, 128), (3, 1, 80)):
        scene = Scene(shape, 4, dtype, device, has_norm=True)
        q_TNH, kv_S2GH = scene.expected()
        # a square root one rounding off moves the rounded head by one at most
        tolerance = 8 * torch.finfo(dtype).eps * q_TNH.float().abs().max()
        assert (scene.run().float() - q_TNH.float()).abs().max() <= tolerance
        assert (scene.kv_S2GH.float() - kv_S2GH.float()).abs().max() <= tolerance
        assert torch.equal(scene.kv_S2GH[:, 1], kv_S2GH[:, 1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_of_heads_are_added_in_order_and_rounded_before_all_else(
    device: torch.device, dtype: torch.dtype
) -> None:
    for shape, has_norm in (((4, 2, 64), False), ((3, 1, 80), True)):
        scene = Scene(shape, 5, dtype, device, has_norm=has_norm)
        parts = torch.randn(4, 5, scene.heads_TX.shape[1] + 16, device=device)[..., :-16]
        scene.heads_TX = ((parts[0] + parts[1] + parts[2]) + parts[3]).to(dtype)
        rounded_TNH = scene.run()
        stored = scene.kv_S2GH.clone()
        whole = (scene.heads_TX.float()[None], parts)
        for heads in whole:
            scene.kv_S2GH.fill_(7.0)
            destination = scene.destination(scene.kv_S2GH, scene.slots_T)
            inputs = scene.table.at(scene.positions_T), destination, *shape[:2], scene.norm
            assert torch.equal(rotate_and_store.by_kernel(heads, *inputs), rounded_TNH)
            assert torch.equal(scene.kv_S2GH, stored)
            expected_TNH = rotate_and_store.by_torch(scene.heads_TX, *inputs)
            assert torch.equal(rotate_and_store.by_torch(heads, *inputs), expected_TNH)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_what_is_no_number_reaches_no_slot(device: torch.device, dtype: torch.dtype) -> None:
    scene = Scene((2, 2, 64), 4, dtype, device)
    scene.heads_TX[1, 2 * 64 + 3] = torch.nan
    scene.heads_TX[1, 4 * 64 + 5] = torch.inf
    scene.heads_TX[2, 5 * 64 + 6] = -torch.inf
    scene.heads_TX[3, 3 * 64 + 7] = torch.inf
    q_TNH, kv_S2GH = scene.expected()
    assert torch.equal(scene.run(), q_TNH)
    assert scene.kv_S2GH.isfinite().all()
    assert torch.equal(scene.kv_S2GH, kv_S2GH)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_byte_holds_the_nearest_number_and_at_most_the_largest(
    device: torch.device, dtype: torch.dtype
) -> None:
    scene = Scene((2, 2, 64), 6, dtype, device)
    scene.kv_S2GH = scene.kv_S2GH.to(torch.float8_e4m3fn)
    scene.scales = (0.25, 3.0)
    scene.positions_T.zero_()  # keys are not turned, so what is stored can be told
    key, value = 2 * 64, 4 * 64
    scene.heads_TX[0, key : key + 4] = torch.tensor([1e4, -1e4, 112.0, 17 / 64])
    scene.heads_TX[0, value : value + 4] = torch.tensor([1344.0, 1400.0, 3 * 2**-10, 9 * 2**-10])
    scene.heads_TX[1, key + 3] = torch.nan
    scene.heads_TX[2, value + 3] = -torch.inf
    q_TNH, kv_S2GH = scene.expected()
    assert torch.equal(scene.run(), q_TNH)
    assert torch.equal(scene.kv_S2GH.view(torch.uint8), kv_S2GH.view(torch.uint8))
    stored = kv_S2GH[scene.slots_T].float()
    assert stored[0, 0, 0, :4].tolist() == [448.0, -448.0, 448.0, 1.0]  # 1.0625 is a tie
    assert stored[0, 1, 0, :4].tolist() == [448.0, 448.0, 0.0, 2 * 2**-9]  # so are a half and 1.5
    assert stored[1, 0, 0, 3] == 0.0 and stored[2, 1, 0, 3] == 0.0
    assert stored.isfinite().all()


def test_rows_of_the_null_slot_leave_the_others_alone(device: torch.device) -> None:
    scene = Scene((4, 2, 64), 6, torch.float16, device)
    scene.slots_T[2:5] = 0
    q_TNH, kv_S2GH = scene.expected()
    assert torch.equal(scene.run(), q_TNH)
    assert torch.equal(scene.kv_S2GH[1:], kv_S2GH[1:])


def test_a_row_has_the_same_bits_in_any_call_and_no_rows_give_none(device: torch.device) -> None:
    scene = Scene((4, 2, 64), 33, torch.bfloat16, device, has_norm=True)
    expected_TNH = scene.run()
    kv_S2GH = scene.kv_S2GH.clone()
    for num_rows in (1, 2, 7, 17):
        scene.kv_S2GH.fill_(7.0)
        assert torch.equal(scene.run(slice(num_rows)), expected_TNH[:num_rows])
        slots = scene.slots_T[:num_rows]
        assert torch.equal(scene.kv_S2GH[slots], kv_S2GH[slots])
    assert scene.run(slice(0)).shape == (0, 4, 64)


def test_it_compiles_for_hopper_without_spilling() -> None:
    strides = ("part_stride", "row_stride", "slot_stride", "side_stride", "kv_head_stride")
    jobs = []
    for head_dim, has_norm in ((128, False), (128, True), (80, False), (256, True)):
        tensors = ["heads_ZTX", "table_P2H", "kv_S2GH", "q_TNH"]
        constants: dict[str, object] = {
            "NUM_PARTS": 4 if head_dim == 128 else 1,
            "NUM_QUERY_HEADS": 32,
            "NUM_KV_HEADS": 8,
            "HALF": head_dim // 2,
            "HAS_NORM": has_norm,
            "LARGEST": 448.0 if head_dim == 80 else 0.0,
            "BLOCK_HEADS": 8,
            "BLOCK_HALF": 1 << (head_dim // 2 - 1).bit_length(),
            "PDL": True,
        }
        if has_norm:
            tensors += ["q_weight_H", "k_weight_H"]
        else:
            constants |= {"q_weight_H": None, "k_weight_H": None}
        signature = dict.fromkeys(tensors, "*bf16") | dict.fromkeys(strides, "i32")
        signature |= {"positions_T": "*i64", "slots_T": "*i64"}
        signature |= dict.fromkeys(("epsilon", "key_inverse", "value_inverse"), "fp32")
        if head_dim == 128:
            signature["heads_ZTX"] = "*fp32"
        if head_dim == 80:
            signature["kv_S2GH"] = "*fp8e4nv"
        kernel = "eyas.kernels.rotate_and_store:rotate_and_store_kernel"
        jobs.append(Job(kernel, signature, constants, 2, 3, strides))
    for compiled in compile_for_hopper(*jobs):
        assert compiled.num_spilled == 0 and compiled.shared < 4096


@pytest.mark.gpu
def test_long_batches_and_far_slots(device: torch.device) -> None:
    """The store is larger than 2^31 numbers."""
    scene = Scene((32, 8, 128), 2048, torch.bfloat16, device, num_slots=1_100_000)
    scene.slots_T[0] = 1_099_999
    q_TNH, kv_S2GH = scene.expected()
    assert torch.equal(scene.run(), q_TNH)
    assert torch.equal(scene.kv_S2GH, kv_S2GH)
