"""Attention kernels on the device: right, the same bits however a row is computed, and in a graph.

Legend: T rows, N query heads, H head dim, B sequences, W tree nodes.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from benchmarks.attention import Case, answer, as_prompts, build, error, reference
from eyas.attention import triton as backend
from eyas.attention.base import NodeGrid
from eyas.attention.triton import TritonAttention
from eyas.cache.store import LayerStore
from tests.kernels.test_attention_paths import poisoned

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}
HEADS = [
    (32, 8, 128),
    (32, 8, 64),
    (64, 8, 64),
    (15, 5, 64),
    (14, 2, 64),
    (24, 8, 128),
    (28, 4, 128),
    (8, 8, 96),
]
WIDE_HEADS = [(8, 1, 256), (40, 8, 80), (5, 1, 16), (32, 1, 32)]


def random_roots(draw: random.Random, num: int, longest: int) -> list[int]:
    edges = [1, 2, 63, 64, 127, 128, 129, 255, 256, 511, 512, 513, 1023, 1024]
    return [draw.choice([draw.choice(edges), draw.randint(1, longest)]) for _ in range(num)]


def random_sinks(heads: tuple[int, int, int]) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(heads[0])
    return 3 * torch.randn(heads[0], generator=generator, device="cuda")


def attended(case: Case, sinks_N: torch.Tensor | None = None) -> torch.Tensor:
    with poisoned():
        return answer(case, sinks_N=sinks_N)


@pytest.mark.parametrize("seed", range(24))
def test_any_shape_is_right(seed: int) -> None:
    draw = random.Random(seed)
    num = draw.choice([1, 1, 2, 3, 8, 17, 64])
    window = draw.choice([None, None, 1, 100, 1000])
    store = LayerStore(
        *draw.choice(HEADS), window=window, first_position=draw.choice([0, 0, 1, 70])
    )
    kind = draw.choice(["chain", "tree", "tree", "prompt"])
    width = draw.choice([1, 2, 5, 16, 33, 64] if kind != "prompt" else [1, 65, 300])
    roots = random_roots(draw, num, 32_768 if num <= 3 else 1500)
    if kind == "prompt":
        roots = [root + width for root in roots]
    dtype = draw.choice([torch.bfloat16, torch.bfloat16, torch.float16])
    case = build(
        roots,
        width,
        is_tree=kind == "tree",
        is_prompt=kind == "prompt",
        store=store,
        dtype=dtype,
        seed=seed,
    )
    expected = reference(case)
    assert error(attended(case), expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("window", [None, 128])
@pytest.mark.parametrize("heads", [(64, 8, 64), (14, 2, 64), (40, 8, 80)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_sinks_take_their_part(
    heads: tuple[int, int, int], window: int | None, dtype: torch.dtype
) -> None:
    store, sinks_N = LayerStore(*heads, window=window), random_sinks(heads)
    for is_tree, is_prompt in ((False, False), (True, False), (False, True)):
        for roots in ([700, 140, 512], [1000] * 70):
            case = build(roots, 9, is_tree=is_tree, is_prompt=is_prompt, store=store, dtype=dtype)
            expected = reference(case, sinks_N=sinks_N)
            assert error(attended(case, sinks_N), expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("heads", WIDE_HEADS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_odd_heads_and_float32(heads: tuple[int, int, int], dtype: torch.dtype) -> None:
    store = LayerStore(*heads)
    for is_tree, is_prompt in ((False, False), (True, False), (False, True)):
        case = build(
            [700, 140, 512], 9, is_tree=is_tree, is_prompt=is_prompt, store=store, dtype=dtype
        )
        expected = reference(case)
        assert error(attended(case), expected) < TOLERANCE[dtype]


HIDDEN = [-1, 0, 0, 2, 2, 1, 4, 6, 6, 8]
PATH = [0, 2, 4, 6, 8, 9]


def hidden_in_a_tree(chain: Case) -> Case:
    """The chain's nodes as the path PATH of a tree HIDDEN."""
    num, width = len(chain.roots), len(HIDDEN)
    device = chain.q_TNH.device
    own_BW = chain.write_slots_T.view(num, -1)
    slots_BW = own_BW[:, :1].repeat(1, width)
    slots_BW[:, PATH] = own_BW
    q_BWNH = torch.randn((num, width, *chain.q_TNH.shape[1:]), device=device).to(chain.q_TNH.dtype)
    q_BWNH[:, PATH] = chain.q_TNH.view(num, len(PATH), *chain.q_TNH.shape[1:])
    nodes = NodeGrid(
        rows_BW=torch.arange(num * width, device=device).view(num, width),
        slots_BW=slots_BW,
        roots_B=torch.tensor(chain.roots, device=device),
        parents_BW=torch.tensor([HIDDEN] * num, device=device),
    )
    layout = replace(chain.layout, nodes=nodes)
    return replace(
        chain, layout=layout, write_slots_T=slots_BW.reshape(-1), q_TNH=q_BWNH.flatten(0, 1)
    )


def plain(chain: Case, node: int) -> Case:
    """One node of each chain, as a token of its own."""
    num, width = len(chain.roots), len(chain.parents[0])
    device = chain.q_TNH.device
    nodes = NodeGrid(
        rows_BW=torch.arange(num, device=device).unsqueeze(1),
        slots_BW=chain.write_slots_T.view(num, width)[:, node : node + 1],
        roots_B=torch.tensor(chain.roots, device=device) + node,
    )
    layout = replace(chain.layout, nodes=nodes)
    picks = torch.arange(num, device=device) * width + node
    return replace(
        chain, layout=layout, write_slots_T=chain.write_slots_T[picks], q_TNH=chain.q_TNH[picks]
    )


