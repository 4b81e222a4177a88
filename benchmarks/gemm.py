"""Products of eyas' kernels beside cuBLAS on one GPU: times, bits, and a chain of whole layers.

`python benchmarks/gemm.py [--output FILE.json] [--sections times,bits,small,chain]`. Weights rotate
among copies that no cache holds; everything runs in CUDA graphs; times are medians.

Legend: T rows, O output features, K input features, D hidden size, F feed-forward size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton

from eyas.kernels.activation import gated_silu
from eyas.kernels.gemm import FOLDED_TILE, Tile, gated_product, product, tiles_for, usual_tile
from eyas.kernels.norm import add_norm
from eyas.kernels.rope import rotate_and_store

DEVICE = torch.device("cuda")
DTYPE = torch.bfloat16
ROWS = (1, 2, 6, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 8192)
CHAIN_ROWS = (1, 6, 32, 64, 192)
CACHE_BYTES = 256 << 20
NUM_LAYERS = 32
EVERY = ("qkv", "o", "gate_up", "down")


@dataclass(frozen=True)
class Shape:
    name: str
    num_out: int
    num_columns: int
    splits: tuple[int, ...] = (1,)
    is_head: bool = False

    @property
    def num_bytes(self) -> int:
        return 2 * self.num_out * self.num_columns


SHAPES = (
    Shape("qkv", 6144, 4096, (1, 2)),
    Shape("o", 4096, 4096, (1, 2, 4)),
    Shape("gate_up", 28672, 4096),
    Shape("down", 4096, 14336, (1, 2, 4)),
    Shape("head", 128256, 4096, is_head=True),
    Shape("draft_qkv", 6144, 8192, (1, 2)),
    Shape("draft_fc", 4096, 12288, (1, 2, 4)),
    Shape("draft_head", 32000, 4096, is_head=True),
)


def candidates(num_rows: int) -> tuple[Tile, ...]:
    """What `tiles_for` lists, and the usual one by way of the copy engine."""
    tiles = tiles_for(num_rows)
    return tuple(dict.fromkeys((*tiles, replace(tiles[0], by_copy_engine=True))))


def label(tile: Tile) -> str:
    *numbers, by_copy_engine = astuple(tile)
    return "x".join(map(str, numbers)) + ("+copy" if by_copy_engine else "")


def compile_all() -> int:
    """Every variant that the sections launch, compiled on all cores by tiny launches."""
    weight_OK = torch.randn(512, 1024, device=DEVICE).to(DTYPE)
    x_TK = torch.randn(256, 1024, device=DEVICE).to(DTYPE)
    tiles = list(dict.fromkeys(tile for rows in ROWS for tile in candidates(rows)))
    jobs: list[Callable[[], torch.Tensor]] = []
    for tile in tiles:
        jobs.append(lambda tile=tile: product(x_TK, weight_OK, tile=tile))
        jobs.append(lambda tile=tile: product(x_TK, weight_OK, tile=tile, num_splits=2))
    fold = {"num_splits": 2, "folded": True, "tile": FOLDED_TILE}
    jobs.append(lambda: product(x_TK, weight_OK, **fold))
    for tile in dict.fromkeys(tiles_for(rows)[0] for rows in CHAIN_ROWS):
        for prefetch in (0, 512):
            how: dict[str, Any] = {"tile": tile, "pdl": True, "prefetch": prefetch}
            jobs.append(lambda how=how: product(x_TK, weight_OK, **how))
            jobs.append(lambda how=how: product(x_TK, weight_OK, num_splits=2, **how))
        jobs.append(lambda tile=tile: gated_product(x_TK, weight_OK, tile=tile, pdl=True))
    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(job) for job in jobs]:
            done.result()
    torch.cuda.synchronize()
    return len(jobs)


@cache
def capture_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()


def graph_time(launch: Callable[[], None], repeats: int = 7) -> float:
    """Microseconds of one replay of what `launch` launches."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(capture_stream()):  # torch.cuda.graph would collect garbage every time
        launch()
        torch.cuda.synchronize()
        graph.capture_begin()
        launch()
        graph.capture_end()
    torch.cuda.synchronize()
    graph.replay()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return statistics.median(times)


