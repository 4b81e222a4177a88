"""Measure the sampler's kernels on one GPU in CUDA graphs, and torch's argmax.

`python benchmarks/sampling.py [--output FILE.json] [--vocab N]`. Each graph holds several launches
over different logits; times are medians in microseconds per call.

Legend: R rows, V vocabulary, B sequences, W nodes.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from eyas.core import SamplingParams
from eyas.kernels.advance import advance
from eyas.kernels.choose import choose
from eyas.kernels.scale_and_filter import floors
from eyas.kernels.walk import walk
from eyas.sampling import BatchParams, SequenceParams, sample
from eyas.sampling.process import SamplingRows

DEVICE = torch.device("cuda")
ROWS = (1, 6, 32, 192, 256)
WIDTH = 6
CALLS = 8
"""The number of launches in a graph, over two sets of logits in turn."""
REPEATS = 30


def microseconds(call: Callable[[int], object]) -> float:
    """Return the median time of a call. call: called with its index within the graph."""
    for i in range(2):
        call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(CALLS):
            call(i)
    times = []
    for _ in range(REPEATS):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1000 / CALLS)
    return round(statistics.median(times), 2)


def rows_and_params(
    num: int, vocab: int, params: SamplingParams
) -> tuple[SamplingRows, BatchParams]:
    sources = [SequenceParams(params, b * 77777, 0, 5, frozenset()) for b in range(num)]
    every = torch.arange(num, device=DEVICE)
    history = torch.zeros((num, 1), dtype=torch.int64, device=DEVICE)
    rows = SamplingRows(every, every + 9, None, None, history, history[:, 0])
    return rows, BatchParams(sources, vocab, DEVICE)


def some_logits(num: int, vocab: int) -> torch.Tensor:
    """Return logits as of a model: a few likely tokens above a broad rest."""
    logits = 2.5 * torch.randn((num, vocab), device=DEVICE)
    likely = torch.randint(0, vocab, (num, 40), device=DEVICE)
    return logits.scatter_add_(1, likely, 8 + 4 * torch.randn((num, 40), device=DEVICE))


def measure_rows(num: int, vocab: int) -> dict[str, float]:
    """Measure every operation on the logits of `num` rows."""
    logits = [some_logits(num, vocab) for _ in range(2)]
    shape = (num, -(-vocab // 32))
    mask = torch.randint(-(2**31), 2**31, shape, device=DEVICE).to(torch.int32)
    rows, params = rows_and_params(num, vocab, SamplingParams(temperature=0.8))
    keys = (
        rows.sequence_R,
        rows.position_R,
        params.temperature_B,
        params.seed_B,
        params.choice_B,
    )
    low = torch.full((num,), -5.0, device=DEVICE)
    times = {
        "torch argmax": microseconds(lambda i: logits[i % 2].argmax(dim=1)),
        "choose greedy": microseconds(lambda i: choose(logits[i % 2], *keys, any_noise=False)),
        "choose greedy masked": microseconds(
            lambda i: choose(logits[i % 2], *keys, mask, any_noise=False)
        ),
        "choose noise": microseconds(lambda i: choose(logits[i % 2], *keys, any_noise=True)),
        "choose noise masked": microseconds(
            lambda i: choose(logits[i % 2], *keys, mask, any_noise=True)
        ),
        "choose noise floor": microseconds(
            lambda i: choose(logits[i % 2], *keys, None, low, any_noise=True)
        ),
        "choose noise pdl": microseconds(
            lambda i: choose(logits[i % 2], *keys, any_noise=True, pdl=True)
        ),
    }
    for name, filters in (
        ("top_k", SamplingParams(top_k=50)),
        ("top_p", SamplingParams(top_p=0.95)),
        ("min_p", SamplingParams(min_p=0.05)),
        ("top_k top_p", SamplingParams(top_k=50, top_p=0.95)),
    ):
        _, acting = rows_and_params(num, vocab, filters)
        columns = (acting.temperature_B, acting.top_k_B, acting.top_p_B, acting.min_p_B)
        flags = {"any_top_k": acting.max_top_k > 0, "any_top_p": acting.any_top_p}
        times[f"floors {name}"] = microseconds(
            lambda i, c=columns, f=flags: floors(logits[i % 2], rows.sequence_R, *c, **f)
        )
        times[f"sample {name}"] = microseconds(
            lambda i, a=acting: sample(logits[i % 2], rows, a, None)
        )
    flat = torch.zeros((num, vocab), device=DEVICE)
    _, acting = rows_and_params(num, vocab, SamplingParams(top_p=0.95))
    columns = (acting.temperature_B, acting.top_k_B, acting.top_p_B, acting.min_p_B)
    times["floors top_p, all tied"] = microseconds(
        lambda i: floors(flat, rows.sequence_R, *columns, any_top_k=False)
    )
    return times


def measure_walks(num: int, width: int, *, is_chain: bool) -> dict[str, float]:
    """Measure the walks of `num` trees, each accepted to the end of a path."""
    nodes_W = torch.arange(width, device=DEVICE)
    tokens_BW = nodes_W.repeat(num, 1)
    parents_W = (nodes_W - 1) if is_chain else torch.where(nodes_W > 0, (nodes_W - 1) // 2, -1)
    parents_BW = None if is_chain else parents_W.repeat(num, 1)
    step = 1 if is_chain else nodes_W + 1
    chosen_BW = (nodes_W + step).repeat(num, 1)
    sizes_B = torch.full((num,), width, device=DEVICE)
    seats_B = torch.arange(num, device=DEVICE)
    tokens_AC = torch.zeros((num + 1, 4096), dtype=torch.int64, device=DEVICE)
    slots_AC = torch.zeros_like(tokens_AC)
    lengths_A = torch.ones(num + 1, dtype=torch.int64, device=DEVICE)
    report_BX = walk(chosen_BW, tokens_BW, parents_BW, sizes_B)
    return {
        "walk": microseconds(lambda i: walk(chosen_BW, tokens_BW, parents_BW, sizes_B)),
        "advance": microseconds(
            lambda i: advance(
                seats_B,
                seats_B,
                report_BX,
                tokens_BW,
                tokens_AC,
                slots_AC,
                lengths_A,
                is_chain=is_chain,
                trash_seat=num,
            )
        ),
    }


def main() -> None:
    """Measure and print, and write the file of --output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--vocab", type=int, default=128256)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    result: dict[str, object] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "vocab": arguments.vocab,
        "unit": "microseconds",
    }
    for num in ROWS:
        times = measure_rows(num, arguments.vocab)
        bandwidth = num * arguments.vocab * 4 / times["choose greedy"] / 1e6
        result[f"{num} rows"] = times | {"choose greedy TB/s": round(bandwidth, 3)}
        print(f"{num} rows", json.dumps(result[f"{num} rows"]), flush=True)
    for name, width, is_chain in (
        ("chain", WIDTH, True),
        ("tree", 32, False),
        ("tree", 160, False),
    ):
        for num in (1, 32, 256):
            key = f"{num} {name}s of {width}"
            result[key] = measure_walks(num, width, is_chain=is_chain)
            print(key, json.dumps(result[key]), flush=True)
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
