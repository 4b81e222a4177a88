"""Estimate decoding on several H200s from what one was measured to do. Nothing here is a measurement.

`python benchmarks/scale.py` prints the tables of docs/scale.md. A step is the larger of reading
(weights that its rows need, keys and values) and arithmetic, at the shares of the machine that one H200
reached, plus the time of kernels' starts, plus what ranks send to each other.
"""

from __future__ import annotations

from dataclasses import dataclass

COPY = 4.2e12
"""Bytes a second of one H200's memory."""
FLOPS = 790e12 * 0.67
"""bfloat16 operations a second: the share that a prompt of 8192 tokens reaches."""
LAYER_START = 30e-6
"""Seconds a layer beyond reading: 48 of Qwen3-30B-A3B take 2.90 ms at batch 1, reading 1.45."""
NVLINK, REDUCE_LATENCY = 300e9, 7e-6
"""Bytes a second of a rank in an all-reduce of a host, and the least seconds of one (published by
SGLang and vLLM)."""
MEMORY = 0.9 * 141e9
EXCHANGE_ROWS = 128
EXCHANGE = {8: (77e-6, 114e-6), 16: (118e-6, 195e-6)}
"""Seconds of a layer's dispatch (FP8) and combine (bfloat16) of 128 rows a rank, 7168 wide, 8 experts
each, at so many ranks: DeepEP's published figures on H800 with 400 Gb/s a GPU."""


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes of a model in FP8. row_bytes: of keys and values of a token in a layer, bfloat16."""

    name: str
    num_layers: int
    num_dense: int
    hidden: int
    attention: float
    expert: float
    num_experts: int
    num_chosen: int
    dense: float
    vocab: int
    row_bytes: int


GLM = Model(
    "GLM-4.5",
    num_layers=92,
    num_dense=3,
    hidden=5120,
    attention=2 * 5120 * 12288 + 2 * 5120 * 1024,
    expert=3 * 5120 * 1536,
    num_experts=160,
    num_chosen=8,
    dense=3 * 5120 * 12288,
    vocab=151552,
    row_bytes=2 * 8 * 128 * 2,
)
V3 = Model(
    "DeepSeek-V3",
    num_layers=61,
    num_dense=3,
    hidden=7168,
    attention=7168 * (1536 + 576) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168,
    expert=3 * 7168 * 2048,
    num_experts=256,
    num_chosen=8,
    dense=3 * 7168 * 18432,
    vocab=129280,
    row_bytes=576 * 2,
)


def step(
    model: Model, ranks: int, sequences: int, length: int, reading: float, *, replicated: bool
) -> tuple[float, float, float]:
    """Return the milliseconds of reading or arithmetic, of starts, and of exchange.

    sequences: of all ranks. reading: share of COPY that is reached. replicated: each rank attends for
    its own sequences and only experts are split; else heads are split and sums are reduced.
    """
    split = 1 if replicated else ranks
    num_sparse = model.num_layers - model.num_dense
    seen = 1 - (1 - model.num_chosen / model.num_experts) ** sequences
    read = model.num_layers * model.attention / split + 2 * model.vocab * model.hidden / split
    read += model.num_dense * model.dense / split + num_sparse * model.expert / split
    read += num_sparse * model.expert * model.num_experts * seen / ranks
    heads = 1 if replicated else min(ranks, 8)
    own = sequences / ranks if replicated else sequences
    read += own * length * model.num_layers * model.row_bytes / heads
    active = model.num_layers * model.attention + model.num_dense * model.dense
    active += num_sparse * model.expert * (model.num_chosen + 1) + model.vocab * model.hidden
    busy = max(read / (COPY * reading), 2 * active * sequences / ranks / FLOPS)
    if replicated:
        rows = max(1.0, own / EXCHANGE_ROWS) * model.hidden / 7168
        exchange = num_sparse * sum(EXCHANGE[ranks]) * rows
    else:
        sent = 2 * (ranks - 1) / ranks * sequences * model.hidden * 2 / NVLINK
        exchange = 2 * model.num_layers * max(REDUCE_LATENCY, sent)
    return 1e3 * busy, 1e3 * model.num_layers * LAYER_START, 1e3 * exchange


def fits(model: Model, ranks: int, sequences: int, length: int, *, replicated: bool) -> bool:
    """Whether weights, keys and values fit into the memory of each rank."""
    split = 1 if replicated else ranks
    num_sparse = model.num_layers - model.num_dense
    held = (model.num_layers * model.attention + model.num_dense * model.dense) / split
    held += num_sparse * model.expert * (model.num_experts / ranks + 1 / split)
    held += 4 * model.vocab * model.hidden / split
    tokens = sequences * length / (ranks if replicated else min(ranks, 8))
    return held + tokens * model.num_layers * model.row_bytes <= MEMORY


def table(model: Model, ranks: int, *, replicated: bool) -> None:
    print(f"{model.name} in FP8, {ranks} H200, 4096 tokens a sequence\n")
    print("| sequences | reading reaches | busy ms | starts ms | exchange ms | tokens/s a GPU |")
    print("|---" * 6 + "|")
    for sequences in (16, 64, 256, 512, 1024, 4096):
        if not fits(model, ranks, sequences, 4096, replicated=replicated):
            print(f"| {sequences} | does not fit | | | | |")
            break
        for reading in (0.55, 0.85):
            times = step(model, ranks, sequences, 4096, reading, replicated=replicated)
            speed = sequences / ranks / (sum(times) / 1e3)
            cells = " | ".join(f"{value:.1f}" for value in times)
            print(f"| {sequences} | {reading:.0%} | {cells} | {speed:,.0f} |")
    print()


if __name__ == "__main__":
    table(GLM, 8, replicated=False)
    table(V3, 16, replicated=True)