BITS = [(heads, window, False) for heads in HEADS + WIDE_HEADS for window in (None, 300)]
SINKS = [(heads, window, True) for heads in [(64, 8, 64), (14, 2, 64)] for window in (None, 128)]


@pytest.mark.parametrize(("heads", "window", "has_sinks"), BITS + SINKS)
@pytest.mark.parametrize("num", [1, 5, 40])
def test_a_row_has_the_same_bits_however_it_is_computed(
    heads: tuple[int, int, int],
    window: int | None,
    has_sinks: bool,
    num: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sinks_N = random_sinks(heads) if has_sinks else None
    check_bits(LayerStore(*heads, window=window), num, sinks_N, monkeypatch)


LATENT = [(16, 1, 576, 512), (128, 1, 576, 512), (20, 1, 96, 64), (5, 1, 160, 128)]
"""Query heads, key/value heads, numbers of a stored row, and those of them that are values."""


def latent_store(sizes: tuple[int, int, int, int], window: int | None = None) -> LayerStore:
    *heads, value_dim = sizes
    return LayerStore(*heads, window=window, scale=192**-0.5, value_dim=value_dim)


@pytest.mark.parametrize("sizes", LATENT)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_values_may_be_a_part_of_keys(sizes: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    store = latent_store(sizes)
    for is_tree, is_prompt in ((False, False), (True, False), (False, True)):
        case = build(
            [700, 140, 512], 9, is_tree=is_tree, is_prompt=is_prompt, store=store, dtype=dtype
        )
        assert error(attended(case), reference(case)) < TOLERANCE[dtype]


@pytest.mark.parametrize("sizes", LATENT)
@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("num", [1, 5, 40])
def test_a_row_over_latents_has_the_same_bits(
    sizes: tuple[int, int, int, int],
    window: int | None,
    num: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_bits(latent_store(sizes, window), num, None, monkeypatch)


def check_bits(
    store: LayerStore, num: int, sinks_N: torch.Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows as nodes, chains, trees and prompts, in launches that are divided differently."""
    draw = random.Random(f"{store} {num}")
    roots = random_roots(draw, num, 3000)
    chain = build(roots, len(PATH), store=store, seed=num)
    whole = attended(chain, sinks_N)
    by_node = whole.view(num, len(PATH), *whole.shape[1:])
    for node in (0, 3, 5):
        assert torch.equal(attended(plain(chain, node), sinks_N), by_node[:, node])
    tree = attended(hidden_in_a_tree(chain), sinks_N).view(num, len(HIDDEN), *whole.shape[1:])
    assert torch.equal(tree[:, PATH], by_node)
    prompt = replace(chain, layout=as_prompts(chain))
    assert torch.equal(attended(prompt, sinks_N), whole)
    for many in (1, 1_000_000):
        monkeypatch.setattr(backend, "MANY_PROGRAMS", many)
        assert torch.equal(attended(chain, sinks_N), whole)
        hidden = attended(hidden_in_a_tree(chain), sinks_N).view(num, len(HIDDEN), *whole.shape[1:])
        assert torch.equal(hidden[:, PATH], by_node)
    longer = replace(chain.layout, max_position=40_000)
    assert torch.equal(attended(replace(chain, layout=longer), sinks_N), whole)


@pytest.mark.parametrize("is_tree", [False, True])
@pytest.mark.parametrize("pdl", [False, True])
def test_a_graph_can_be_replayed_with_other_roots(is_tree: bool, pdl: bool) -> None:
    first = build([900, 30, 2000], 8, is_tree=is_tree, num_layers=3, seed=1, max_position=4095)
    other = build([131, 1999, 512], 8, is_tree=is_tree, num_layers=3, seed=2, max_position=4095)
    columns = first.layout.slots_AC.shape[1]
    table = torch.zeros_like(first.layout.slots_AC)
    table[:, : other.layout.slots_AC.shape[1]] = other.layout.slots_AC[:, :columns]
    num_slots = min(len(first.kv.layers[0]), len(other.kv.layers[0]))
    table.clamp_(max=num_slots - 1)
    assert first.layout.nodes is not None and other.layout.nodes is not None
    other.layout.nodes.slots_BW.clamp_(max=num_slots - 1)
    attention = TritonAttention(first.kv, pdl=pdl)
    q_TNH = first.q_TNH.clone()
    sinks: list[torch.Tensor | None] = [None, random_sinks((32, 8, 128)), None]

    def run() -> list[torch.Tensor]:
        plan = attention.plan(first.layout, first.write_slots_T)
        return [plan(layer, q_TNH, sinks_N) for layer, sinks_N in enumerate(sinks)]

    expected_first = run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run()
    graph.replay()
    assert all(map(torch.equal, outputs, expected_first))
    static, fresh = first.layout.nodes, other.layout.nodes
    for name in ("roots_B", "slots_BW", "parents_BW"):
        if getattr(static, name) is not None:
            getattr(static, name).copy_(getattr(fresh, name))
    first.layout.slots_AC.copy_(table)
    q_TNH.copy_(other.q_TNH)
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, outputs, run()))


def test_many_captures_do_not_disturb_one_another() -> None:
    """Scratch belongs to a plan: two plans under way at once keep their own."""
    cases = [build([500, 77], 6, seed=1), build([500, 77], 6, is_tree=True, seed=2)]
    alone = [answer(case) for case in cases]
    plans = [TritonAttention(c.kv).plan(c.layout, c.write_slots_T) for c in cases]
    for _ in range(3):
        for plan, case, expected in zip(plans, cases, alone, strict=True):
            assert torch.equal(plan(0, case.q_TNH), expected)
