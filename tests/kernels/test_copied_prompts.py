"""Copies of sequences' keys and values, when they are made, and that their kernel compiles for Hopper;
tests/gpu has its bits.

Legend: S slots, P copied positions.
"""

from __future__ import annotations

import random

import pytest
import torch

from eyas.attention import copied_bytes
from eyas.attention.base import ContextRun
from eyas.attention.copied_prompts import LEAST_LINES, MOST_BYTES, is_worth_copying, takes
from eyas.cache.store import LayerStore, StateStore
from eyas.kernels.attention_prefill import cut
from eyas.kernels.copies import copy_slots, cut_copied
from eyas.kernels.softmax import GROUP, SPLIT, HeadShape
from eyas_bench.shapes import SHAPES
from tests.kernels.hopper import Job, compile_for_hopper
from tests.thorough import drawn

MOST_SHARED = 227 * 1024
RUNS = [(2, 10, 0, 33), (3, 43, 500, 1), (0, 44, 96, 160)]


def test_tiles_are_those_of_the_other_kernel_and_know_where_their_sequence_is_copied() -> None:
    cut_up = cut_copied(RUNS, 32)
    assert cut_up.tiles_X4[:, :3].tolist() == cut(RUNS, 32)[:, 1:].tolist()
    for row, position, count, base in cut_up.tiles_X4.tolist():
        (run,) = [run for run in RUNS if run[1] <= row < run[1] + run[3]]
        end = run[2] + run[3]
        own = [split for split in cut_up.splits_Y3[base // SPLIT :].tolist() if split[0] == run[0]]
        assert own == [[run[0], first, end] for first in range(0, end, SPLIT)]
        assert position + count <= end
    assert len(cut_up.splits_Y3) == 1 + 4 + 2


@pytest.mark.parametrize(
    ("stored", "wanted"), [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)]
)
@pytest.mark.parametrize("sizes", [(2, 64), (5, 128)], ids=str)
def test_copies_are_the_slots_in_the_order_of_positions(
    sizes: tuple[int, int],
    stored: torch.dtype,
    wanted: torch.dtype,
    device: torch.device,
) -> None:
    generator = torch.Generator().manual_seed(1)
    kv_S2GH = torch.randn(1300, 2, *sizes, generator=generator).to(stored).to(device)
    slots_AC = torch.randperm(1299, generator=generator)[:1290].view(5, -1).add_(1).to(device)
    seats_B = torch.tensor([3, 1, 4, 0], device=device)
    runs = [(1, 0, 0, 33), (2, 33, 100, 28), (3, 61, 96, 160)]
    copied_PX = copy_slots(
        kv_S2GH,
        torch.from_numpy(cut_copied(runs, 32).splits_Y3).to(device),
        seats_B,
        slots_AC,
        wanted,
    )
    base = 0
    for sequence, _, position, count in runs:
        end = position + count
        slots = slots_AC[seats_B[sequence], :end]
        assert torch.equal(copied_PX[base : base + end], kv_S2GH[slots].flatten(1).to(wanted))
        next_base = base + -(-end // SPLIT) * SPLIT
        assert not copied_PX[base + end : next_base].any()
        base = next_base
    assert base == len(copied_PX)


def test_what_few_rows_read_or_does_not_fit_is_not_copied() -> None:
    shape = HeadShape.of(32, 8, 128, 2)
    rows = LEAST_LINES // shape.per_kv

    def is_copied(*chunks: tuple[int, int]) -> bool:
        return is_worth_copying([ContextRun(0, 0, *chunk) for chunk in chunks], shape, 2)

    assert is_copied((0, 8192)) and is_copied((6144, 2048)) and is_copied((128, rows))
    assert not is_copied((1024, rows - 1)) and not is_copied((0, rows - 1))
    assert is_copied((1024, 2 * rows), (1024, 1)) and not is_copied((1024, rows), (1024, 1))
    most = MOST_BYTES // (2 * 8 * 128 * 2)
    assert is_copied((most - 2048, 2048)) and not is_copied((most - 2048, 2049))


def test_a_device_without_warpgroups_copies_nothing() -> None:
    cpu = torch.device("cpu")
    assert not takes(HeadShape.of(32, 8, 128, 2), torch.bfloat16, cpu)
    assert copied_bytes([LayerStore(32, 8, 128)], 1 << 30, torch.bfloat16, cpu) == 0


def test_copies_take_what_all_positions_need_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_taken(shape: HeadShape, dtype: torch.dtype, device: torch.device) -> bool:
        return shape.window is None

    monkeypatch.setattr("eyas.attention.copied_prompts.takes", is_taken)
    stores = [LayerStore(8, 2, 64), LayerStore(8, 8, 64, window=10), StateStore(1, 1, 1, 1, 1)]
    device = torch.device("cuda")
    assert copied_bytes(stores, 1000, torch.float16, device) == 1000 * 2 * 2 * 64 * 2
    assert copied_bytes(stores, 1 << 30, torch.float16, device) == MOST_BYTES
    assert copied_bytes(stores[1:], 1000, torch.float16, device) == 0
    spec = SHAPES["tiny-compressed"].model  # layers whose keys are their values
    assert copied_bytes(spec.attention_stores, 1000, torch.float16, device) == 0


@pytest.mark.parametrize(
    "shape",
    [
        HeadShape.of(32, 8, 128, 2, window=100),
        HeadShape.of(32, 8, 128, 2, first_position=1),
        HeadShape.of(32, 8, 256, 2),
        HeadShape.of(16, 1, 576, 2, value_dim=512),
    ],
    ids=["window", "first position", "head dim", "latent"],
)
def test_other_layers_keep_the_other_kernel(shape: HeadShape) -> None:
    from eyas.kernels import attention_copied

    assert attention_copied.takes(HeadShape.of(32, 8, 64, 2), torch.float16)
    assert not attention_copied.takes(HeadShape.of(32, 8, 64, 4), torch.float32)
    assert not attention_copied.takes(shape, torch.bfloat16)


def grouped(head_dim: int, per_kv: int, dtype: str, *, has_sinks: bool = False) -> Job:
    from eyas.kernels import attention_copied

    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    layout = attention_copied.shared_layout(head_dim, kind)
    return Job(
        "eyas.kernels.attention_warpgroups:grouped_prompts_kernel",
        {
            "q_TNH": f"*{dtype}",
            "kv_blocks": f"tensordesc<{dtype}[{SPLIT},{head_dim}],{layout!r}>",
            "out_TNH": f"*{dtype}",
            "tiles_X4": "*i64",
            "sinks_N": "*fp32",
            "num_tiles": "i32",
            "q_stride": "i32",
            "scale": "fp32",
            "value_scale": "fp32",
        },
        {
            "NUM_KV_HEADS": 8,
            "PER_KV": per_kv,
            "LINES": attention_copied.LINES,
            "GROUP": GROUP,
            "STAGES": attention_copied.STAGES,
            "REGISTERS": attention_copied.REGISTERS,
            "LOADER_REGISTERS": attention_copied.LOADER_REGISTERS,
            "HAS_SINKS": has_sinks,
            "PDL": True,
        },
        num_warps=attention_copied.WARPS,
        aligned=("q_stride",),
    )


def test_prompts_by_warpgroups_compile_for_hopper_within_its_means() -> None:
    """What spills is read once a tile: places of its lines, which differ where heads do not divide
    them."""
    jobs = [grouped(128, 4, "bf16"), grouped(64, 8, "bf16", has_sinks=True)]
    jobs += drawn(
        [],
        [
            grouped(head_dim, per_kv, dtype, has_sinks=True)
            for head_dim in (64, 128)
            for per_kv in (1, 2, 5, 7, 16)
            for dtype in ("bf16", "fp16")
        ],
    )
    for job, compiled in zip(jobs, compile_for_hopper(*jobs), strict=True):
        divides = job.constants["LINES"] % job.constants["PER_KV"] == 0
        assert compiled.uses_wgmma and compiled.num_spilled <= (64 if divides else 256), compiled
        assert compiled.shared <= MOST_SHARED, (job, compiled)


def test_copying_compiles_for_hopper() -> None:
    job = Job(
        "eyas.kernels.copies:copy_slots_kernel",
        {
            "kv_S2GH": "*fp8e4nv",
            "out_P2GH": "*bf16",
            **dict.fromkeys(("splits_Y3", "seats_B", "slots_AC"), "*i64"),
            "num_columns": "i32",
        },
        {
            "WIDTH": 2048,
            "COLUMNS": 1024,
            "POSITIONS": 16,
            "SPLIT": SPLIT,
            "PDL": True,
        },
    )
    (compiled,) = compile_for_hopper(job)
    assert compiled.num_spilled == 0, compiled


def test_random_chunks_are_cut_so_that_every_row_has_one_tile() -> None:
    draw = random.Random(4)
    runs, row = [], 5
    for sequence in range(6):
        count = draw.randint(1, 300)
        runs.append((sequence, row, draw.randint(0, 900), count))
        row += count
    tiles = cut_copied(runs, 24).tiles_X4.tolist()
    rows = sorted(row + i for row, _, count, _ in tiles for i in range(count))
    assert rows == list(range(5, row))
