"""A row's bits are its own prefix's: kernels against themselves, in the interpreter; tests/gpu has the
device."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from eyas.attention import triton as backend
from eyas.attention.triton import TritonAttention
from eyas.cache.store import KVScales, LayerStore
from eyas.kernels import attention
from tests.attention.scenes import Lane, build, quantised, random_parents
from tests.kernels.test_attention_nodes import attend, chain
from tests.kernels.test_attention_paths import interpreted, poisoned
from tests.thorough import only_thorough

__all__ = ["interpreted"]

pytestmark = [
    pytest.mark.usefixtures("interpreted"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="these scenes live on the CPU"),
]


@pytest.mark.parametrize("is_chain", [True, False])
def test_how_work_is_shared_out_changes_no_bit(
    is_chain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LayerStore(3, 1, 16, window=700)
    parents = chain(6) if is_chain else random_parents(random.Random(2), 6)
    lanes = [Lane(1030, 0, parents), Lane(510, 0, chain(4))]
    scene = build(lanes, store, torch.float32, 7, is_chain=is_chain)
    plain = attend(scene, heights=(16,))
    monkeypatch.setattr("eyas.kernels.attention.PROGRAMS", 1)
    assert torch.equal(attend(scene, heights=(16,)), plain)
    monkeypatch.setattr(backend, "MANY_PROGRAMS", 1)
    assert torch.equal(attend(scene, heights=(16,)), plain)
    scene.layout = replace(scene.layout, max_position=1_000_000)
    assert torch.equal(attend(scene, heights=(32,)), plain)


@pytest.mark.parametrize("window", [None, 100])
def test_one_group_is_answered_at_once_with_the_same_bits(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, sinks_N = LayerStore(6, 2, 16, window=window), torch.tensor([0.5, 9.0, 4.0, -3, 1, 0])
    lanes = [Lane(400, 0, chain(6)), Lane(0, 0, chain(6)), Lane(127, 0, chain(6))]
    scene = build(lanes, store, torch.float16, 3, is_chain=True, num_padding=0)
    scene.layout = replace(scene.layout, max_position=510)
    merges = []
    launch = attention.merge_splits_kernel.__class__.__getitem__
    monkeypatch.setattr(
        attention.merge_splits_kernel.__class__,
        "__getitem__",
        lambda kernel, grid: merges.append(kernel) or launch(kernel, grid),
    )
    for heights in ((16,), (32,)):
        parts = attend(scene, heights=heights, sinks_N=sinks_N)
        assert attention.merge_splits_kernel in merges
        merges.clear()
        with monkeypatch.context() as crowded:
            crowded.setattr(backend, "MANY_PROGRAMS", 1)
            whole = attend(scene, heights=heights, sinks_N=sinks_N)
        assert attention.merge_splits_kernel not in merges
        assert torch.equal(whole, parts)


@pytest.mark.parametrize(
    ("start", "store", "has_sinks", "scales"),
    [
        (125, LayerStore(8, 1, 64), True, None),
        (507, LayerStore(3, 1, 32), False, None),
        (509, LayerStore(4, 2, 16, window=16), True, KVScales(0.3, 1.7)),
        (509, LayerStore(2, 1, 160, value_dim=144), True, None),
        *only_thorough(
            (0, LayerStore(4, 2, 16), False, None),
            (509, LayerStore(6, 1, 160, value_dim=144), True, None),
            (509, LayerStore(4, 2, 16, window=16), False, None),
            (125, LayerStore(32, 1, 48, value_dim=32), False, KVScales(0.02)),
        ),
    ],
    ids=str,
)
def test_a_row_has_the_same_bits_however_it_is_computed(
    start: int, store: LayerStore, has_sinks: bool, scales: KVScales | None
) -> None:
    """Positions start.. of one text: as a chunk, as single tokens, as a chain, hidden in a tree.

    scales: of a cache of FP8.
    """
    count = 6
    generator = torch.Generator().manual_seed(start)
    text = torch.randn(start + count, *store.slot_shape, generator=generator)
    queries = torch.randn(start + count, store.num_query_heads, store.head_dim, generator=generator)
    sinks_N = torch.randn(store.num_query_heads, generator=generator) if has_sinks else None

    def run(lanes: list[Lane], picks: list[int], *, is_chain: bool) -> torch.Tensor:
        """The first lane speaks the text; `picks` are the rows of text positions in order."""
        scene = build(lanes, store, torch.float16, 7, is_chain=is_chain)
        lane = lanes[0]
        slots = scene.layout.slots_AC[0, : lane.stored]
        scene.kv.layers[0][slots] = text[: lane.stored].half()
        for offset, row in enumerate(picks):
            scene.k_TGH[row] = text[lane.stored + offset, 0]
            scene.v_TGH[row] = text[lane.stored + offset, -1]
            scene.q_TNH[row] = queries[lane.stored + offset]
        if scales is not None:
            scene = quantised(scene, scales)
        return attend(scene, sinks_N=sinks_N)[picks]

    whole = run([Lane(start, count, None)], list(range(count)), is_chain=False)
    for offset in (0, 4):
        single = run([Lane(start + offset, 0, [-1])], [0], is_chain=True)
        assert torch.equal(single[0], whole[offset])
    chained = run([Lane(start, 0, chain(count))], list(range(count)), is_chain=True)
    assert torch.equal(chained, whole)
    hidden = [-1, 0, 0, 2, 2, 1, 4, 6, 6, 8]  # the text is 0, 2, 4, 6, 8, 9
    others = [Lane(300, 0, [-1, 0, 0]), Lane(9, 0, [-1])]
    tree = run([Lane(start, 0, hidden), *others], [0, 2, 4, 6, 8, 9], is_chain=False)
    assert torch.equal(tree, whole)
    crowd = [Lane(start, count, None), Lane(200, 3, None)]
    assert torch.equal(run(crowd, list(range(count)), is_chain=False), whole)


def test_nodes_that_are_no_queries_are_seen_all_the_same() -> None:
    """An inner draft step asks for the frontier alone, above it all that was expanded before."""
    store = LayerStore(4, 2, 16)
    parents = [-1, 0, 0, 1, 2, 2, 4]
    scene = build([Lane(120, 0, parents), Lane(9, 0, parents)], store, torch.float32, 8)
    whole = attend(scene, heights=(16,))
    plan = TritonAttention(scene.kv, heights=(16,)).plan
    rows_BW = torch.full((2, 7), -1)
    rows_BW[:, 4:] = torch.arange(6).view(2, 3)
    assert scene.layout.nodes is not None
    layout = replace(scene.layout, nodes=replace(scene.layout.nodes, rows_BW=rows_BW))
    picks = [4, 5, 6, 11, 12, 13]
    with poisoned():
        out = plan(layout, scene.write_slots_T[picks])(0, scene.q_TNH[picks])
    assert torch.equal(out, whole[picks])
