"""Attention kernels against a dense softmax in float64, in the interpreter; tests/gpu has the device.

Legend: T rows, N query heads, G key/value heads, H head dim, B sequences, W nodes.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from eyas.attention.triton import TritonAttention
from eyas.cache.store import KVScales, LayerStore
from tests.attention.scenes import (
    Lane,
    Scene,
    build,
    dense,
    quantised,
    random_parents,
    with_window_slots,
)
from tests.kernels.test_attention_paths import interpreted, poisoned
from tests.thorough import drawn, only_thorough

__all__ = ["interpreted"]

pytestmark = [
    pytest.mark.usefixtures("interpreted"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="these scenes live on the CPU"),
]
TOLERANCE = {torch.float32: 3e-6, torch.float16: 4e-3}


def attend(scene: Scene, *, sinks_N: torch.Tensor | None = None, **options: object) -> torch.Tensor:
    """[T, N, H], with nothing but numbers that are none in unused slots and fresh memory."""
    layer = scene.kv.layers[0]
    if layer.dtype == scene.kv.dtype:
        layer[layer.isinf()] = float("nan")
    attention = TritonAttention(scene.kv, **options)  # type: ignore[arg-type]
    with poisoned():
        plan = attention.plan(scene.layout, scene.write_slots_T)
        scene.store(plan.destination(0))
        out_TNH = plan(0, scene.q_TNH, sinks_N)
    (store,) = scene.kv.stores
    assert out_TNH.shape == (*scene.q_TNH.shape[:2], store.output_dim)
    assert out_TNH.dtype == scene.q_TNH.dtype
    assert bool(out_TNH[len(scene.seen) :].isfinite().all())
    return out_TNH[: len(scene.seen)]


def check(scene: Scene, store: LayerStore, **options: object) -> None:
    expected = dense(scene, store)
    error = (attend(scene, **options).double() - expected).abs().max().item()
    assert error < TOLERANCE[scene.q_TNH.dtype], error


def chain(size: int) -> list[int]:
    return list(range(-1, size - 1))


def mixed_lanes(draw: random.Random, *, is_chain: bool) -> list[Lane]:
    """Trees or chains around borders of splits and groups, two of them with a chunk, and a prompt."""

    def parents(size: int) -> list[int]:
        return chain(size) if is_chain else random_parents(draw, size)

    return [
        Lane(draw.choice([126, 127, 128, 130]), 0, parents(5)),
        Lane(draw.choice([0, 1, 63, 64]), 0, parents(draw.randint(1, 5))),
        Lane(draw.choice([250, 509, 512, 515]), draw.choice([1, 9]), parents(draw.randint(1, 4))),
        Lane(draw.choice([0, 100, 505]), draw.choice([5, 40]), None),
    ]


def few_lanes(draw: random.Random, *, is_chain: bool) -> list[Lane]:
    """Of `mixed_lanes` one around the border of a split and one with a chunk; all in `make laws`."""
    return mixed_lanes(draw, is_chain=is_chain)[:: drawn(2, 1)]


@pytest.mark.parametrize(
    ("heads", "is_chain", "dtype"),
    [
        ((8, 2, 32), True, torch.float16),
        ((8, 2, 32), False, torch.float16),
        ((3, 1, 16), False, torch.float32),
        ((5, 1, 80), False, torch.float32),
        ((14, 2, 16), True, torch.float32),
        ((2, 2, 96), True, torch.float16),
    ],
)
def test_every_row_sees_its_own_prefix(
    heads: tuple[int, int, int], is_chain: bool, dtype: torch.dtype
) -> None:
    draw = random.Random(f"{heads} {is_chain}")
    store = LayerStore(*heads)
    check(build(mixed_lanes(draw, is_chain=is_chain), store, dtype, 1, is_chain=is_chain), store)


@pytest.mark.parametrize(
    ("heads", "value_dim", "is_chain", "dtype"),
    [
        ((8, 2, 32), None, False, torch.float16),
        ((5, 1, 80), None, True, torch.float32),
        ((18, 1, 48), 32, False, torch.float16),
    ],
)
def test_what_is_stored_in_a_byte_is_read_with_its_scale(
    heads: tuple[int, int, int], value_dim: int | None, is_chain: bool, dtype: torch.dtype
) -> None:
    store = LayerStore(*heads, value_dim=value_dim, scale=0.15)
    lanes = few_lanes(random.Random(f"{heads}"), is_chain=is_chain)
    scene = build(lanes, store, dtype, 1, is_chain=is_chain, is_coarse=True)
    out_TNH = attend(quantised(scene, KVScales(0.5, 2.0)))
    error = (out_TNH.double() - dense(scene, store)).abs().max().item()
    assert error < TOLERANCE[dtype], error


@pytest.mark.parametrize(
    ("heads", "value_dim", "is_chain", "dtype"),
    [
        ((18, 1, 48), 32, False, torch.float16),
        ((5, 1, 88), 80, False, torch.float32),
        ((18, 1, 160), 144, True, torch.float16),
        *only_thorough(
            ((2, 1, 160), 128, False, torch.float32),
            ((32, 1, 48), 32, False, torch.float16),
            ((32, 1, 48), 32, True, torch.float16),
            ((4, 1, 288), 256, False, torch.float16),
        ),
    ],
)
def test_values_may_be_a_part_of_keys(
    heads: tuple[int, int, int], value_dim: int, is_chain: bool, dtype: torch.dtype
) -> None:
    """Latent attention: one row a slot, read by several tiles of heads."""
    draw = random.Random(f"{heads} {is_chain}")
    store = LayerStore(*heads, first_position=1, scale=0.15, value_dim=value_dim)
    check(build(few_lanes(draw, is_chain=is_chain), store, dtype, 1, is_chain=is_chain), store)


@pytest.mark.parametrize(
    ("window", "first_position", "is_chain"),
    [
        (16, 0, True),
        (1, 0, False),
        (130, 0, False),
        (None, 1, True),
        (None, 129, False),
        (40, 5, False),
    ],
)
def test_windows_and_first_positions(
    window: int | None, first_position: int, is_chain: bool
) -> None:
    draw = random.Random(f"{window} {first_position} {is_chain}")
    store = LayerStore(2, 1, 16, window=window, first_position=first_position)
    lanes = few_lanes(draw, is_chain=is_chain)
    check(build(lanes, store, torch.float32, 2, is_chain=is_chain), store)


@pytest.mark.parametrize("heads", [(32, 1, 16), (8, 8, 16), (20, 1, 16)])
def test_tiles_hold_the_heads_of_a_group(heads: tuple[int, int, int]) -> None:
    store = LayerStore(*heads, scale=0.7)
    check(
        build([Lane(140, 3, random_parents(random.Random(1), 6))], store, torch.float32, 3), store
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_rows_wider_than_a_block(dtype: torch.dtype) -> None:
    store = LayerStore(4, 1, 256)
    check(build([Lane(150, 3, [-1, 0, 0, 2])], store, dtype, 4), store)


def test_sinks_take_their_part() -> None:
    store, sinks_N = LayerStore(4, 2, 16), torch.tensor([0.5, -3.0, 4.0, -1e4])
    for is_chain in (True, False):
        draw = random.Random(5)
        lanes = mixed_lanes(draw, is_chain=is_chain)
        scene = build(lanes, store, torch.float32, 5, is_chain=is_chain)
        expected = dense(scene, store, sinks_N)
        out = attend(scene, sinks_N=sinks_N)
        assert (out.double() - expected).abs().max().item() < 3e-6


def test_a_path_may_reach_into_a_third_split() -> None:
    store = LayerStore(2, 1, 16)
    scene = build([Lane(127, 0, chain(135))], store, torch.float32, 6)
    error = (attend(scene).double() - dense(scene, store)).abs().max().item()
    assert error < 3e-6, error


@pytest.mark.parametrize("is_chain", [True, False])
def test_rows_past_the_last_position_do_no_harm(is_chain: bool) -> None:
    store = LayerStore(4, 2, 16)
    scene = build([Lane(126, 0, chain(8))], store, torch.float32, 9, is_chain=is_chain)
    whole = attend(scene)
    layout = scene.layout
    layout = replace(layout, max_position=128, slots_AC=layout.slots_AC[:, :129].contiguous())
    with poisoned():
        out = TritonAttention(scene.kv).plan(layout, scene.write_slots_T)(0, scene.q_TNH)
    assert torch.equal(out[:3], whole[:3]) and bool(out.isfinite().all())


@pytest.mark.parametrize("is_chain", [True, False])
def test_layers_with_a_window_may_have_slots_of_their_own(is_chain: bool) -> None:
    store = LayerStore(4, 2, 16, window=100)
    lanes = few_lanes(random.Random(8), is_chain=is_chain)
    plain = build(lanes, store, torch.float32, 1, is_chain=is_chain)
    expected = attend(plain)
    assert torch.equal(attend(with_window_slots(plain, lanes)), expected)
    crowded = replace(plain.layout, max_position=1_000_000)
    assert torch.equal(attend(replace(with_window_slots(plain, lanes), layout=crowded)), expected)


def test_layers_of_one_model_may_differ() -> None:
    stores = [LayerStore(4, 2, 16), LayerStore(6, 1, 32, window=20), LayerStore(4, 2, 16, window=9)]
    lanes = [Lane(200, 3, [-1, 0, 0, 1]), Lane(4, 9, None)]
    scenes = [build(lanes, store, torch.float32, 10) for store in stores]
    kv = scenes[0].kv
    kv.stores, kv.layers = tuple(stores), [scene.kv.layers[0] for scene in scenes]
    kv.scales = kv.scales * len(stores)
    kv.keys, kv.values = ([scene.kv.layers[0].select(1, i) for scene in scenes] for i in (0, 1))
    with poisoned():
        plan = TritonAttention(kv).plan(scenes[0].layout, scenes[0].write_slots_T)
        for layer, (scene, store) in enumerate(zip(scenes, stores, strict=True)):
            scene.layout = scenes[0].layout
            scene.store(plan.destination(layer))
            out = plan(layer, scene.q_TNH)[: len(scene.seen)].double()
            assert (out - dense(scene, store)).abs().max().item() < 3e-6


def test_a_forward_without_rows() -> None:
    store = LayerStore(4, 2, 16)
    scene = build([Lane(3, 0, [-1])], store, torch.float32, 11)
    layout = replace(scene.layout, nodes=None)
    out = TritonAttention(scene.kv).plan(layout, scene.write_slots_T[:0])(0, scene.q_TNH[:0])
    assert out.shape == (0, 4, 16)
