"""States of sequences: a token's bits depend on its path alone, and nothing is left half-updated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from eyas.attention.base import AttentionLayout, ContextRun, NodeGrid
from eyas.attention.state_plan import StateLost, StatePlan
from eyas.cache.states import SequenceStates
from eyas.cache.store import StateStore
from eyas.ops.delta_rule import DeltaRule
from eyas.ops.row_functions import exp, rsqrt, sigmoid, silu, softplus, sum_in_halves

Function = Callable[[torch.Tensor], torch.Tensor]
STORE = StateStore(num_heads=6, key_dim=7, value_dim=33, input_width=238, reach=3)
CPU = torch.device("cpu")
LENGTH = 60
FUNCTIONS: dict[str, tuple[Function, Function]] = {
    "exp": (exp, torch.exp),
    "sigmoid": (sigmoid, torch.sigmoid),
    "softplus": (softplus, F.softplus),
    "rsqrt": (rsqrt, torch.rsqrt),
    "silu": (silu, F.silu),
}


def new_rule() -> DeltaRule:
    generator = torch.Generator().manual_seed(5)
    width = 2 * 2 * 7 + 6 * 33
    assert STORE.input_width == width + 2 * 6
    return DeltaRule(
        num_key_heads=2,
        num_value_heads=6,
        key_dim=7,
        value_dim=33,
        taps_CJ=torch.randn(width, 4, generator=generator),
        log_decay_N=torch.randn(6, generator=generator) - 1,
        time_bias_N=torch.randn(6, generator=generator),
    )


RULE = new_rule()


def new_states(num_layers: int = 1) -> SequenceStates:
    states = SequenceStates([STORE] * num_layers, dtype=torch.float32, device=CPU)
    states.resize(3, 8)
    return states


class World:
    """Three sequences of random inputs in the seats of one layer's states."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        shape = (3, LENGTH, STORE.input_width)
        self.inputs = torch.randn(shape, generator=generator)
        self.slots_AC = torch.arange(3 * 100).view(3, 100)
        self.states = new_states()

    def chunks(self, *chunks: tuple[int, int, int], padding: int = 0) -> list[torch.Tensor]:
        """Outputs of prompt chunks (seat, start, count) of one forward pass."""
        runs, rows, row = [], [], 0
        for number, (seat, start, count) in enumerate(chunks):
            runs.append(ContextRun(number, row, start, count))
            rows.append(self.inputs[seat, start : start + count])
            row += count
        seats_B = torch.tensor([seat for seat, _, _ in chunks])
        layout = AttentionLayout(self.slots_AC, seats_B, LENGTH, tuple(runs))
        rows.append(torch.full((padding, STORE.input_width), torch.nan))
        out = StatePlan(layout, self.states).recur(0, torch.cat(rows), RULE)
        return list(out[:row].split([count for _, _, count in chunks]))

    def tree(self, seat: int, root: int, parents: list[int], path: list[int]) -> torch.Tensor:
        """Outputs of a tree of which the nodes of `path` have the sequence's own inputs, and whose
        nodes' slots are then those of the path."""
        generator = torch.Generator().manual_seed(root)
        rows = torch.randn(len(parents), STORE.input_width, generator=generator)
        rows[path] = self.inputs[seat, root : root + len(path)]
        slots = 1000 * (seat + 1) + 50 * root + torch.arange(len(parents))
        grid = NodeGrid(
            torch.arange(len(parents)).unsqueeze(0),
            slots.unsqueeze(0),
            torch.tensor([root]),
            torch.tensor([parents]),
        )
        layout = AttentionLayout(self.slots_AC, torch.tensor([seat]), LENGTH, nodes=grid)
        out = StatePlan(layout, self.states).recur(0, rows, RULE)
        self.slots_AC[seat, root : root + len(path)] = slots[path]
        return out[path]


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    """Outputs of each sequence, alone and in one chunk."""
    return torch.stack([World().chunks((seat, 0, LENGTH))[0] for seat in range(3)])


