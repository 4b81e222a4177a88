"""Check that tokens and logits have the same bits in every kind of computation, over 100,000 rows.

    python benchmarks/exact.py --shape llama-3.1-8b --rows 100000 --output exact.json

Promises: the reference is the logits of each position of some texts by plain decoding of one
sequence; every other computation is compared with it by a hash of all bits of a row, and for
differing rows the largest difference is reported. Then an engine answers prompts alone and in
different batches, and echoes the answers. The exit status is 1 if anything differs.
Does not know: why something differs.

Legend: R rows, V vocabulary, B sequences, W nodes, X texts, C columns (positions).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from exact_engine import engine_comparisons
from eyas.attention import open_attention
from eyas.cache import KVStore
from eyas.config import DeviceConfig, DraftConfig, EngineConfig, SchedulerConfig
from eyas.core import SamplingParams
from eyas.draft_tree import DraftTree
from eyas.engine.startup.exactness_probe import chain_of, random_tree
from eyas.engine.startup.load import Parts
from eyas.runner.batch import Batch, PlannedBatch, Span
from eyas.runner.device import open_device
from eyas.runner.graphs import StepGraphs
from eyas.runner.rows import pack
from eyas.runner.runner import ModelRunner
from eyas.runner.table import SequenceTable
from eyas.sampling import BatchParams, SequenceParams
from eyas.verify.machine import describe_run, write_result
from eyas_bench.shape import dummy_parts
from eyas_bench.shapes import find_shape

LENGTHS = (1500, 613, 300, 129, 60, 17, 3)
NUM_SEATS = 64
MOST_NODES = 1024
HASHED_AT_ONCE = 128
MAX_BATCH_TOKENS = 2048


@dataclass
class Comparison:
    """The result of a comparison.

    num_rows: compared. num_different: of them. largest: difference of a logit.
    """

    name: str
    num_rows: int = 0
    num_different: int = 0
    largest: float = 0.0
    first: str = ""
    seconds: float = 0.0


@dataclass
class Work:
    """Input of a forward pass: roots (text, position) with trees, chunks (text, first, rows)."""

    roots: list[tuple[int, int]] = field(default_factory=list)
    width: int = 1
    is_tree: bool = False
    chunks: list[tuple[int, int, int]] = field(default_factory=list)
    wants_chunks: bool = True
    copy: int = 0


class StoredTexts:
    """Some texts, stored twice: by plain decoding (reference), and by the computation under test."""

    def __init__(self, parts: Parts, lengths: Sequence[int], seed: int = 0) -> None:
        spec, self.device = parts.spec, parts.model.device
        self.vocab, self.lengths = spec.vocab_size, list(lengths)
        self.draw = np.random.default_rng(seed)
        total, longest = sum(lengths), max(lengths)
        kv = KVStore(spec.stores, 2 * total + MOST_NODES, dtype=parts.dtype, device=self.device)
        attention = open_attention(kv)
        self.runner = ModelRunner(parts.model, attention)
        self.first = np.concatenate(([0], np.cumsum(lengths)))
        self.tokens_XC = self.draw.integers(0, self.vocab, size=(len(lengths), longest))
        self.slots_2XC = np.zeros((2, len(lengths), longest), dtype=np.int64)
        for x, length in enumerate(lengths):
            for copy in range(2):
                start = 1 + copy * total + self.first[x]
                self.slots_2XC[copy, x, :length] = np.arange(start, start + length)
        self.scratch = np.arange(2 * total + 1, 2 * total + MOST_NODES + 1, dtype=np.int64)
        self.on_device = torch.from_numpy(self.slots_2XC).to(self.device)
        self.table = SequenceTable(2 * NUM_SEATS, longest + 1, 64, self.device)
        self.source = SequenceParams(SamplingParams(temperature=0), 0, 0, 1, frozenset())
        self.graphs = StepGraphs(self.device) if self.device.type == "cuda" else None
        generator = torch.Generator(self.device).manual_seed(1)
        self.salt_V = torch.randint(
            -(2**63), 2**63 - 1, (self.vocab,), generator=generator, device=self.device
        )
        self.salt_V |= 1
        self.hash_R = torch.zeros(total, dtype=torch.int64, device=self.device)

    def decode_all(self) -> None:
        """Compute the reference: every position by a step of one sequence."""
        for x, length in enumerate(self.lengths):
            for position in range(length):
                places, logits_RV = self.run(Work([(x, position)]), keeps=True)
                self.hash_R[places] = self.hashed(logits_RV)

    def hashed(self, logits_RV: torch.Tensor) -> torch.Tensor:
        """Return a 64-bit hash of all bits of each row [R]; both zeros are the same number."""
        return torch.cat(
            [
                ((part_RV + 0.0).view(torch.int32).long() * self.salt_V).sum(dim=1)
                for part_RV in logits_RV.split(HASHED_AT_ONCE)
            ]
        )

    def run(self, work: Work, *, keeps: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a forward pass. Return the indices in the reference [R], and the logits [R, V].

        keeps: whether roots are stored in the reference's slots.
        """
        table, num, width = self.table, len(work.roots), work.width
        spans, rows, places, tokens_BW, parents_BW, last = [], [], [], [], [], 0
        self._seat(0, [x for x, _ in work.roots], work.copy)
        for b, (x, start) in enumerate(work.roots):
            parents, path = random_tree(self.draw, width) if work.is_tree else chain_of(width)
            own_W = self.draw.integers(0, self.vocab, size=width)
            own_W[path] = self.tokens_XC[x, start : start + len(path)]
            tokens_BW.append(own_W)
            parents_BW.append(parents)
            rows += [b * width + node for node in path]
            places += range(self.first[x] + start, self.first[x] + start + len(path))
            nodes = self.scratch[b * width : (b + 1) * width]
            if keeps:
                nodes = self.slots_2XC[0, x, start : start + width]
            spans.append(Span(b, start, 0, nodes[:0], nodes))
            last = max(last, start + width + 1)
        if num:
            lengths = [start + 1 for _, start in work.roots]
            table.lengths_A[:num] = torch.tensor(lengths).to(self.device)
        self._seat(num, [x for x, _, _ in work.chunks], 1)
        row = num * width
        for c, (x, start, count) in enumerate(work.chunks):
            slots = self.slots_2XC[1, x, start : start + count]
            span = Span(num + c, start, count, slots, None, wants_context_logits=work.wants_chunks)
            spans.append(span)
            if work.wants_chunks:
                rows += range(row, row + count)
                places += range(self.first[x] + start, self.first[x] + start + count)
                row += count
            last = max(last, start + count)
        logits_RV = self._forward(spans, width, tokens_BW, parents_BW, work.is_tree, last)
        if logits_RV is None:
            return torch.empty(0, dtype=torch.int64), torch.empty(0, self.vocab)
        picked_R = torch.tensor(rows).to(self.device)
        return torch.tensor(places).to(self.device), logits_RV[picked_R]

    def _seat(self, first: int, texts: list[int], copy: int) -> None:
        """Make seats use a copy of these texts."""
        if not texts:
            return
        which, columns = torch.tensor(texts).to(self.device), self.on_device.shape[2]
        seats = slice(first, first + len(texts))
        self.table.slots_AC[seats, :columns] = self.on_device[copy, which]
        tokens_XC = torch.from_numpy(self.tokens_XC[texts]).to(self.device)
        self.table.tokens_AC[seats, :columns] = tokens_XC

    def _forward(
        self,
        spans: list[Span],
        width: int,
        tokens_BW: list[np.ndarray],
        parents_BW: list[list[int]],
        is_tree: bool,
        last: int,
    ) -> torch.Tensor | None:
        num = len(tokens_BW)
        params = BatchParams([self.source] * num, self.vocab, self.device)
        batch = PlannedBatch(self.table, spans, params, width, last, graphs=self.graphs).begin()
        if num:
            rest = ((0, batch.num_rows - num), (0, 0))
            grids = (
                torch.from_numpy(np.pad(np.array(grid), rest, mode="edge")).to(self.device)
                for grid in (tokens_BW, parents_BW)
            )
            tokens, parents = grids
            sizes_B = torch.full_like(tokens[:, 0], width)
            tree = batch.to_static(DraftTree(tokens, parents, sizes_B, not is_tree))
        else:
            empty = torch.empty((0, 1), dtype=torch.int64, device=self.device)
            tree = DraftTree(empty, empty, empty[:, 0], is_chain=True)
        forward = partial(self._logits, batch, tree)
        if batch.stores_context:
            logits_RV = forward()
            if logits_RV is None or batch.num_rows == num:
                return logits_RV
            # Roots that only fill up the batch stand between the nodes and the chunks.
            nodes_RV, chunks_RV = logits_RV[: num * width], logits_RV[batch.num_rows * width :]
            return torch.cat([nodes_RV, chunks_RV])
        return batch.stage("forward", (width, is_tree), forward)

    def _logits(self, batch: Batch, tree: DraftTree) -> torch.Tensor | None:
        with torch.inference_mode():
            return self.runner.forward(pack(batch, tree)).logits_RV

    def compare(self, comparison: Comparison, work: Work) -> None:
        """Run a forward pass and compare its logits with the reference."""
        places_R, logits_RV = self.run(work)
        if not len(places_R):
            return
        comparison.num_rows += len(places_R)
        wrong_R = self.hashed(logits_RV) != self.hash_R[places_R]
        num_wrong = int(wrong_R.sum())
        if not num_wrong:
            return
        comparison.num_different += num_wrong
        for row in wrong_R.nonzero().squeeze(1)[:3].tolist():
            place = int(places_R[row])
            x = int(np.searchsorted(self.first, place, side="right")) - 1
            position = place - int(self.first[x])
            found_V = logits_RV[row].clone()
            _, again_RV = self.run(Work([(x, position)]))
            largest = (found_V - again_RV[0]).abs().max().item()
            comparison.largest = max(comparison.largest, largest)
            comparison.first = comparison.first or f"text {x}, position {position}"

    def spread(self, num: int, width: int) -> list[tuple[int, int]]:
        """Return random positions for roots, in proportion to the lengths of the texts."""
        shares = np.maximum(np.array(self.lengths) - width + 1, 0)
        places = self.draw.integers(0, shares.sum(), size=num)
        ends = np.cumsum(shares)
        texts = np.searchsorted(ends, places, side="right")
        return [(int(x), int(p - ends[x] + shares[x])) for x, p in zip(texts, places, strict=True)]

    def chunked(self, most: int, start_at: Sequence[int] | None = None) -> Iterator[list[Any]]:
        """Yield the chunks of forward passes of at most this many rows, one text after another."""
        chunks, room = [], most
        for x, length in enumerate(self.lengths):
            at = 0 if start_at is None else start_at[x]
            while at < length:
                count = min(room, length - at)
                chunks.append((x, at, count))
                at, room = at + count, room - count
                if not room:
                    yield chunks
                    chunks, room = [], most
        if chunks:
            yield chunks