def weight_of(shape: Shape) -> torch.Tensor:
    size = (shape.num_out, shape.num_columns)
    return torch.empty(size, device=DEVICE, dtype=DTYPE).normal_(std=shape.num_columns**-0.5)


def rows_of(num_rows: int, num_columns: int) -> torch.Tensor:
    return torch.randn(num_rows, num_columns, device=DEVICE, dtype=DTYPE)


def cublas(x_TK: torch.Tensor, weight_OK: torch.Tensor, is_head: bool = False) -> torch.Tensor:
    if is_head:
        return torch.mm(x_TK, weight_OK.t(), out_dtype=torch.float32)
    return F.linear(x_TK, weight_OK)


def variants(shape: Shape, num_rows: int) -> Iterator[tuple[str, Callable[..., torch.Tensor]]]:
    """cuBLAS and the products worth a look, by name."""
    yield "cublas", lambda x, w: cublas(x, w, shape.is_head)
    out_dtype = torch.float32 if shape.is_head else None
    for num_splits in shape.splits:
        tiles = candidates(num_rows) if num_splits <= 2 else tiles_for(num_rows)[:1]
        for tile in tiles:
            how: dict[str, Any] = {"tile": tile, "num_splits": num_splits, "out_dtype": out_dtype}
            yield f"{num_splits}:{label(tile)}", lambda x, w, how=how: product(x, w, **how)
    if num_rows > 128 and 2 in shape.splits:
        yield "2:folded", lambda x, w: product(x, w, num_splits=2, folded=True, tile=FOLDED_TILE)


