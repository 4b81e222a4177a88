"""Compare matrix products of eyas' kernels with cuBLAS on one GPU: times, bits, and whole layers.

`python benchmarks/gemm.py [--output FILE.json] [--sections times,bits,small,chain]`. Times are
taken as the engine does at start-up (`eyas.layers.gemm.timing`): weights come from memory, all runs are
in CUDA graphs with the neighbouring kernels; they are medians.

Legend: T rows, O output features, K input features, D hidden size, F feed-forward size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton

from eyas.kernels import has_warpgroups
from eyas.kernels.add_norm import add_norm
from eyas.kernels.gate import gated_silu
from eyas.kernels.gemm import product
from eyas.kernels.rotate_and_store import rotate_and_store
from eyas.kernels.tiles import FOLDED_TILES, grouped_tiles_for, persistent_tiles_for, tiles_for
from eyas.layers.gemm import apply
from eyas.layers.gemm.search import fastest
from eyas.layers.gemm.timing import DeviceClock
from eyas.layers.gemm.variants import LIBRARY, PARTS_SPLITS, GemmVariant, Product, candidates

DEVICE = torch.device("cuda")
DTYPE = torch.bfloat16
ROWS = (1, 2, 6, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 2048)
CHAIN_ROWS = (1, 6, 32, 64, 192)
NUM_LAYERS = 32
LAYER = ("qkv", "o", "gate_up", "down")


@dataclass(frozen=True)
class Shape:
    """A product. splits: of the kernel whose bits are compared."""

    name: str
    product: Product
    splits: tuple[int, ...] = (1,)

    @property
    def num_bytes(self) -> int:
        return 2 * self.product.num_out * self.product.num_in


SHAPES = (
    Shape("qkv", Product(6144, 4096, DTYPE, "plain"), (1, 2)),
    Shape("o", Product(4096, 4096, DTYPE, "parts"), (1, 2, 4)),
    Shape("gate_up", Product(28672, 4096, DTYPE, "gated")),
    Shape("down", Product(4096, 14336, DTYPE, "parts"), (1, 2, 4)),
    Shape("head", Product(128256, 4096, DTYPE, "logits")),
    Shape("draft_qkv", Product(6144, 8192, DTYPE, "plain"), (1, 2)),
    Shape("draft_fc", Product(4096, 12288, DTYPE, "plain"), (1, 2, 4)),
    Shape("draft_head", Product(32000, 4096, DTYPE, "logits")),
)


def compile_all() -> int:
    """Compile all variants whose bits are compared, on all cores with tiny launches.

    Return their number.
    """
    weight_OK = torch.randn(512, 1024, device=DEVICE).to(DTYPE)
    x_TK = torch.randn(256, 1024, device=DEVICE).to(DTYPE)
    runs = [
        run
        for is_head in (False, True)
        for num_rows in ROWS
        for name, run in variants((1, 2), num_rows, is_head=is_head)
        if name != "cublas"
    ]
    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(run, x_TK, weight_OK) for run in runs]:
            done.result()
    torch.cuda.synchronize()
    return len(runs)


@cache
def capture_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()


def graph_time(launch: Callable[[], None], repeats: int = 7) -> float:
    """Return the time of a replay of what `launch` launches, in microseconds."""
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
    size = (shape.product.num_out, shape.product.num_in)
    return torch.empty(size, device=DEVICE, dtype=DTYPE).normal_(std=size[1] ** -0.5)


def rows_of(num_rows: int, num_columns: int) -> torch.Tensor:
    return torch.randn(num_rows, num_columns, device=DEVICE, dtype=DTYPE)


def cublas(x_TK: torch.Tensor, weight_OK: torch.Tensor, is_head: bool = False) -> torch.Tensor:
    if is_head:
        return torch.mm(x_TK, weight_OK.t(), out_dtype=torch.float32)
    return F.linear(x_TK, weight_OK)


def variants(
    splits: tuple[int, ...], num_rows: int, *, is_head: bool
) -> Iterator[tuple[str, Callable[..., torch.Tensor]]]:
    """Return cuBLAS and the kernel with every tile, by name."""
    yield "cublas", lambda x, w: cublas(x, w, is_head)
    out_dtype = torch.float32 if is_head else None
    for num_splits in splits:
        grouped = grouped_tiles_for(num_rows) if has_warpgroups(DEVICE) else ()
        for tile in (*tiles_for(num_rows), *grouped):
            how: dict[str, Any] = {"tile": tile, "num_splits": num_splits, "out_dtype": out_dtype}
            yield f"{num_splits}:{GemmVariant(tile)}", lambda x, w, how=how: product(x, w, **how)
    persistent = has_warpgroups(DEVICE) and not is_head
    for tile in persistent_tiles_for(num_rows) if persistent and 1 in splits else ():
        how = {"tile": tile}
        yield f"1:{GemmVariant(tile)}", lambda x, w, how=how: product(x, w, **how)
    if num_rows > 128 and 2 in splits:
        more = persistent_tiles_for(num_rows, folded=True) if persistent else ()
        for tile in (*FOLDED_TILES, *more):
            how = {"tile": tile, "num_splits": 2, "folded": True}
            yield f"folded:{GemmVariant(tile)}", lambda x, w, how=how: product(x, w, **how)


def every_way(product: Product, num_rows: int) -> tuple[GemmVariant, ...]:
    warpgroups = has_warpgroups(DEVICE)
    return candidates(product, num_rows, library=True, warpgroups=warpgroups)


def measure_times() -> list[dict[str, Any]]:
    clock = DeviceClock(DEVICE)
    found = []
    for shape in SHAPES:
        jobs = [(rows, every_way(shape.product, rows)) for rows in ROWS]
        began = time.perf_counter()
        times = clock(shape.product, jobs)
        print(
            f"\n{shape.name} {shape.product} ({time.perf_counter() - began:.1f} s): us, best four"
        )
        for (num_rows, variants), each in zip(jobs, times, strict=True):
            us = {
                str(variant): microseconds
                for variant, microseconds in zip(variants, each, strict=True)
            }
            entry = {"shape": shape.name, "rows": num_rows, "us": us}
            found.append(entry | {"chosen": str(fastest(variants, each))})
            best = sorted((microseconds, name) for name, microseconds in us.items())[:4]
            shown = "  ".join(f"{microseconds:.1f} {name}" for microseconds, name in best)
            print(f"  T={num_rows:5d} cublas {us['library']:8.1f} | {shown}", flush=True)
    return found


def compare_bits() -> list[dict[str, Any]]:
    """Return the row counts for which a row has other bits than alone."""
    found = []
    for shape in SHAPES:
        weight_OK = weight_of(shape)
        x_TK = rows_of(512, shape.product.num_in)
        is_head = shape.product.role == "logits"
        counts = (*range(1, 65), 96, 128, 192, 256, 512)
        references: dict[str, torch.Tensor] = {}
        differing: dict[str, list[int]] = {}
        unlike_cublas: list[int] = []
        for num_rows in counts:
            x = x_TK[:num_rows]
            is_listed = num_rows in ROWS or num_rows in (17, 33)
            names = variants(shape.splits if is_listed else (), num_rows, is_head=is_head)
            results = {name: run(x, weight_OK) for name, run in names}
            out_dtype = torch.float32 if is_head else None
            ours = product(x, weight_OK, out_dtype=out_dtype)
            if not torch.equal(ours, results["cublas"]):
                unlike_cublas.append(num_rows)
            for name, result in results.items():
                group = "cublas" if name == "cublas" else f"splits {name[0]}"
                if name.startswith("folded"):
                    result, group = result[0], "folded"
                    references.setdefault(group, references["splits 2"].sum(0))
                if group == "cublas" and group not in references:
                    singles = [cublas(x_T1, weight_OK, is_head) for x_T1 in x_TK[:64].split(1)]
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
    """All layers of an 8B model without attention, as the engine runs them."""

    def __init__(self) -> None:
        self.norm_D = torch.ones(4096, device=DEVICE, dtype=DTYPE)
        self.layers = [
            {shape.name: weight_of(shape) for shape in SHAPES[:4]} for _ in range(NUM_LAYERS)
        ]
        self.table_P2H = torch.randn(4096, 2, 1, 128, device=DEVICE).to(DTYPE)
        self.kv_S2GH = torch.zeros(1024, 2, 8, 128, device=DEVICE, dtype=DTYPE)

    def launcher(self, num_rows: int, variants: dict[str, GemmVariant]) -> Callable[[], None]:
        """Return a function that launches all layers. variants: of each product of a layer."""
        x_TD, places_T = rows_of(num_rows, 4096), torch.arange(num_rows, device=DEVICE)

        def launch() -> None:
            residual_TD, normed_TD = add_norm(x_TD, None, self.norm_D, 1e-5, pdl=True)
            for layer in self.layers:
                heads_TX = apply.plain(variants["qkv"], normed_TD, layer["qkv"], None)
                places = (places_T, self.table_P2H, places_T, self.kv_S2GH)
                q_TNH = rotate_and_store(heads_TX, *places, 32, 8, 128, pdl=True)
                q_TD = q_TNH.view(num_rows, 4096)
                parts = apply.parts(variants["o"], q_TD, layer["o"], PARTS_SPLITS)
                residual_TD, normed_TD = add_norm(residual_TD, parts, self.norm_D, 1e-5, pdl=True)
                active_TF = apply.gated(variants["gate_up"], normed_TD, layer["gate_up"], None)
                parts = apply.parts(variants["down"], active_TF, layer["down"], PARTS_SPLITS)
                residual_TD, normed_TD = add_norm(residual_TD, parts, self.norm_D, 1e-5, pdl=True)

        return launch


def measure_chain(best: dict[tuple[str, int], str]) -> list[dict[str, Any]]:
    """Measure whole layers. best: the name of the fastest variant, by product and rows."""
    chain = Chain()
    num_bytes = NUM_LAYERS * sum(shape.num_bytes for shape in SHAPES[:4])
    found = []
    for num_rows in CHAIN_ROWS:
        known = {s.name: every_way(s.product, num_rows) for s in SHAPES[:4]}
        arrangements = {
            "cublas": dict.fromkeys(LAYER, LIBRARY),
            "usual tiles": {name: variants[0] for name, variants in known.items()},
        }
        if best:
            arrangements["the fastest"] = {
                name: next(variant for variant in variants if str(variant) == best[name, num_rows])
                for name, variants in known.items()
            }
            arrangements["the fastest of ours"] = {
                name: arrangements[
                    "usual tiles" if best[name, num_rows] == str(LIBRARY) else "the fastest"
                ][name]
                for name in known
            }
        for name, variants in arrangements.items():
            us = graph_time(chain.launcher(num_rows, variants))
            shown = {name: str(variant) for name, variant in variants.items()}
            found.append({"rows": num_rows, "way": name, "us": us, "ways": shown})
            print(
                f"  T={num_rows:4d} {name:20s} {us / 1000:7.3f} ms {us / NUM_LAYERS:7.1f} us a layer "
                f"{num_bytes / us / 1e6:5.2f} TB/s",
                flush=True,
            )
    return found


def measure_small() -> list[dict[str, Any]]:
    """Measure small kernels in a sequence, each on the output of the one before, in microseconds."""
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
        if "small" in sections:
            report["small"] = measure_small()
            done("small kernels")
        if "bits" in sections:
            done(f"{compile_all()} variants compiled")
            report["bits"] = compare_bits()
            done("bits")
        if "times" in sections:
            report["times"] = measure_times()
            done("times")
        if "chain" in sections:
            times = report.get("times", [])
            best = {(entry["shape"], entry["rows"]): entry["chosen"] for entry in times}
            report["chain"] = measure_chain(best)
            done("chain")


if __name__ == "__main__":
    main()
