"""Measure the kernels that grow draft trees on a CUDA device, each inside a CUDA graph.

`python benchmarks/growth.py [--pdl] [--output FILE]`; times are medians in microseconds per call.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from eyas.kernels import lookup, merge_trees
from eyas.kernels.add_level import add_level
from eyas.kernels.keep_best import keep_best
from eyas.kernels.top_tokens import top
from eyas.verify.machine import describe_run, write_result

VOCAB, DRAFT_VOCAB = 128256, 32000
CALLS, REPLAYS = 20, 21
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def microseconds(function: Callable[[], object]) -> float:
    """Return the time of a call of `function`, with CALLS calls in a graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            function()
    for _ in range(3):
        graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / CALLS)
    return round(statistics.median(times), 2)


def time_rank(pdl: bool) -> dict[str, float]:
    """Measure the ranking of a draft head's rows, mapped to the target's vocabulary, and torch's
    log_softmax and topk.
    """
    found = {}
    ids = torch.randperm(VOCAB, device="cuda")[:DRAFT_VOCAB]
    for rows in (1, 8, 64):
        logits = torch.randn(rows, DRAFT_VOCAB, device="cuda") * 3
        noise = {
            "sequence_R": torch.arange(rows, device="cuda"),
            "position_R": torch.arange(rows, device="cuda") + 100,
            "temperature_B": torch.full((rows,), 0.8, device="cuda"),
            "seed_B": torch.arange(rows, device="cuda"),
            "choice_B": torch.zeros(rows, dtype=torch.int64, device="cuda"),
            "beta_B": torch.ones(rows, device="cuda"),
        }
        for children in (1, 8, 10):
            name = f"rank {rows} rows, {children} children"
            found[f"{name}, torch"] = microseconds(
                lambda x=logits, c=children: ids[x.log_softmax(dim=1).topk(c, dim=1).indices]
            )
            found[name] = microseconds(
                lambda x=logits, c=children: top(x, c, target_ids_U=ids, pdl=pdl)
            )
            found[f"{name}, noise"] = microseconds(
                lambda x=logits, c=children, n=noise: top(x, c, target_ids_U=ids, pdl=pdl, **n)
            )
    return found


def time_growth(pdl: bool) -> dict[str, float]:
    """Measure a level below full paths, and the last level: chain 5, trees 5/8/32 and 7/10/60."""
    found = {}
    for num in (1, 8):
        for steps, topk, nodes in ((5, 1, 6), (5, 8, 32), (7, 10, 60)):
            size = topk + (steps - 1) * topk * topk
            scores = -torch.rand(num, size, device="cuda")
            parents = torch.arange(size, device="cuda").sub(topk).div(topk, rounding_mode="floor")
            pool = (
                torch.randint(0, VOCAB, (num, size), device="cuda"),
                scores.sort(dim=1, descending=True).values,
                parents.clamp(min=-1).expand(num, -1).contiguous(),
            )
            frontier = (
                torch.arange(topk, device="cuda").expand(num, -1).contiguous(),
                -torch.rand(num, topk, device="cuda"),
                torch.zeros(num, topk, steps - 1, dtype=torch.int64, device="cuda"),
            )
            tokens = torch.randint(0, VOCAB, (num, topk, topk), device="cuda")
            children = -torch.rand(num, topk, topk, device="cuda")
            roots = tokens[:, 0, :1].contiguous()
            name = f"{num} trees of {steps}/{topk}/{nodes}"
            found[f"extend, {name}"] = microseconds(
                lambda a=(tokens, children, frontier, pool, size - topk * topk, topk): add_level(
                    *a, pdl=pdl
                )
            )
            found[f"finish, {name}"] = microseconds(
                lambda a=(pool, size, roots, nodes), c=topk == 1: keep_best(*a, is_chain=c, pdl=pdl)
            )
    return found


def time_merge(pdl: bool) -> dict[str, float]:
    """Measure merging a chain of 8 into a tree of 32 nodes, and that tree into single roots."""
    found = {}
    for num in (1, 8):
        trees = {}
        for width in (1, 9, 32):
            parents = torch.arange(width, device="cuda").sub(1).div(2, rounding_mode="floor")
            parents[0] = -1
            trees[width] = (
                torch.arange(width, device="cuda").expand(num, -1).contiguous(),
                parents.expand(num, -1),
                torch.full((num,), width, device="cuda"),
            )
        for old, new in ((1, 32), (32, 9)):
            tokens, parents, sizes = trees[old]
            known = (tokens, parents, torch.zeros_like(tokens), sizes)
            found[f"merge, {num} trees of {new} into {old} nodes"] = microseconds(
                lambda a=(known, trees[new], 1, old + new - 1): merge_trees.merge_trees(*a, pdl=pdl)
            )
    return found


def time_lookup(pdl: bool) -> dict[str, float]:
    """Measure prompt lookup in texts with many repeated tokens, near the length bound of a graph."""
    found = {}
    for num, columns in ((1, 2048), (8, 8192), (1, 131072), (8, 131072)):
        history = torch.randint(0, 100, (num, columns + 1), device="cuda")
        seats = torch.arange(num, device="cuda")
        for length in (512, columns - 1):
            roots = torch.full((num,), length - 1, device="cuda")
            found[f"lookup, {num} texts of {length} in {columns}"] = microseconds(
                lambda a=(history, seats, roots, columns, 9, 2, 5): lookup.propose(*a, pdl=pdl)
            )
    return found


def main() -> int:
    """Measure everything, print it, and write it to --output if given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pdl", action="store_true", help="launch dependents early")
    parser.add_argument("--output", type=Path, help="JSON file")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        print("needs a CUDA device")
        return 2
    torch.manual_seed(0)
    found: dict[str, float] = {}
    for timed in (time_rank, time_growth, time_merge, time_lookup):
        found |= timed(chosen.pdl)
    for name, value in found.items():
        print(f"{name:45} {value:8.2f}")
    if chosen.output:
        head = describe_run(["python", *sys.argv])
        write_result(head | {"pdl": chosen.pdl, "microseconds": found}, chosen.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
