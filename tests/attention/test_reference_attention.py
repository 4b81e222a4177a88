"""The reference backend against a dense softmax in float64, and against itself, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from eyas.attention import reference
from eyas.attention.lanes import Lanes
from eyas.attention.reference import ReferenceAttention
from eyas.attention.tiles import Tiles
from eyas.cache.store import KVScales, LayerStore
from eyas.models import cpu_has_bfloat16
from eyas.native.attention import compiled
from tests.attention.scenes import Lane, Scene, build, dense, random_parents
from tests.thorough import drawn, pairs

LATENT = LayerStore(8, 1, 48, scale=0.2, value_dim=32)
GROUPS = [(4, 4), (4, 2), (8, 1), (6, 2), (16, 1), (3, 1)]
DTYPES = ["float32", "bfloat16", "float32 by torch", "bfloat16 by torch"]
EDGES = [0, 1, 2, 7, 63, 64, 100, 190, 191, 192, 193, 251, 382, 383, 384, 385]


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """The number format, attended to by compiled code or by torch."""
    name, _, others = request.param.partition(" ")
    if others:
        monkeypatch.setattr(reference, "compiled_attention", lambda *_, **__: None)
        if name == "bfloat16" and not cpu_has_bfloat16():
            pytest.skip("torch is not exact here: this processor has no bfloat16")
    elif compiled().library is None:
        pytest.skip("there is no C compiler, or the processor has no vectors")
    return getattr(torch, name)


def attend(scene: Scene, sinks_N: torch.Tensor | None = None) -> torch.Tensor:
    plan = ReferenceAttention(scene.kv).plan(scene.layout, scene.write_slots_T)
    scene.store(plan.destination(0))
    out = plan(0, scene.q_TNH, sinks_N)
    (store,) = scene.kv.stores
    assert out.shape == (*scene.q_TNH.shape[:2], store.output_dim)
    assert out.dtype == scene.q_TNH.dtype
    return out[: len(scene.seen)]


def assert_close(scene: Scene, store: LayerStore, sinks_N: torch.Tensor | None = None) -> None:
    expected = dense(scene, store, sinks_N)
    error = (attend(scene, sinks_N).double() - expected).abs().max().item()
    assert error < (3e-6 if scene.q_TNH.dtype == torch.float32 else 3e-2), error


def random_lanes(draw: random.Random, make_parents: Callable[[int], list[int]]) -> list[Lane]:
    lanes = []
    for i in range(draw.randint(1, 5)):
        stored, context = draw.choice(EDGES), draw.choice([0, 0, 1, 9, 40])
        has_tree = i == 0 or draw.random() < 0.7
        if not has_tree and not context:
            context = 5
        lanes.append(Lane(stored, context, make_parents(draw.randint(1, 9)) if has_tree else None))
    return sorted(lanes, key=lambda lane: lane.parents is None)


@pytest.mark.parametrize(
    ("heads", "window", "dtype"), pairs(GROUPS, [None, 16, 1], DTYPES), indirect=["dtype"]
)
def test_trees_see_their_own_path(
    heads: tuple[int, int], window: int | None, dtype: torch.dtype
) -> None:
    store = LayerStore(*heads, 16, window=window)
    for seed in range(drawn(3, 5)):
        draw = random.Random(f"{heads} {window} {seed}")
        lanes = random_lanes(draw, lambda size: random_parents(draw, size))  # noqa: B023
        assert_close(build(lanes, store, dtype, seed), store)


@pytest.mark.parametrize(
    ("heads", "window", "dtype"), pairs(GROUPS, [None, 16], DTYPES), indirect=["dtype"]
)
def test_chains_see_what_came_before(
    heads: tuple[int, int], window: int | None, dtype: torch.dtype
) -> None:
    store = LayerStore(*heads, 16, window=window)
    for seed in range(drawn(3, 5)):
        draw = random.Random(f"{heads} {window} {seed}")
        lanes = random_lanes(draw, lambda size: list(range(-1, size - 1)))
        assert_close(build(lanes, store, dtype, seed, is_chain=True), store)


@pytest.mark.parametrize("stored", [448, 505, 510, 511, 512, 513, 575, 1022, 1024])
def test_lengths_around_every_edge(stored: int) -> None:
    store = LayerStore(4, 2, 16)
    draw = random.Random(stored)
    lanes = [
        Lane(stored, 0, random_parents(draw, 8)),
        Lane(3, 0, random_parents(draw, 5)),
        Lane(stored, 7, random_parents(draw, 3)),
        Lane(stored - 3, 9, None),
    ]
    assert_close(build(lanes, store, torch.float32, stored), store)
    chains = [
        Lane(lane.stored, lane.context, lane.parents and list(range(-1, 5))) for lane in lanes
    ]
    assert_close(build(chains, store, torch.float32, stored, is_chain=True), store)


@pytest.mark.parametrize(
    ("heads", "window", "dtype"), pairs(GROUPS, [None, 16, 1], DTYPES), indirect=["dtype"]
)
def test_sinks_take_their_part(
    heads: tuple[int, int], window: int | None, dtype: torch.dtype
) -> None:
    store = LayerStore(*heads, 16, window=window)
    draw = random.Random(f"{heads} {window}")
    sinks_N = torch.tensor([draw.choice([0.5, -3.0, 4.0, 30.0, -1e4]) for _ in range(heads[0])])
    chains = random_lanes(draw, lambda size: list(range(-1, size - 1)))
    assert_close(build(chains, store, dtype, 1, is_chain=True), store, sinks_N)
    trees = random_lanes(draw, lambda size: random_parents(draw, size))
    assert_close(build(trees, store, dtype, 2), store, sinks_N)


def test_a_scale_of_the_layer_is_used() -> None:
    store = LayerStore(4, 2, 16, scale=0.9)
    assert_close(build([Lane(20, 4, [-1, 0, 0])], store, torch.float32, 1), store)


@pytest.mark.parametrize("is_chain", [True, False])
@pytest.mark.parametrize(
    "store", [LATENT, LayerStore(16, 1, 40, value_dim=32)], ids=["latent", "part"]
)
def test_values_may_be_a_part_of_keys(
    store: LayerStore, is_chain: bool, dtype: torch.dtype
) -> None:
    for seed in range(drawn(3, 5)):
        draw = random.Random(f"{store} {seed}")
        lanes = random_lanes(
            draw,
            lambda size: list(range(-1, size - 1)) if is_chain else random_parents(draw, size),  # noqa: B023
        )
        scene = build(lanes, store, dtype, seed, is_chain=is_chain)
        assert scene.kv.layers[0].shape[1:] == (1, 1, store.head_dim)
        assert_close(scene, store)


def test_prompts_alone_need_no_tree() -> None:
    store = LayerStore(4, 2, 16)
    assert_close(build([Lane(0, 70, None), Lane(33, 1, None)], store, torch.float32, 2), store)


def test_keys_and_values_lie_in_the_slots_of_their_rows(dtype: torch.dtype) -> None:
    store = LayerStore(4, 2, 16)
    scene = build([Lane(10, 5, [-1, 0, 0, 1])], store, dtype, 3)
    attend(scene)
    count = len(scene.seen)
    stored = scene.kv.layers[0][scene.write_slots_T[:count]]
    assert torch.equal(stored[:, 0], scene.k_TGH[:count])
    assert torch.equal(stored[:, 1], scene.v_TGH[:count])


def test_what_other_slots_hold_does_not_matter(dtype: torch.dtype) -> None:
    """`build` fills them with infinities; not a number is worse."""
    store = LayerStore(4, 2, 16)
    lanes = [Lane(30, 6, [-1, 0, 1, 0]), Lane(5, 0, [-1, 0]), Lane(4, 9, None)]
    clean = attend(build(lanes, store, dtype, 4))
    assert bool(clean.isfinite().all())
    scene = build(lanes, store, dtype, 4)
    layer = scene.kv.layers[0]
    layer[layer.isinf()] = float("nan")
    assert torch.equal(attend(scene), clean)


@pytest.mark.parametrize(
    ("start", "window_and_sinks", "kind", "dtype"),
    pairs(
        [0, 60, 125, 253, 507],
        [(None, False), (16, False), (16, True)],
        [LayerStore(4, 2, 16), LayerStore(8, 1, 64), LayerStore(3, 3, 32), LATENT],
        DTYPES,
    ),
    indirect=["dtype"],
)
def test_a_row_has_the_same_bits_however_it_is_computed(
    start: int, window_and_sinks: tuple[int | None, bool], kind: LayerStore, dtype: torch.dtype
) -> None:
    """Positions start.. of one text: as a chunk, as single tokens, as a chain, hidden in a tree."""
    window, has_sinks = window_and_sinks
    store, count = replace(kind, window=window), 6
    generator = torch.Generator().manual_seed(start)
    text = torch.randn(start + count, *store.slot_shape, generator=generator).to(dtype)
    queries = torch.randn(
        start + count, store.num_query_heads, store.head_dim, generator=generator
    ).to(dtype)
    sinks_N = torch.randn(store.num_query_heads, generator=generator) if has_sinks else None

    def run(lanes: list[Lane], picks: list[int], *, is_chain: bool) -> torch.Tensor:
        """The first lane speaks the text; `picks` are the rows of text positions in order."""
        scene = build(lanes, store, dtype, 7, is_chain=is_chain)
        lane = lanes[0]
        slots = scene.layout.slots_AC[0, : lane.stored]
        scene.kv.layers[0][slots] = text[: lane.stored]
        for offset, row in enumerate(picks):
            scene.k_TGH[row] = text[lane.stored + offset, 0]
            scene.v_TGH[row] = text[lane.stored + offset, -1]
            scene.q_TNH[row] = queries[lane.stored + offset]
        return attend(scene, sinks_N)[picks]

    whole = run([Lane(0, start + count, None)], list(range(start + count)), is_chain=False)[start:]
    chunk = run([Lane(start, count, None)], list(range(count)), is_chain=False)
    assert torch.equal(chunk, whole)
    others = [Lane(600, 0, [-1, 0, 0]), Lane(9, 0, [-1])]
    for offset in range(count):
        single = run([Lane(start + offset, 0, [-1])], [0], is_chain=True)
        assert torch.equal(single[0], whole[offset])
    chain = run([Lane(start, 0, list(range(-1, count - 1)))], list(range(count)), is_chain=True)
    assert torch.equal(chain, whole)
    hidden = [-1, 0, 0, 2, 2, 1, 4, 6, 6, 8]  # the text is 0, 2, 4, 6, 8, 9
    tree = run([Lane(start, 0, hidden), *others], [0, 2, 4, 6, 8, 9], is_chain=False)
    assert torch.equal(tree, whole)
    crowd = [Lane(start, count, None), Lane(600, 3, None), Lane(0, 20, None)]
    assert torch.equal(run(crowd, list(range(count)), is_chain=False), whole)


@pytest.mark.parametrize("head_dim", [4, 6, 10, 14, 20])
def test_a_tile_gives_a_row_the_same_bits_in_any_place(head_dim: int) -> None:
    """Of head dims that no model of any size has; compiled attention is tested with all dims."""
    store = LayerStore(1, 1, head_dim)
    generator = torch.Generator().manual_seed(0)
    kv_S2GH = torch.randn(128, *store.slot_shape, generator=generator)
    q_TNH = torch.randn(128, 1, head_dim, generator=generator)

    def rows(start: int, stop: int) -> torch.Tensor:
        positions = torch.arange(start, stop)
        lanes = Lanes(torch.arange(128)[None], positions[None] - start, positions[None])
        tiles = Tiles(lanes, store, (4,), torch.float32)
        return tiles.run(q_TNH[start:stop], kv_S2GH, KVScales(), None)[: stop - start]

    whole = rows(0, 128)
    for start, stop in ((33, 66), (66, 99), (8, 16), (1, 2), (99, 128)):
        assert torch.equal(rows(start, stop), whole[start:stop])
