"""The kernels of layers with a state per sequence, against torch and against themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from eyas.attention import state_plan
from eyas.attention.base import AttentionLayout, ContextRun, NodeGrid
from eyas.attention.state_plan import StatePlan
from eyas.cache.states import SequenceStates
from eyas.cache.store import StateStore
from eyas.ops.delta_rule import DeltaRule, delta_rule
from eyas.ops.gated_norm import gated_norm
from eyas.ops.state_lines import Lines, finish_lines, state_lines
from tests.kernels.bodies import take_kernels, take_torch
from tests.kernels.hopper import Job, compile_for_hopper

STORE = StateStore(num_heads=2, key_dim=6, value_dim=40, input_width=96, reach=3)
LENGTH = 14
NUM_SEATS, NUM_NODES = 3, 6
TREE = [-1, 0, 0, 1, 2, 2]
CHAIN = [-1, 0, 1, 2]


class World:
    """Sequences of random inputs in the seats of one layer's states.

    lines: what was planned of every forward pass.
    """

    def __init__(self, device: torch.device, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
        take = take_kernels if by == "kernels" else take_torch
        take(monkeypatch, delta_rule, state_lines, finish_lines)
        self.device = device
        self.lines: list[Lines] = []
        planned = state_plan.state_lines

        def noted(*args: Any) -> Lines:
            self.lines.append(planned(*args))
            return self.lines[-1]

        monkeypatch.setattr(state_plan, "state_lines", noted)
        generator = torch.Generator().manual_seed(1)

        def noise(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(device)

        width = STORE.input_width - 2 * STORE.num_heads
        self.rule = DeltaRule(1, 2, 6, 40, noise(width, 4), noise(2) - 1, noise(2))
        self.inputs = noise(NUM_SEATS, LENGTH, STORE.input_width)
        self.other = noise(NUM_SEATS, NUM_NODES, STORE.input_width)
        self.states = SequenceStates([STORE], dtype=torch.float32, device=device)
        self.states.resize(NUM_SEATS, NUM_NODES)
        self.slots_AC = torch.arange(NUM_SEATS * 40, device=device).view(NUM_SEATS, 40)

    def run(
        self,
        trees: dict[int, tuple[int, list[int]]],
        chunks: list[tuple[int, int, int]],
        parents: list[int],
        *,
        is_chain: bool = False,
        num_padding: int = 0,
        twice: bool = False,
    ) -> dict[int, torch.Tensor]:
        """Outputs by seat: of its chunk (seat, start, count), then of the path in its tree.

        trees: by seat, position of the root and nodes of the path that has the sequence's own inputs.
        """
        rows, runs, width = [], [], len(parents)
        slots_BW = torch.empty((len(trees), width), dtype=torch.int64, device=self.device)
        for b, (seat, (root, path)) in enumerate(trees.items()):
            own = self.other[seat, :width].clone()
            own[path] = self.inputs[seat, root : root + len(path)]
            rows.append(own)
            slots_BW[b] = 1000 * (seat + 1) + 40 * root + torch.arange(width, device=self.device)
        row = len(trees) * width
        for number, (seat, start, count) in enumerate(chunks):
            runs.append(ContextRun(len(trees) + number, row, start, count))
            rows.append(self.inputs[seat, start : start + count])
            row += count
        rows.append(torch.full((num_padding, STORE.input_width), torch.nan, device=self.device))
        grid = None
        if trees:
            rows_BW = torch.arange(len(trees) * width, device=self.device).view(-1, width)
            roots_B = torch.tensor([root for root, _ in trees.values()], device=self.device)
            parents_BW = torch.tensor([parents] * len(trees), device=self.device)
            grid = NodeGrid(rows_BW, slots_BW, roots_B, None if is_chain else parents_BW)
        seats_B = torch.tensor([*trees, *(seat for seat, _, _ in chunks)], device=self.device)
        layout = AttentionLayout(self.slots_AC, seats_B, LENGTH, tuple(runs), grid)
        inputs_TX = F.pad(torch.cat(rows), (0, 8))[:, : STORE.input_width]  # rows stand apart
        out_TND = StatePlan(layout, self.states).recur(0, inputs_TX, self.rule)
        if twice:  # as when a stage is captured
            again = StatePlan(layout, self.states).recur(0, inputs_TX, self.rule)
            assert torch.equal(again[:row], out_TND[:row])
        assert bool((out_TND[row:] == 0).all())
        found: dict[int, list[torch.Tensor]] = {}
        for run, (seat, _, _) in zip(runs, chunks, strict=True):
            found.setdefault(seat, []).append(out_TND[run.row : run.row + run.count])
        for b, (seat, (root, path)) in enumerate(trees.items()):
            found.setdefault(seat, []).append(out_TND[b * width : (b + 1) * width][path])
            self.slots_AC[seat, root : root + len(path)] = slots_BW[b, path]
        return {seat: torch.cat(parts) for seat, parts in found.items()}

    def story(self) -> torch.Tensor:
        """Outputs [A, positions, N, D] of chunks, chains and trees in batches, until all are done."""
        parts: list[list[torch.Tensor]] = [[] for _ in range(NUM_SEATS)]

        def take(found: dict[int, torch.Tensor]) -> None:
            for seat, out in found.items():
                parts[seat].append(out)

        take(self.run({}, [(0, 0, 5), (2, 0, 1)], [-1], num_padding=2))
        take(self.run({0: (5, [0, 2, 5])}, [(1, 0, 4), (2, 1, 2)], TREE))
        take(self.run({2: (6, [0, 1]), 0: (8, [0])}, [(2, 3, 3)], CHAIN, is_chain=True))
        take(self.run({0: (9, [0, 1, 3]), 1: (4, [0, 2])}, [], TREE, twice=True))
        take(self.run({1: (6, [0, 1, 2])}, [], CHAIN, is_chain=True, twice=True))
        take(self.run({1: (9, [0]), 2: (8, [0]), 0: (12, [0])}, [], [-1], is_chain=True))
        take(self.run({1: (10, [0, 2, 4]), 2: (9, [0, 1, 3])}, [(0, 13, 1)], TREE))
        return torch.stack([torch.cat(part)[:12] for part in parts])


def test_lines_and_outputs_are_those_of_torch(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, worlds = [], []
    for by in ("torch", "kernels"):
        with monkeypatch.context() as patch:
            worlds.append(World(device, patch, by))
            found.append(worlds[-1].story())
    with monkeypatch.context() as patch:
        chunks = [(seat, 0, 12) for seat in range(NUM_SEATS)]
        whole = World(device, patch, "kernels").run({}, chunks, [-1])
    assert torch.equal(found[1], torch.stack(list(whole.values()))), "one order for all"
    assert (found[0] - found[1]).abs().max() <= 2e-5 * found[0].abs().max()
    states = [world.states.layer(0) for world in worlds]
    assert torch.equal(states[0].inputs_AEX, states[1].inputs_AEX)
    assert (states[0].states_ANHD - states[1].states_ANHD).abs().max() <= 1e-5
    assert torch.equal(worlds[0].states.node_slots_AW, worlds[1].states.node_slots_AW)
    for one, other in zip(worlds[0].lines, worlds[1].lines, strict=True):
        for name in ("lanes_8Y", "taps_LJ", "windows_YP"):
            assert torch.equal(getattr(one, name).cpu(), getattr(other, name).cpu()), name
        for tree, num in zip(one.lanes.trees, one.lanes.num_steps, strict=True):
            assert (
                tree < 0 or one.steps_BX[tree, :num].tolist() == other.steps_BX[tree, :num].tolist()
            )


def test_snapshots_go_on_and_lost_states_do_not(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(device, monkeypatch, "kernels")
    world.states.reserve_snapshots(1)
    whole = world.run({}, [(0, 0, 9)], [-1])[0]
    world.run({}, [(0, 0, 5)], [-1])
    world.states.save(0, 0)
    world.states.restore(1, 0)
    world.inputs[1] = world.inputs[0]
    found = world.run({}, [(1, 5, 4), (0, 7, 2), (2, 0, 2)], [-1])
    assert torch.equal(found[1], whole[5:])
    assert bool(found[0].isnan().all()) and bool(found[2].isfinite().all())
    lost = world.run({0: (9, [0, 1])}, [], CHAIN, is_chain=True)
    assert bool(lost[0].isnan().all())
    assert world.states.positions_A.tolist() == [-1, 9, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_gated_norm_is_that_of_torch(dtype: torch.dtype, device: torch.device) -> None:
    x_TND = torch.randn(3, 6, 24, device=device)
    gate_TX = torch.randn(3, 200, device=device).to(dtype)[:, 8 : 8 + 144]
    weight_D = torch.rand(24, device=device)
    found = gated_norm.by_kernel(x_TND, gate_TX, weight_D, 1e-6)
    expected = gated_norm.by_torch(x_TND, gate_TX, weight_D, 1e-6)
    tolerance = 4 * torch.finfo(dtype).eps * float(expected.abs().max())
    assert found.dtype == dtype and (found - expected).abs().max() <= tolerance


HEADS = {
    "NUM_KEY_HEADS": 16,
    "NUM_VALUE_HEADS": 32,
    "KEY_DIM": 128,
    "VALUE_DIM": 128,
    "BLOCK_H": 128,
}
FLOATS = ("queries", "keys", "values", "decays", "strengths")


def test_they_compile_for_hopper_without_spilling() -> None:
    line_numbers = (
        *("num_rooted", "num_runs", "num_rows", "num_seats", "num_nodes", "most_stored"),
        *("most_steps", "nodes_stride", "roots_stride", "parents_stride", "slots_stride"),
    )
    line_tensors = (
        *("seats", "runs", "nodes", "roots", "parents", "slots", "positions", "node_slots"),
        *("lanes", "taps", "windows", "steps", "histories"),
    )
    lines = [
        Job(
            "eyas.kernels.state_lines:state_lines_kernel",
            {**dict.fromkeys(line_tensors, "*i64"), **dict.fromkeys(line_numbers, "i32")},
            {
                "REACH": 3,
                "IS_TREE": is_tree,
                "BLOCK_B": 64,
                "BLOCK_C": 1,
                "BLOCK_W": 16,
                "BLOCK_E": 16,
                "BLOCK": 128,
                "PDL": True,
            },
            1,
        )
        for is_tree in (True, False)
    ]
    finish = Job(
        "eyas.kernels.state_lines:finish_lines_kernel",
        {
            **dict.fromkeys(("lanes", "nodes", "slots", "positions", "node_slots"), "*i64"),
            **dict.fromkeys(("num_nodes", "most_stored", "nodes_stride", "slots_stride"), "i32"),
        },
        {"BLOCK_E": 16, "PDL": True},
        1,
    )
    convolve = Job(
        "eyas.kernels.delta_rule:convolve_kernel",
        {
            **dict.fromkeys(("inputs", "stored"), "*bf16"),
            "line_taps": "*i64",
            **dict.fromkeys(("taps", "log_decays", "time_biases", *FLOATS), "*fp32"),
            **dict.fromkeys(("row_stride", "size"), "i32"),
            **dict.fromkeys(("epsilon", "scale"), "fp32"),
        },
        {**HEADS, "NUM_TAPS": 4, "BLOCK_D": 128, "PDL": True},
        1,
    )
    numbers = ("num_rows", "most_stored", "most_steps", "size", "num_nodes")
    walk = Job(
        "eyas.kernels.delta_rule:walk_kernel",
        {
            **dict.fromkeys(("inputs", "stored"), "*bf16"),
            **dict.fromkeys((*FLOATS, "states", "out"), "*fp32"),
            **dict.fromkeys(("lanes", "windows", "steps", "nodes"), "*i64"),
            **dict.fromkeys((*numbers, "row_stride", "nodes_stride"), "i32"),
        },
        {
            **HEADS,
            "REACH": 3,
            "NUM_PARTS": 4,
            "BLOCK_V": 32,
            "BLOCK_P": 4,
            "BLOCK_X": 1024,
            "PDL": True,
        },
        4,
    )
    norm = Job(
        "eyas.kernels.gated_norm:gated_norm_kernel",
        {
            "x_TND": "*fp32",
            "gate_TX": "*bf16",
            "weight_D": "*fp32",
            "out_TX": "*bf16",
            "gate_stride": "i32",
            "epsilon": "fp32",
        },
        {"NUM_HEADS": 32, "SIZE": 128, "BLOCK_HEADS": 4, "BLOCK": 128, "PDL": True},
        2,
    )
    for compiled in compile_for_hopper(*lines, finish, convolve, walk, norm):
        assert compiled.num_spilled == 0 and compiled.shared < 227 * 1024, compiled
