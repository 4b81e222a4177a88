"""Measure attention kernels on a device: errors, equality of bits across tile heights, and speed.

    python benchmarks/attention.py --output attention.json [--sweep] [--store deepseek-v2-lite]

Promises: every number is measured in this run, in CUDA graphs over layers that exceed the cache,
together with the speed of a copy; errors are relative to float64.
Does not know: models, engines.

Legend: T rows, N query heads, G key/value heads, H head dim, B sequences, W tree nodes, L
positions, S slots.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from eyas.attention.base import AttentionLayout, ContextRun, NodeGrid
from eyas.attention.triton import TritonAttention
from eyas.cache.kv import KVStore
from eyas.cache.store import LayerStore
from eyas.kernels.attention_prefill import PromptTiles
from eyas.verify.machine import describe_run, write_result

STORE = LayerStore(32, 8, 128)
STORES = {
    "llama-3.1-8b": STORE,
    "deepseek-v2-lite": LayerStore(16, 1, 576, scale=192**-0.5, value_dim=512),
    "deepseek-v3": LayerStore(128, 1, 576, scale=192**-0.5, value_dim=512),
}
CACHE_BYTES = 200_000_000
"""The layers of a case are together larger than this, so that none is in the cache when it runs."""


@dataclass
class Case:
    """Sequences with a tree or (is_prompt) a prompt chunk each, and random contents of a cache."""

    store: LayerStore
    kv: KVStore
    layout: AttentionLayout
    write_slots_T: torch.Tensor
    q_TNH: torch.Tensor
    roots: list[int]
    parents: list[list[int]]


def random_parents(draw: random.Random, width: int) -> list[int]:
    return [-1] + [i - 1 if draw.random() < 0.4 else draw.randrange(i) for i in range(1, width)]


def build(
    roots: Sequence[int],
    width: int = 1,
    *,
    is_tree: bool = False,
    is_prompt: bool = False,
    store: LayerStore = STORE,
    dtype: torch.dtype = torch.bfloat16,
    num_layers: int = 1,
    seed: int = 0,
    max_position: int | None = None,
) -> Case:
    """Build a case. A prompt chunk has `width` rows and ends where the tree would begin."""
    draw, num = random.Random(seed), len(roots)
    device = torch.device("cuda")
    generator = torch.Generator(device).manual_seed(seed)
    columns = max(roots) + width + 1
    num_slots = sum(roots) + num * width
    kv = KVStore([store] * num_layers, num_slots, dtype=dtype, device=device)
    for layer in kv.layers:
        layer.normal_(generator=generator)
    slots = torch.randperm(num_slots, generator=generator, device=device) + 1
    slots_AC = torch.zeros((num, columns), dtype=torch.int64, device=device)
    node_slots_BW = slots[: num * width].view(num, width)
    used = num * width
    for b, root in enumerate(roots):
        slots_AC[b, :root] = slots[used : used + root]
        used += root
        if not is_tree and not is_prompt:
            slots_AC[b, root : root + width] = node_slots_BW[b]
    parents = [
        random_parents(draw, width) if is_tree else list(range(-1, width - 1)) for _ in roots
    ]
    num_rows = num * width
    seats_B = torch.arange(num, device=device)
    contexts = [ContextRun(b, b * width, root - width, width) for b, root in enumerate(roots)]
    nodes = NodeGrid(
        rows_BW=torch.arange(num_rows, device=device).view(num, width),
        slots_BW=node_slots_BW,
        roots_B=torch.tensor(roots, device=device),
        parents_BW=torch.tensor(parents, device=device) if is_tree else None,
    )
    layout = AttentionLayout(
        slots_AC=slots_AC,
        seats_B=seats_B,
        max_position=columns - 1 if max_position is None else max_position,
        contexts=tuple(contexts) if is_prompt else (),
        nodes=None if is_prompt else nodes,
    )
    shape = (num_rows, store.num_query_heads, store.head_dim)
    q_TNH = torch.randn(shape, generator=generator, device=device).to(dtype)
    return Case(store, kv, layout, node_slots_BW.reshape(-1), q_TNH, list(roots), parents)


def reference(case: Case, layer: int = 0, sinks_N: torch.Tensor | None = None) -> torch.Tensor:
    """Return attention in float64 [T, N, H], computed for one sequence after another."""
    store, layout, width = case.store, case.layout, len(case.parents[0])
    device = case.q_TNH.device
    is_prompt = bool(layout.contexts)
    scale = store.head_dim**-0.5 if store.scale is None else store.scale
    outputs = []
    for b, (root, parents) in enumerate(zip(case.roots, case.parents, strict=True)):
        first = root - width if is_prompt else root
        depths, own_WW = [], torch.zeros((width, width), dtype=torch.bool)
        for w, parent in enumerate(parents):
            depths.append(0 if parent < 0 else depths[parent] + 1)
            if parent >= 0:
                own_WW[w] = own_WW[parent]
            own_WW[w, w] = True
        own_slots = (
            layout.slots_AC[b, first:root] if is_prompt else case.write_slots_T.view(-1, width)[b]
        )
        slots_L = torch.cat([layout.slots_AC[b, :first], own_slots])
        kv = case.kv.layers[layer][slots_L].double()
        depth_W = torch.tensor(depths, device=device)
        at_L = torch.cat([torch.arange(first, device=device), first + depth_W])
        position_W1 = (first + depth_W).unsqueeze(1)
        seen_WL = torch.ones((width, first), dtype=torch.bool, device=device)
        seen_WL = torch.cat([seen_WL, own_WW.to(device)], dim=1)
        if store.window is not None:
            seen_WL &= at_L > position_W1 - store.window
        seen_WL &= (at_L >= store.first_position) | (at_L == position_W1)
        q_WNH = case.q_TNH[b * width : (b + 1) * width].double()
        q_WGPH = q_WNH.unflatten(1, (store.num_kv_heads, -1))
        scores = torch.einsum("wgph,lgh->gpwl", q_WGPH, kv[:, 0]) * scale
        scores = scores.masked_fill(~seen_WL, -torch.inf)
        if sinks_N is not None:
            sinks = sinks_N.double().view(store.num_kv_heads, -1, 1, 1)
            scores = torch.cat([scores, sinks.expand(-1, -1, width, -1)], dim=-1)
        weights = scores.softmax(-1)[..., : len(slots_L)]
        out = torch.einsum("gpwl,lgh->wgph", weights, kv[:, -1, :, : store.output_dim])
        outputs.append(out.reshape(width, store.num_query_heads, store.output_dim))
    return torch.cat(outputs)


def answer(
    case: Case, layer: int = 0, *, sinks_N: torch.Tensor | None = None, **options: Any
) -> torch.Tensor:
    attention = TritonAttention(case.kv, **options)
    return attention.plan(case.layout, case.write_slots_T)(layer, case.q_TNH, sinks_N)


def error(out_TNH: torch.Tensor, expected_TNH: torch.Tensor) -> float:
    """Return the error relative to the expected values, by norm."""
    return ((out_TNH.double() - expected_TNH).norm() / expected_TNH.norm()).item()


def microseconds(run: Callable[[], object], *, repeats: int = 15) -> float:
    """Return the median time of a replay of a CUDA graph of `run`, in microseconds."""
    run()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def time_layer(case: Case, attention: TritonAttention) -> float:
    """Return the time of one layer's attention in microseconds."""
    plan = attention.plan(case.layout, case.write_slots_T)
    num = len(case.kv.layers)
    return microseconds(lambda: [plan(layer, case.q_TNH) for layer in range(num)]) / num