def test_chunks_and_neighbours_do_not_matter(expected: torch.Tensor) -> None:
    world, at = World(), [0, 0, 0]
    for counts in ((3, 1, 0), (1, 20, 7), (30, 2, 1), (26, 0, 52), (0, 37, 0)):
        chunks = [(seat, at[seat], count) for seat, count in enumerate(counts) if count]
        for (seat, start, count), found in zip(
            chunks, world.chunks(*chunks, padding=5), strict=True
        ):
            assert torch.equal(found, expected[seat, start : start + count])
            at[seat] += count
    assert at == [LENGTH] * 3


def test_trees_and_what_is_accepted_of_them_do_not_matter(expected: torch.Tensor) -> None:
    world = World()
    world.chunks((1, 0, 5))
    root = 5
    for parents, path in (
        ([-1], [0]),
        ([-1, 0, 0, 1, 2, 2, 5, 6], [0, 2, 5, 6, 7]),
        ([-1, 0, 1, 2], [0]),
        ([-1, 0, 1, 2], [0, 1, 2, 3]),
        ([-1, 0, 0, 0, 1, 1], [0, 3]),
        ([-1, 0, 1], [0, 1]),
    ):
        found = world.tree(1, root, parents, path)
        assert torch.equal(found, expected[1, root : root + len(path)])
        root += len(path)


def test_a_snapshot_goes_on_in_another_seat(expected: torch.Tensor) -> None:
    world = World()
    world.states.reserve_snapshots(2)
    world.chunks((0, 0, 20), (2, 0, 9))
    world.states.save(0, 1)
    world.chunks((0, 20, 10))
    world.inputs[2] = world.inputs[0]
    world.states.restore(2, 1)
    (found,) = world.chunks((2, 20, LENGTH - 20))
    assert torch.equal(found, expected[0, 20:])


def test_a_state_of_another_position_is_never_used() -> None:
    world = World()
    for start in (9, 11):
        world.chunks((0, 0, 10))
        (lost, other) = world.chunks((0, start, 2), (1, 0, 2))
        assert bool(lost.isnan().all()) and bool(other.isfinite().all())
        (lost,) = world.chunks((0, start + 2, 2))
        assert bool(lost.isnan().all())
    world.chunks((0, 0, 4))  # a new sequence in the seat
    (lost,) = world.chunks((0, 10, 2))
    assert bool(lost.isnan().all())


def test_a_forward_pass_that_fails_between_layers_leaves_no_state() -> None:
    world = World()
    world.states = new_states(2)
    layout = AttentionLayout(world.slots_AC, torch.tensor([0]), LENGTH, (ContextRun(0, 0, 0, 5),))
    plan = StatePlan(layout, world.states)
    for layer in (0, 1):
        plan.recur(layer, world.inputs[0, :5], RULE)
    layout = replace(layout, contexts=(ContextRun(0, 0, 5, 5),))
    StatePlan(layout, world.states).recur(0, world.inputs[0, 5:10], RULE)
    with pytest.raises(StateLost):
        StatePlan(layout, world.states).recur(0, world.inputs[0, 5:10], RULE)
    out = StatePlan(layout, world.states).recur(0, world.inputs[0, 5:10], RULE)
    assert bool(out.isnan().all())


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("width", [1, 4, 17, 96, 1100])
def test_a_row_has_the_same_bits_among_any_others(name: str, width: int) -> None:
    function, expected = FUNCTIONS[name]
    x_LX = torch.rand(301, width, generator=torch.Generator().manual_seed(width)) * 4 + 0.1
    whole = function(x_LX)
    assert torch.allclose(whole, expected(x_LX), rtol=1e-6)
    for start, stop in ((0, 1), (7, 9), (300, 301), (20, 187)):
        assert torch.equal(function(x_LX[start:stop]), whole[start:stop])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_number_has_the_same_bits_in_any_column(name: str) -> None:
    """Ranks have a part of the columns each."""
    function, _ = FUNCTIONS[name]
    x_LX = torch.rand(101, 96, generator=torch.Generator().manual_seed(3)) * 4 + 0.1
    whole = function(x_LX)
    for start, stop in ((0, 1), (5, 10), (0, 16), (16, 32), (32, 48), (48, 96), (1, 90)):
        assert torch.equal(function(x_LX[:, start:stop]), whole[:, start:stop])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 33])
def test_halves_add_up(size: int) -> None:
    x = torch.rand(5, size, 3, generator=torch.Generator().manual_seed(size))
    assert torch.allclose(sum_in_halves(x, 1), x.sum(1))