def model_comparisons(stored: StoredTexts, num_rows: int, quick: int) -> Iterator[Comparison]:
    """Yield the results of all comparisons of the model.

    quick: maximum number of forward passes of comparisons with few rows each.
    """
    total, draw = sum(stored.lengths), stored.draw

    def run(name: str, works: Iterator[Work] | list[Work]) -> Comparison:
        result, started = Comparison(name), time.perf_counter()
        for work in works:
            stored.compare(result, work)
        result.seconds = time.perf_counter() - started
        return result

    comparisons: list[Comparison] = []
    for num in (1, 2, 7, 8, 32, 64):
        count = min(quick, -(-total // num))
        works = (Work(stored.spread(num, 1)) for _ in range(count))
        comparisons.append(run(f"batches of {num}", works))
        yield comparisons[-1]
    for w in range(2, 9):
        nums = [1] * quick + [8] * quick
        comparisons.append(run(f"chains of {w}", (Work(stored.spread(num, w), w) for num in nums)))
        yield comparisons[-1]
    for w in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64):
        nums = [1, 3, min(NUM_SEATS, 512 // w)] * (quick // 3)
        works = (Work(stored.spread(num, w), w, is_tree=True) for num in nums)
        comparisons.append(run(f"trees of {w}", works))
        yield comparisons[-1]
    for most in (1, 7, 64, 100, 512, 2048):
        for name, width in (("", 0), (" beside roots", 1), (" beside trees", 8)):
            works = []
            for chunks in list(stored.chunked(most))[: 3 * quick]:
                roots = stored.spread(5, width) if width else []
                works.append(Work(roots, max(1, width), width > 1, chunks))
            comparisons.append(run(f"chunks of {most}{name}", works))
            yield comparisons[-1]
    recomputed = [Work(chunks=chunks, wants_chunks=False) for chunks in stored.chunked(512)]
    after = [Work(stored.spread(32, 1), copy=1) for _ in range(quick)]
    after += [Work(stored.spread(8, 6), 6, copy=1) for _ in range(quick)]
    after += [Work(stored.spread(8, 16), 16, True, copy=1) for _ in range(quick)]
    comparisons.append(run("after preemption", recomputed + after))
    yield comparisons[-1]
    comparisons.append(run("after a prefix hit", _prefix_hits(stored, draw)))
    yield comparisons[-1]
    missing = num_rows - sum(comparison.num_rows for comparison in comparisons)
    yield run("anything at once", _random_batches(stored, missing))


def _prefix_hits(stored: StoredTexts, draw: np.random.Generator) -> Iterator[Work]:
    """Yield chunks in the slots of one sequence, after a prefix that another one stored by decoding."""
    for _ in range(3):
        starts = [int(draw.integers(0, length)) for length in stored.lengths]
        before, own = stored.on_device[0], stored.on_device[1].clone()
        for x, start in enumerate(starts):
            stored.on_device[1, x, :start] = before[x, :start]
        for chunks in stored.chunked(512, starts):
            yield Work(chunks=chunks)
        yield Work(stored.spread(32, 4), 4, copy=1)
        stored.on_device[1] = own
    for chunks in stored.chunked(512):
        yield Work(chunks=chunks, wants_chunks=False)


def _random_batches(stored: StoredTexts, num_rows: int) -> Iterator[Work]:
    """Yield random batches of random trees, half of them after positions that were stored as chunks."""
    draw, done = stored.draw, 0
    while done < num_rows:
        w = int(draw.choice([1, 2, 3, 5, 6, 8, 16, 32, 64]))
        num = int(draw.integers(1, min(NUM_SEATS, 512 // w) + 1))
        is_tree = bool(w > 1 and draw.integers(0, 2))
        yield Work(stored.spread(num, w), w, is_tree, copy=int(draw.integers(0, 2)))
        done += num * (w if not is_tree else max(2, w // 2 - 2))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--max-length", type=int, default=max(LENGTHS), help="of the longest text")
    parser.add_argument(
        "--quick",
        type=int,
        default=36,
        help="maximum number of forward passes of comparisons with few rows each",
    )
    parser.add_argument("--part", choices=("both", "rows", "engine"), default="both")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if not 100 <= options.max_length <= 2000:
        parser.error("--max-length: 100 to 2000, so that the largest trees fit")
    started = time.perf_counter()
    config = EngineConfig(
        device=DeviceConfig(device=options.device),
        draft=DraftConfig(drafter="head", steps=5, topk=4, nodes=16),
        scheduler=SchedulerConfig(max_batch_tokens=MAX_BATCH_TOKENS, max_num_seqs=NUM_SEATS),
    )
    model = type(config.model)(path=options.shape, dtype=options.dtype, max_model_len=2048)
    config = type(config)(
        model=model, device=config.device, draft=config.draft, scheduler=config.scheduler
    )
    place = open_device(config.device)
    shape = find_shape(options.shape)
    parts = dummy_parts(shape, config, place)
    print(f"{options.shape}, {parts.dtype}, {place.device}: {parts.order.reason}")
    lengths = [n for n in LENGTHS if n < options.max_length] + [options.max_length]
    stored = StoredTexts(parts, sorted(lengths, reverse=True))
    num_decoded = sum(stored.lengths) if options.part != "engine" else 0
    if num_decoded:
        stored.decode_all()
    print(f"{num_decoded} positions decoded alone, {time.perf_counter() - started:.1f} s")
    print(f"{'':40} {'rows':>8} {'different':>10} {'largest':>9} {'s':>6}")
    comparisons: list[Comparison] = []
    for comparison in model_comparisons(stored, options.rows, options.quick) if num_decoded else ():
        _show(comparison)
        comparisons.append(comparison)
    del stored
    answered = engine_comparisons(parts, config, place) if options.part != "rows" else ()
    for name, compared, different, largest, seconds in answered:
        comparisons.append(Comparison(name, compared, different, largest, seconds=seconds))
        _show(comparisons[-1])
    every = Comparison(
        "all", sum(w.num_rows for w in comparisons), sum(w.num_different for w in comparisons)
    )
    every = replace(every, largest=max(w.largest for w in comparisons))
    every.seconds = time.perf_counter() - started
    _show(every)
    if options.output is not None:
        result = {**describe_run(sys.argv), "shape": options.shape, "dtype": str(parts.dtype)}
        result["num_decoded_alone"] = num_decoded
        result |= {"ways": [vars(w) for w in comparisons], "all": vars(every)}
        write_result(result, options.output)
    return 1 if every.num_different else 0


def _show(comparison: Comparison) -> None:
    print(
        f"{comparison.name:40} {comparison.num_rows:8} {comparison.num_different:10} "
        f"{comparison.largest:9.1e} {comparison.seconds:6.1f} {comparison.first}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