def stored_bytes(roots: Sequence[int], store: LayerStore) -> int:
    """Return the bytes in a layer's slots before the roots, in 16 bits a number."""
    return sum(roots) * 2 * math.prod(store.slot_shape)


def num_layers(roots: Sequence[int], store: LayerStore = STORE) -> int:
    layer_bytes = stored_bytes(roots, store)
    return max(4, min(128, -(-CACHE_BYTES // layer_bytes)))


def copy_ceiling() -> float:
    """Return the speed of a copy in bytes per second, read and written."""
    source = torch.empty(2**31, dtype=torch.bfloat16, device="cuda").normal_()
    target = torch.empty_like(source)
    return 2 * source.nbytes / microseconds(lambda: torch.mul(source, 1.0, out=target)) * 1e6


def with_shape(attention: TritonAttention, **changes: int) -> TritonAttention:
    attention.shapes = {s: replace(shape, **changes) for s, shape in attention.shapes.items()}
    return attention


TIMED: dict[str, tuple[list[int], int, bool]] = {
    "decode 32x4k": ([4096] * 32, 1, False),
    "decode 1x300": ([300], 1, False),
    "decode 8x300": ([300] * 8, 1, False),
    "decode 1x8k": ([8192], 1, False),
    "decode 32x300": ([300] * 32, 1, False),
    "chain 1x6 at 300": ([300], 6, False),
    "chain 32x6 at 300": ([300] * 32, 6, False),
    "tree 1x32 at 300": ([300], 32, True),
    "tree 1x60 at 300": ([300], 60, True),
    "tree 8x32 at 300": ([300] * 8, 32, True),
    "tree 8x32 at 4k": ([4096] * 8, 32, True),
}


def as_prompts(chain: Case) -> AttentionLayout:
    """Return the layout of the same rows as prompt chunks."""
    width = len(chain.parents[0])
    runs = tuple(ContextRun(b, b * width, root, width) for b, root in enumerate(chain.roots))
    return replace(chain.layout, contexts=runs, nodes=None)


def check_heights(results: dict[str, Any], store: LayerStore) -> None:
    """Check that rows have the same bits with all tile heights and as prompt rows."""
    chain = build([300, 1000, 127, 2050], 6, store=store, seed=1)
    tree = build([300, 1000, 127, 2050], 32, is_tree=True, store=store, seed=2)
    prompt = replace(chain, layout=as_prompts(chain))
    base = {"chain": answer(chain, heights=(16,)), "tree": answer(tree, heights=(16,))}
    agreement = {}
    for height in (16, 32, 64, 128):
        agreement[height] = {
            "chain": torch.equal(answer(chain, heights=(height,)), base["chain"]),
            "tree": torch.equal(answer(tree, heights=(height,)), base["tree"]),
            "prompt": torch.equal(answer(prompt, heights=(height,)), base["chain"]),
        }
        print(f"height {height:3}: the bits of height 16:", agreement[height])
    results["agreement"] = agreement


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument(
        "--sweep", action="store_true", help="other blocks, stages and tiles as well"
    )
    parser.add_argument("--store", choices=STORES, default="llama-3.1-8b", help="heads and widths")
    options = parser.parse_args()
    store = STORES[options.store]
    ceiling = copy_ceiling()
    results: dict[str, Any] = {
        **describe_run(sys.argv),
        "copy_tb_s": ceiling / 1e12,
        "store": options.store,
    }
    print(f"copy: {ceiling / 1e12:.2f} TB/s")
    check_heights(results, store)
    rows = results["rows"] = []
    shapes = [{}]
    if options.sweep:
        shapes += [
            {"stages": 2},
            {"keys": 64},
            {"keys": 64, "stages": 2},
            {"keys": 64, "stages": 3},
        ]
    if options.sweep and store.value_dim is not None:
        shapes = [{}, {"keys": 16}, {"keys": 64}, {"stages": 2}]
    for name, (roots, width, is_tree) in TIMED.items():
        layers = num_layers(roots, store)
        case = build(roots, width, is_tree=is_tree, store=store, num_layers=layers)
        expected = reference(case)
        moved = stored_bytes(roots, store)
        heights = (16,) if width * 4 <= 16 or store.value_dim is not None else (16, 32, 64)
        for height in heights:
            for changes in shapes if height == heights[0] else shapes[:1]:
                attention = TritonAttention(case.kv, heights=(height,), pdl=True)
                attention = with_shape(attention, **changes)
                plan = attention.plan(case.layout, case.write_slots_T)
                wrong = error(plan(0, case.q_TNH), expected)
                us = time_layer(case, attention)
                speed = moved / us / 1e6
                row = {"case": name, "height": height, **changes}
                rows.append(row | {"error": wrong, "us": us, "tb_s": speed})
                print(
                    f"{name:18} height {height:2} {changes or ''!s:28} {us:8.2f} us "
                    f"{speed:5.2f} TB/s ({speed / ceiling * 1e12:4.0%} of the copy) "
                    f"error {wrong:.1e}"
                )
    prompts(rows, options.sweep, store)
    if options.output is not None:
        write_result(results, options.output)


def prompts(rows: list[dict[str, Any]], sweep: bool, store: LayerStore) -> None:
    """Measure a whole prompt of 8k tokens."""
    case = build([8192], 8192, is_prompt=True, store=store, num_layers=2)
    part = build([1500, 700], 333, is_prompt=True, store=store)
    expected = reference(part)
    widths = store.head_dim + store.output_dim
    operations = 8192 * 8193 / 2 * store.num_query_heads * widths * 2
    backend = TritonAttention(case.kv)
    tiles = list(backend.tiles.values())
    if sweep and store.value_dim is not None:
        tiles += [PromptTiles(16, 4, 1), PromptTiles(32, 8, 1)]
    elif sweep:
        tiles += [PromptTiles(128, 8, 1), PromptTiles(64, 8, 2), PromptTiles(64, 4, 1)]
    for each in [*tiles, *([None] if backend.may_copy else [])]:
        name = "over copies" if each is None else f"{each.height}/{each.num_warps}/{each.stages}"
        row: dict[str, Any] = {"case": "prompt 8k", "tiles": name if each is None else str(each)}
        for one in (part, case):
            attention = TritonAttention(one.kv, pdl=True)
            if each is not None:
                attention.may_copy = set()
                attention.tiles = dict.fromkeys(attention.tiles, each)
            if one is part:
                plan = attention.plan(one.layout, one.write_slots_T)
                row["error"] = error(plan(0, one.q_TNH), expected)
            else:
                row["us"] = time_layer(one, attention)
        row["tflop_s"] = operations / row["us"] / 1e6
        rows.append(row)
        print(
            f"prompt 8k {name} {row['us']:8.1f} us "
            f"{row['tflop_s']:4.0f} TFLOP/s error {row['error']:.1e}"
        )


if __name__ == "__main__":
    main()
