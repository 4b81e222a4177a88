"""Time feed-forward blocks with experts on one GPU, by number of rows and tile.

`python benchmarks/experts.py [--output FILE.json] [--shapes NAME,...] [--rows N,...]`. Each time is the
median of replays of a CUDA graph in which several layers with weights of their own run one after the
other, so that weights come from memory. Next to it stand the bytes of the experts that were chosen over
that time, and the times of each kernel with every tile.

Legend: T rows, D hidden size, E experts, K chosen experts.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from eyas.kernels import experts as kernels
from eyas.kernels.tiles import Tile
from eyas.layers.expert_spec import ExpertSpec
from eyas.ops.apply_experts import apply_experts
from eyas.ops.route import Routing, route
from eyas.ops.tile_experts import tile_experts
from gemm import graph_time

DEVICE = torch.device("cuda")
DTYPE = torch.bfloat16
SHAPES = {
    "qwen3-30b-a3b": (2048, ExpertSpec(128, 768, Routing(8))),
    "glm-4.5-air": (
        4096,
        ExpertSpec(128, 1408, Routing(8, "sigmoid"), has_correction=True, shared_size=1408),
    ),
    "mixtral-8x7b": (4096, ExpertSpec(8, 14336, Routing(2))),
}
ROWS = (1, 2, 8, 16, 32, 64, 128, 256, 1024, 4096)
LAYER_BYTES = 4 << 30
TILES = (
    Tile(64, 16, 64, 4, 6),
    Tile(64, 16, 128, 4, 4),
    Tile(64, 16, 128, 4, 6),
    Tile(64, 16, 256, 4, 3),
    Tile(64, 16, 256, 8, 3),
    Tile(128, 16, 64, 4, 6),
    Tile(128, 16, 128, 4, 4),
    Tile(128, 16, 128, 8, 4),
    Tile(64, 32, 128, 4, 4),
    Tile(128, 32, 64, 4, 5),
    Tile(64, 64, 128, 4, 3),
    Tile(128, 64, 64, 4, 4),
    Tile(128, 128, 64, 8, 3),
    Tile(128, 128, 64, 8, 4),
    Tile(128, 256, 64, 8, 3),
)


def name_of(tile: Tile) -> str:
    return f"{tile.block_out}x{tile.block_rows}x{tile.block_k} w{tile.num_warps} s{tile.num_stages}"


def weights_of(hidden: int, spec: ExpertSpec) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return random weights [E, 2F, D] and [E, D, F] of several layers, of LAYER_BYTES together."""
    num, inner = spec.num_experts, spec.intermediate_size
    options = {"dtype": DTYPE, "device": DEVICE}
    layers = []
    for _ in range(max(2, min(24, LAYER_BYTES // (6 * num * inner * hidden)))):
        gate_up_E2FD = torch.empty(num, 2 * inner, hidden, **options).normal_(std=hidden**-0.5)
        down_EDF = torch.empty(num, hidden, inner, **options).normal_(std=inner**-0.5)
        layers.append((gate_up_E2FD, down_EDF))
    return layers


def race(
    tile: Tile, layers: list[tuple[torch.Tensor, torch.Tensor]], experts_LTK: torch.Tensor
) -> tuple[float, float]:
    """Return the microseconds of the two products of a layer with this tile."""
    _, num_rows, num_chosen = experts_LTK.shape
    num_experts, hidden, inner = layers[0][1].shape
    tiles = [tile_experts(each, num_experts, tile.block_rows) for each in experts_LTK]
    x_TD = torch.randn(num_rows, hidden, device=DEVICE).to(DTYPE)
    gated_NF = torch.randn(num_rows * num_chosen, inner, device=DEVICE).to(DTYPE)
    weights_TK = torch.rand(num_rows, num_chosen, device=DEVICE)

    def gate_up() -> None:
        for (weight, _), each in zip(layers, tiles, strict=True):
            kernels.gated_product(x_TD, weight, None, each, num_chosen, "silu", tile, pdl=True)

    def down() -> None:
        for (_, weight), each in zip(layers, tiles, strict=True):
            kernels.weighted_product(gated_NF, weight, None, each, weights_TK, tile, pdl=True)

    return graph_time(gate_up) / len(layers), graph_time(down) / len(layers)


def measure(name: str, num_rows: int) -> dict[str, Any]:
    """Return the times of a block of this shape for so many rows, and of its products by tile."""
    hidden, spec = SHAPES[name]
    layers, num_chosen = weights_of(hidden, spec), spec.routing.num_chosen
    x_TD = torch.randn(num_rows, hidden, device=DEVICE).to(DTYPE)
    logits_LTE = torch.randn(len(layers), num_rows, spec.num_experts, device=DEVICE)
    experts_LTK = torch.stack([route(each, None, None, spec.routing)[0] for each in logits_LTE])

    def blocks() -> None:
        for logits_TE, weights in zip(logits_LTE, layers, strict=True):
            chosen = route(logits_TE, None, None, spec.routing)
            apply_experts(x_TD, *chosen, *weights, None, None, "silu")

    read = statistics.mean(len(each.unique()) for each in experts_LTK)
    gigabytes = 6 * read * spec.intermediate_size * hidden / 1e9
    block_us = graph_time(blocks) / len(layers)
    default = kernels.tile_for(num_rows, num_chosen, spec.num_experts, DTYPE)
    entry: dict[str, Any] = {
        "shape": name,
        "rows": num_rows,
        "experts": read,
        "block_us": block_us,
        "block_tb_s": 1000 * gigabytes / block_us,
        "default": name_of(default),
        "tiles": [],
    }
    print(
        f"{name}, {num_rows} rows, {read:.1f} experts: {block_us:.1f} us, "
        f"{entry['block_tb_s']:.2f} TB/s with {entry['default']}",
        flush=True,
    )
    average = num_rows * num_chosen / spec.num_experts
    for tile in dict.fromkeys((default, *TILES)):
        if not average / 4 <= tile.block_rows <= max(32, 8 * average):
            continue
        try:
            gate_up_us, down_us = race(tile, layers, experts_LTK)
        except Exception as error:  # the compiler's or the driver's
            print(f"    {name_of(tile)}: {str(error)[:80]}", flush=True)
            continue
        entry["tiles"].append({"tile": name_of(tile), "gate_up_us": gate_up_us, "down_us": down_us})
    for one in sorted(entry["tiles"], key=lambda one: one["gate_up_us"] + one["down_us"])[:8]:
        speeds = (
            1000 * gigabytes * share / one[key]
            for share, key in ((2 / 3, "gate_up_us"), (1 / 3, "down_us"))
        )
        print(
            f"    {one['gate_up_us']:8.1f} {one['down_us']:8.1f} us "
            f"{' '.join(f'{speed:.2f}' for speed in speeds)} TB/s {one['tile']}",
            flush=True,
        )
    return entry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    options = parser.parse_args()
    rows = tuple(int(each) for each in options.rows.split(","))
    with torch.inference_mode():
        found = [measure(name, num_rows) for name in options.shapes.split(",") for num_rows in rows]
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
