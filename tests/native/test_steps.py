"""Rows of steps by compiled code: what the torch bodies return, entry by entry."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import random
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from eyas.attention.base import AttentionLayout, NodeGrid
from eyas.attention.lanes import Lanes, node_lanes
from eyas.cache.slots import NULL_SLOT
from eyas.draft_tree import DraftTree
from eyas.native import steps
from eyas.native.build import Built, ConditionChanged
from eyas.native.steps import compiled, compiled_steps
from eyas.ops import noise
from eyas.ops.add_level import Frontier, PoolStorage, add_level
from eyas.ops.advance import advance
from eyas.ops.choose import choose_processed
from eyas.ops.dispatch import Operation
from eyas.ops.keep_best import keep_best
from eyas.ops.level_rows import level_rows
from eyas.ops.node_rows import node_rows
from eyas.ops.table import TableSequences
from eyas.ops.tail_rows import tail_rows
from eyas.ops.top_tokens import top_tokens
from eyas.ops.walk import walk
from eyas.runner.recording import record

pytestmark = pytest.mark.skipif(compiled().library is None, reason="there is no C compiler")
CPU = torch.device("cpu")
INFINITE, NO_NUMBER = float("inf"), float("nan")
SEEDS = range(12)


def flat(result: Any) -> Iterator[Any]:
    """All tensors of a result, and None where there is none."""
    if dataclasses.is_dataclass(result):
        result = [getattr(result, each.name) for each in dataclasses.fields(result)]
    if isinstance(result, list | tuple):
        for each in result:
            yield from flat(each)
    else:
        yield result


def same(one: Any, other: Any) -> bool:
    pairs = zip(flat(one), flat(other), strict=True)
    return all(
        torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) if isinstance(a, torch.Tensor) else a == b
        for a, b in pairs
    )


def tree_of(draw: random.Random, num: int, width: int, *, is_chain: bool) -> DraftTree:
    tokens_BW = torch.tensor([[draw.randrange(4) for _ in range(width)] for _ in range(num)])
    parents = [[-1, *(draw.randrange(w) for w in range(1, width))] for _ in range(num)]
    parents_BW = torch.tensor(parents)
    if is_chain:
        parents_BW = torch.arange(-1, width - 1).expand(num, -1)
    sizes_B = torch.tensor([draw.randint(1, width) for _ in range(num)])
    return DraftTree(tokens_BW, parents_BW, sizes_B, is_chain)


def table_of(draw: random.Random, num: int, width: int) -> TableSequences:
    """Sequences of a table whose entries all differ; the last two are in one seat, as padding is."""
    num_seats, num_columns = num + 2, 60
    numbers = torch.arange(2 * num_seats * num_columns).view(2, num_seats, num_columns)
    seats = draw.sample(range(num_seats), num)
    if num > 2:
        seats[-1] = seats[-2]
    roots = [draw.randrange(30) for _ in seats]
    if num > 2:
        roots[-1] = roots[-2]
    node_slots_BW = torch.arange(90_000, 90_000 + num * (width + 1)).view(num, -1)
    if num > 2:
        node_slots_BW[-1] = node_slots_BW[-2]
    last = draw.choice((25, 59))
    seats_B, roots_B = torch.tensor(seats), torch.tensor(roots)
    return TableSequences(*numbers.clone().unbind(0), seats_B, roots_B, node_slots_BW, last)


def bodies(operation: Operation[Any, Any, Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    assert operation.by_native is not None
    return operation.by_native, operation.by_torch


def check(operation: Operation[Any, Any, Any], make: Callable[[], tuple[Any, ...]]) -> Any:
    """Both bodies return the same of the same arguments, and leave the same in them."""
    native, by_torch = bodies(operation)
    arguments, others = make(), make()
    found, expected = native(*arguments), by_torch(*others)
    assert same(found, expected)
    return arguments, others, found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_chain", [True, False])
def test_rows_of_nodes(seed: int, is_chain: bool) -> None:
    def make() -> tuple[Any, ...]:
        draw = random.Random(seed)
        num, width = draw.randint(1, 4), draw.randint(1, 7)
        return tree_of(draw, num, width, is_chain=is_chain), table_of(draw, num, width)

    arguments, others, _ = check(node_rows, make)
    assert same(arguments[1], others[1])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("has_drafts", [True, False])
def test_rows_of_tails(seed: int, has_drafts: bool) -> None:
    def make() -> tuple[Any, ...]:
        draw = random.Random(seed)
        num = draw.randint(1, 4)
        table = table_of(draw, num, 3)
        longest = draw.randint(1, 6)
        made_A = torch.full((len(table.tokens_AC),), 40)
        for seat, root in zip(table.seats_B.tolist(), table.roots_B.tolist(), strict=True):
            made_A[seat] = max(0, root - draw.randrange(longest))
        drafts_B = torch.tensor([draw.random() < 0.7 for _ in range(num)])
        if num > 2:
            drafts_B[-1] = drafts_B[-2]
        return made_A, drafts_B if has_drafts else None, table, longest, NULL_SLOT

    arguments, others, _ = check(tail_rows, make)
    assert same(arguments[0], others[0]) and same(arguments[2], others[2])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("topk", [1, 2, 4])
def test_levels_grow_into_the_same_trees(seed: int, topk: int) -> None:
    """Level after level, with scores of which some are alike, infinite or no numbers."""
    states = {}
    for body in (0, 1):
        draw = random.Random(seed)
        num, depth = draw.randint(1, 3), 3
        table = table_of(draw, num, 9)
        pool = PoolStorage.new(num, topk + (depth - 1) * topk * topk, CPU)
        for each in pool:
            each.zero_()
        frontier, parents_BW, start = Frontier.of_roots(num, CPU), None, 0
        results: list[Any] = []
        odd = (0.0, -1.0, -INFINITE, NO_NUMBER) if seed % 2 else (0.0, -1.0, -1.5)
        states_RF = torch.arange(num * 5.0).view(num, 5)
        for _ in range(depth):
            width = frontier.pool_BQ.shape[1]
            shape = (num, width, topk)
            scores = sorted((draw.choice(odd) for _ in range(num * width * topk)), reverse=True)
            tokens_BQJ = torch.tensor([draw.randrange(9) for _ in scores]).view(shape)
            scores_BQJ = torch.tensor(scores).view(shape).sort(2, descending=True).values
            arguments = (tokens_BQJ, scores_BQJ, frontier, pool, start, topk)
            frontier, parent_BQ = bodies(add_level)[body](*arguments)
            start += width * topk
            results += [frontier, parent_BQ]
            arguments = (frontier.path_BQP, parent_BQ, parents_BW, states_RF, table, 500, 40)
            below = bodies(level_rows)[body](*arguments)
            states_RF = below.states_RF
            parents_BW = None if below.inner is None else below.inner.parents_BW
            results.append(below)
        roots_B1 = torch.arange(num).unsqueeze(1)
        for nodes in (2, 4, 100):
            arguments = (roots_B1, pool, start, nodes, topk == 1)
            results.append(bodies(keep_best)[body](*arguments))
        states[body] = (results, pool, table)
    assert same(states[0], states[1])


@pytest.mark.parametrize("seed", SEEDS)
def test_the_most_likely_tokens(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits_RU = torch.randn((3, 900), generator=generator)[:, : 400 + seed] * 5
    target_ids_U = torch.randperm(2000, generator=generator)[: logits_RU.shape[1]]
    rest = (None, None, None, torch.zeros(3), torch.zeros(3), None, None)
    for num, ids in itertools.product((1, 4), (None, target_ids_U)):
        native, by_torch = bodies(top_tokens)
        found, expected = (body(logits_RU, ids, num, 2000, *rest) for body in (native, by_torch))
        assert torch.equal(found[0], expected[0])
        assert torch.allclose(found[1], expected[1], atol=1e-5)


def keys_of(seed: int, num: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    seeds = torch.randint(-(2**63), 2**63 - 1, (num,), generator=generator)
    return seeds, *torch.randint(0, 9000, (2, num), generator=generator).unbind(0)


@pytest.mark.parametrize("seed", SEEDS)
def test_noise(seed: int) -> None:
    keys = keys_of(seed, 3)
    native, by_torch = bodies(noise.gumbel)
    expected_RV, found_RV = by_torch(*keys, 1003), native(*keys, 1003)
    assert torch.allclose(found_RV, expected_RV, rtol=1e-5, atol=1e-5)
    ids_RK = torch.randint(0, 1003, (3, 50), generator=torch.Generator().manual_seed(seed))
    native_at, at_by_torch = bodies(noise.gumbel_at)
    assert torch.equal(native_at(*keys, ids_RK), found_RV.gather(1, ids_RK))
    assert torch.equal(at_by_torch(*keys, ids_RK), expected_RV.gather(1, ids_RK))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("noisy", [(True,) * 4, (True, False, True, False)])
def test_choices_with_noise(seed: int, noisy: tuple[bool, ...]) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits_RV = torch.randn((9, 700), generator=generator) * (0.5, 3.0, 30.0)[seed % 3]
    logits_RV[1, 50:] = -INFINITE
    logits_RV[2, 7], logits_RV[3] = NO_NUMBER, -INFINITE
    temperature_B = torch.tensor([0.7 if each else 0.0 for each in noisy])
    seed_B, position_R, choice_B = keys_of(seed, 9)
    sequence_R = torch.tensor([0, 0, 1, 1, 2, 3, 3, 0, 1])
    arguments = (logits_RV, sequence_R, position_R, temperature_B, seed_B, choice_B, noisy)
    native, by_torch = bodies(choose_processed)
    found_R = native(*arguments)
    assert torch.equal(found_R, by_torch(*arguments))
    assert found_R[2] == found_R[3] == -1 and (found_R[4:] >= 0).all() and found_R[1] < 50


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("has_betas", [True, False])
def test_the_most_likely_tokens_with_noise(
    seed: int, has_betas: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eyas.ops.top_tokens.SHORTLIST", 400)  # all of them
    generator = torch.Generator().manual_seed(seed)
    logits_RU = torch.randn((4, 400), generator=generator) * 4
    target_ids_U = torch.randperm(2000, generator=generator)[:400]
    sequence_R, position_R = torch.tensor([0, 2, 1, 2]), torch.arange(4) + seed
    seed_B, _, choice_B = keys_of(seed, 3)
    temperature_B, beta_B = torch.tensor([0.5, 0.0, 1.3]), torch.tensor([0.4, 1.0, 0.9])
    arguments = (logits_RU, target_ids_U, 6, 2000, sequence_R, position_R, temperature_B)
    arguments += (seed_B, choice_B, beta_B if has_betas else None, None)
    found, expected = (body(*arguments) for body in bodies(top_tokens))
    assert torch.equal(found[0], expected[0])
    assert torch.allclose(found[1], expected[1], atol=1e-4)


def test_equal_and_odd_logits() -> None:
    of = compiled_steps(CPU)
    assert of is not None
    logits_RV = torch.zeros(5, 70)
    logits_RV[1, 60:] = 2.0
    logits_RV[2, 3], logits_RV[2, 69] = 9.0, NO_NUMBER
    logits_RV[3, 5] = INFINITE
    logits_RV[4] = -INFINITE
    assert of.best(logits_RV).tolist() == [0, 60, -1, -1, -1]
    ids_RJ, scores_RJ = of.top_tokens(logits_RV, None, 3)
    assert ids_RJ[:2].tolist() == [[0, 1, 2], [60, 61, 62]]
    assert scores_RJ[2:].isnan().all() and ((ids_RJ >= 0) & (ids_RJ < 70)).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_chain", [True, False])
def test_walks_and_what_they_append(seed: int, is_chain: bool) -> None:
    draw = random.Random(seed)
    num, width = draw.randint(1, 4), draw.randint(1, 7)
    tree = tree_of(draw, num, width, is_chain=is_chain)
    if not is_chain:  # siblings differ
        tree.tokens_BW += 10 * torch.arange(width)
    chosen = [[draw.choice((-1, 0, 1, 2, 3)) for _ in range(width)] for _ in range(num)]
    chosen_BW = torch.tensor(chosen)
    for b, w in itertools.product(range(num), range(1, width)):
        if draw.random() < 0.8:
            chosen_BW[b, tree.parents_BW[b, w]] = tree.tokens_BW[b, w]
    found, expected = (body(chosen_BW, tree) for body in bodies(walk))
    assert torch.equal(found[:, -1], expected[:, -1])
    for b, count in enumerate(found[:, -1].tolist()):
        stop = max(0, count)
        assert torch.equal(found[b, :stop], expected[b, :stop])
        assert torch.equal(found[b, width : width + stop], expected[b, width : width + stop])
    tables, lengths = [], []
    for body in bodies(advance):
        draw = random.Random(seed)
        table = table_of(draw, num, width)
        table.tokens_AC[:, -1] = table.slots_AC[:, -1] = 0
        lengths_A = torch.ones(len(table.tokens_AC), dtype=torch.int64)
        padding_seat = int(table.seats_B[-1]) if num > 2 else -1
        body(expected, table, lengths_A, is_chain, padding_seat)
        table.tokens_AC[:, -1] = table.slots_AC[:, -1] = (
            0  # torch's body puts away what is not kept
        )
        tables.append(table)
        lengths.append(lengths_A)
    assert same(tables[0], tables[1]) and torch.equal(*lengths)


def seen(lanes: Lanes) -> dict[int, tuple[int, list[int]]]:
    """By row of the forward pass: the position of its query, and the slots up to it."""
    found = {}
    for slots, rows, positions in zip(
        lanes.slots_YL.tolist(), lanes.rows_YQ.tolist(), lanes.positions_YQ.tolist(), strict=True
    ):
        last = max(p for row, p in zip(rows, positions, strict=True) if row >= 0)
        assert all(slot == NULL_SLOT for slot in slots[last + 1 :])
        for row, position in zip(rows, positions, strict=True):
            if row >= 0:
                assert row not in found
                found[row] = position, slots[: position + 1]
    return found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_chain", [True, False])
def test_queries_see_the_same_keys(seed: int, is_chain: bool) -> None:
    draw = random.Random(seed)
    num, width = draw.randint(1, 4), draw.randint(1, 7)
    table = table_of(draw, num, width)
    tree = tree_of(draw, num, width, is_chain=is_chain)
    nodes = node_rows.by_torch(tree, table)
    grid = NodeGrid(nodes.grid_BW, nodes.slots_BW, table.roots_B, tree.branch_parents)
    layout = AttentionLayout(table.slots_AC, table.seats_B, 50, nodes=grid)
    found = seen(node_lanes(grid, layout, may_repeat=True))
    assert found == seen(node_lanes.by_torch(grid, layout))
    assert len(found) == len(nodes.rows_R)


def test_a_call_that_is_made_again_owns_its_tensors() -> None:
    draw = random.Random(0)
    tree, table = tree_of(draw, 2, 4, is_chain=False), table_of(draw, 2, 4)
    owned = [weakref.ref(each) for each in (tree.tokens_BW, tree.parents_BW, tree.sizes_B)]
    stage = partial(node_rows, tree, table)
    recording, _ = record(stage)
    del tree, stage
    assert all(each() is not None for each in owned)
    del recording
    gc.collect()
    assert all(each() is None for each in owned)


def test_a_number_of_rows_that_changes_is_noticed() -> None:
    draw = random.Random(0)
    tree, table = tree_of(draw, 2, 4, is_chain=True), table_of(draw, 2, 4)
    tree.sizes_B.copy_(torch.tensor([2, 3]))
    recording, rows = record(lambda: node_rows(tree, table))
    tree.sizes_B.copy_(torch.tensor([3, 2]))
    recording.replay()
    assert rows.sequence_R.tolist() == [0, 0, 0, 1, 1]
    tree.sizes_B.fill_(4)
    with pytest.raises(ConditionChanged, match="node_rows"):
        recording.replay()


def test_without_a_compiler_torch_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "compiled", lambda: Built(None, "no compiler"))
    compiled_steps.cache_clear()
    try:
        assert compiled_steps(CPU) is None
        draw = random.Random(1)
        tree, table = tree_of(draw, 2, 3, is_chain=True), table_of(draw, 2, 3)
        assert same(node_rows(tree, table), node_rows.by_torch(tree, table))
    finally:
        compiled_steps.cache_clear()