def measure_times() -> list[dict[str, Any]]:
    found = []
    for shape in SHAPES:
        copies = max(2, -(-CACHE_BYTES // shape.num_bytes))
        weights = [weight_of(shape) for _ in range(copies)]
        print(f"\n{shape.name} {shape.num_out} x {shape.num_columns}: us, best three of ours")
        for num_rows in ROWS:
            if shape.is_head and num_rows > 512:
                continue
            x_TK = rows_of(num_rows, shape.num_columns)
            calls = [weights[i % copies] for i in range(2 if num_rows > 512 else max(24, copies))]
            times = {}
            for name, run in variants(shape, num_rows):

                def launch(run: Any = run, x: torch.Tensor = x_TK, calls: Any = calls) -> None:
                    for weight_OK in calls:
                        run(x, weight_OK)

                times[name] = graph_time(launch, 3 if num_rows > 512 else 5) / len(calls)
            found.append({"shape": shape.name, "rows": num_rows, "us": times})
            ours = sorted((us, name) for name, us in times.items() if name != "cublas")
            shown = "  ".join(f"{us:.1f} {name}" for us, name in ours[:3])
            print(f"  T={num_rows:5d} cublas {times['cublas']:8.1f} | {shown}", flush=True)
        del weights, calls, launch
        torch.cuda.empty_cache()
    return found


def compare_bits() -> list[dict[str, Any]]:
    """Which row counts give a row other bits than one row does."""
    found = []
    for shape in SHAPES:
        weight_OK = weight_of(shape)
        x_TK = rows_of(512, shape.num_columns)
        counts = (*range(1, 65), 96, 128, 192, 256, 512)
        references: dict[str, torch.Tensor] = {}
        differing: dict[str, list[int]] = {}
        unlike_cublas: list[int] = []
        for num_rows in counts:
            x = x_TK[:num_rows]
            is_listed = num_rows in ROWS or num_rows in (17, 33)
            names = variants(shape, num_rows) if is_listed else iter([next(variants(shape, 1))])
            results = {name: run(x, weight_OK) for name, run in names}
            out_dtype = torch.float32 if shape.is_head else None
            ours = product(x, weight_OK, out_dtype=out_dtype)
            if not torch.equal(ours, results["cublas"]):
                unlike_cublas.append(num_rows)
            for name, result in results.items():
                group = "cublas" if name == "cublas" else f"splits {name[0]}"
                if name == "2:folded":
                    result, group = result[0], "folded"
                    references.setdefault(group, references["splits 2"].sum(0))
                if group == "cublas" and group not in references:
                    singles = [
                        cublas(x_T1, weight_OK, shape.is_head) for x_T1 in x_TK[:64].split(1)
                    ]
                    references[group] = torch.cat(singles)
                elif group not in references:
                    how: dict[str, Any] = {"num_splits": int(name[0]), "out_dtype": ours.dtype}
                    references[group] = product(x_TK, weight_OK, **how)
                reference = references[group]
                common = min(reference.shape[-2], result.shape[-2])
                if not torch.equal(result[..., :common, :], reference[..., :common, :]):
                    differing.setdefault(group if group == "cublas" else name, []).append(num_rows)
        found.append({"shape": shape.name, "differing": differing, "unlike_cublas": unlike_cublas})
        print(f"{shape.name}: ours is not cuBLAS at T = {ranges(unlike_cublas)}")
        print(f"    cuBLAS of T rows is not cuBLAS of 1: {ranges(differing.pop('cublas', []))}")
        print(f"    ours differs from itself: {differing or 'never'}", flush=True)
    return found


def ranges(numbers: list[int]) -> str:
    """[1, 2, 3, 7] as "1-3 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs) or "none"


class Chain:
    """All layers of an 8B model but for attention, as the engine runs them."""

    def __init__(self) -> None:
        self.norm_D = torch.ones(4096, device=DEVICE, dtype=DTYPE)
        self.layers = [
            {shape.name: weight_of(shape) for shape in SHAPES[:4]} for _ in range(NUM_LAYERS)
        ]
        self.table_P2H = torch.randn(4096, 2, 1, 128, device=DEVICE).to(DTYPE)
        self.kv_S2GH = torch.zeros(1024, 2, 8, 128, device=DEVICE, dtype=DTYPE)

    def launcher(
        self,
        num_rows: int,
        *,
        ours: tuple[str, ...] = EVERY,
        pdl: bool = True,
        prefetch: int = 512,
        gated: bool = False,
        best: dict[str, Tile] | None = None,
    ) -> Callable[[], None]:
        """ours: the products that cuBLAS does not do."""
        x_TD, places_T = rows_of(num_rows, 4096), torch.arange(num_rows, device=DEVICE)
        how: dict[str, Any] = {"pdl": pdl, "prefetch": prefetch}
        splits = {"o": 2, "down": 2}

        def run(name: str, x_TK: torch.Tensor, layer: dict[str, torch.Tensor]) -> torch.Tensor:
            weight_OK = layer[name]
            if name not in ours:
                return cublas(x_TK, weight_OK)
            tile = (best or {}).get(name) or usual_tile(num_rows, *weight_OK.shape, DTYPE)
            return product(x_TK, weight_OK, num_splits=splits.get(name, 1), tile=tile, **how)

        def launch() -> None:
            residual_TD, normed_TD = add_norm(x_TD, None, self.norm_D, 1e-5, pdl=pdl)
            for layer in self.layers:
                heads_TX = run("qkv", normed_TD, layer)
                places = (places_T, self.table_P2H, places_T, self.kv_S2GH)
                q_TNH = rotate_and_store(heads_TX, *places, 32, 8, 128, pdl=pdl)
                parts = run("o", q_TNH.view(num_rows, 4096), layer)
                residual_TD, normed_TD = add_norm(residual_TD, parts, self.norm_D, 1e-5, pdl=pdl)
                if gated:
                    active_TF = gated_product(normed_TD, layer["gate_up"], **how)
                else:
                    active_TF = gated_silu(run("gate_up", normed_TD, layer), pdl=pdl)
                parts = run("down", active_TF, layer)
                residual_TD, normed_TD = add_norm(residual_TD, parts, self.norm_D, 1e-5, pdl=pdl)

        return launch


def measure_chain(best: dict[tuple[str, int], Tile]) -> list[dict[str, Any]]:
    chain = Chain()
    num_bytes = NUM_LAYERS * sum(shape.num_bytes for shape in SHAPES[:4])
    found = []
    for num_rows in CHAIN_ROWS:
        fastest = {name: best[name, num_rows] for name in EVERY if (name, num_rows) in best}
        ways: dict[str, dict[str, Any]] = {
            "cublas": {"ours": (), "pdl": False, "prefetch": 0},
            "cublas, small kernels pdl": {"ours": (), "prefetch": 0},
            "ours": {"pdl": False, "prefetch": 0},
            "ours pdl": {"prefetch": 0},
            "ours pdl prefetch": {},
            "the same, fastest tiles": {"best": fastest},
            "ours pdl prefetch gated": {"gated": True},
            "o, down ours; pdl prefetch": {"ours": ("o", "down")},
        }
        for name, way in ways.items():
            us = graph_time(chain.launcher(num_rows, **way))
            found.append({"rows": num_rows, "way": name, "us": us})
            print(
                f"  T={num_rows:4d} {name:28s} {us / 1000:7.3f} ms {us / NUM_LAYERS:7.1f} us a layer "
                f"{num_bytes / us / 1e6:5.2f} TB/s",
                flush=True,
            )
    return found


def measure_small() -> list[dict[str, Any]]:
    """Small kernels one after the other, each on the one before's row; us each."""
    norm_D = torch.ones(4096, device=DEVICE, dtype=DTYPE)
    table_P2H = torch.randn(4096, 2, 1, 128, device=DEVICE).to(DTYPE)
    kv_S2GH = torch.zeros(1024, 2, 8, 128, device=DEVICE, dtype=DTYPE)
    found = []
    for num_rows in (1, 16, 64, 192):
        x_TD, parts_STD = rows_of(num_rows, 4096), torch.randn(2, num_rows, 4096, device=DEVICE)
        heads_TX, wide_TX = rows_of(num_rows, 6144), rows_of(num_rows, 28672)
        places = (torch.arange(num_rows, device=DEVICE), table_P2H)
        places = (*places, places[0], kv_S2GH, 32, 8, 128)
        kernels: dict[str, Callable[[bool], Any]] = {
            "add_norm": lambda pdl, x=x_TD, p=parts_STD: add_norm(x, p, norm_D, 1e-5, pdl=pdl),
            "rope": lambda pdl, h=heads_TX, p=places: rotate_and_store(h, *p, pdl=pdl),
            "silu": lambda pdl, w=wide_TX: gated_silu(w, pdl=pdl),
        }
        times = {}
        for name, run in kernels.items():
            for pdl in (False, True):

                def launch(run: Any = run, pdl: bool = pdl) -> None:
                    for _ in range(100):
                        run(pdl)

                times[name + (" pdl" if pdl else "")] = graph_time(launch) / 100
        found.append({"rows": num_rows, "us": times})
        print(f"  T={num_rows:4d} " + "  ".join(f"{k} {us:.2f}" for k, us in times.items()))
    return found


def fastest_tiles(times: list[dict[str, Any]]) -> dict[tuple[str, int], Tile]:
    """Of each product of the chain, with the splits that the chain uses."""
    best = {}
    for entry in times:
        splits = "2" if entry["shape"] in ("o", "down") else "1"
        tiles = {label(tile): tile for tile in candidates(entry["rows"])}
        ours = [(us, name) for name, us in entry["us"].items() if name.startswith(f"{splits}:")]
        ours = [(us, name[2:]) for us, name in ours if name[2:] in tiles]
        if ours:
            best[entry["shape"], entry["rows"]] = tiles[min(ours)[1]]
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--sections", default="times,bits,small,chain")
    arguments = parser.parse_args()
    sections = arguments.sections.split(",")
    report: dict[str, Any] = {"torch": torch.__version__, "triton": triton.__version__}
    report["device"] = torch.cuda.get_device_name()
    began = time.monotonic()

    def done(what: str) -> None:
        print(f"[{time.monotonic() - began:.0f} s] {what}\n", flush=True)
        if arguments.output:
            arguments.output.write_text(json.dumps(report, indent=1) + "\n")

    torch.manual_seed(20261121)
    with torch.inference_mode():
        done(f"{compile_all()} variants compiled")
        if "small" in sections:
            report["small"] = measure_small()
            done("small kernels")
        if "bits" in sections:
            report["bits"] = compare_bits()
            done("bits")
        if "times" in sections:
            report["times"] = measure_times()
            done("times")
        if "chain" in sections:
            report["chain"] = measure_chain(fastest_tiles(report.get("times", [])))
            done("chain")


if __name__ == "__main__":
    main()
