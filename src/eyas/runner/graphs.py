"""CUDA graphs of the stages of a step, and the tensors that they read.

A stage is a function of tensors on the device: a drafter's expansion, the forward, the verdict. The
first time it runs as it is, which prepares its kernels, and is captured; then, as ever after, it is
replayed: a stage may run twice on the same inputs and must mean the same. What it returned when it was
captured is what every replay fills again, and what the stages after it were captured to read. Where a
stage cannot be captured, steps of its shape run without graphs from there on.

Promises: a replay does what the function would do; graphs are kept for a bounded number of shapes.
What a stage reads is either static (`StepInputs`, the engine's own tables), copied there (`to_static`),
or another stage's result of the same step; so the stages of one shape of steps are kept and dropped
together, and a batch keeps those of its own. A result stands until a stage of the same name runs in the
next step, also while it is copied to the host: a step runs one stage of a name, and stages share memory
with namesakes alone. Does not know: what the stages compute.

Legend: B sequences of a bucket, W width.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from weakref import WeakSet

import numpy as np
import torch

from eyas.core import DraftTree
from eyas.sampling.params import BatchParams
from eyas.transfer import Inbox, refill, send

log = logging.getLogger(__name__)

Result = TypeVar("Result")

MAX_GRAPHS = 640
"""Some 0.2 GiB (one H200: 300 take 96 MiB) beside what they return; start-up makes up to 300."""
SMALLEST_LENGTH = 512
"""Sequences up to this length share their graphs; beyond it, up to each power of two."""


@dataclass(slots=True, eq=False)
class StepInputs:
    """What the host writes for each step, at fixed addresses. staged: what comes next, and whose that
    is; taken: once it stands in `packed`."""

    staged: torch.Tensor
    packed: torch.Tensor
    seats_B: torch.Tensor
    node_slots_BW: torch.Tensor
    roots_B: torch.Tensor
    taken: torch.cuda.Event | None = None
    staged_from: np.ndarray | None = None

    @classmethod
    def empty(cls, num: int, width: int, device: torch.device) -> StepInputs:
        packed = torch.zeros(num * (1 + width), dtype=torch.int64, device=device)
        roots_B = torch.zeros(num, dtype=torch.int64, device=device)
        parts = packed[:num], packed[num:].view(num, width)
        return cls(torch.zeros_like(packed), packed, *parts, roots_B)

    def take(self, lengths_A: torch.Tensor) -> None:
        """What is staged becomes the step's; roots stand at their sequences' last tokens."""
        self.packed.copy_(self.staged)
        torch.index_select(lengths_A, 0, self.seats_B, out=self.roots_B)
        self.roots_B.sub_(1)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Captured:
    """A captured stage and what it fills."""

    graph: torch.cuda.CUDAGraph
    result: Any


class Stages:
    """The stages of one shape of steps. graphs: what all shapes share."""

    def __init__(self, graphs: StepGraphs) -> None:
        self.graphs = graphs
        self._captured: dict[Hashable, Captured] = {}
        self._has_given_up = False

    def __len__(self) -> int:
        return len(self._captured)

    def run(self, name: Hashable, key: Hashable, stage: Callable[[], Result]) -> Result:
        """What `stage` returns. name: its place in a step; key: which stage of that name it is."""
        if self._has_given_up:
            return stage()
        known = self._captured.get((name, key))
        if known is not None:
            known.graph.replay()
        else:
            result = stage()
            try:
                known = self._captured[name, key] = self.graphs.capture(name, stage)
                known.graph.replay()
            except Exception:
                # What has run counts, and what reads it later must not be captured either.
                log.warning("a stage of a step cannot be captured: %s", name, exc_info=True)
                self._has_given_up = True
                self._captured.clear()
                return result
            self.graphs.make_room()
        self.graphs.num_replays += 1
        return known.result

    def to_static(self, tree: DraftTree) -> DraftTree:
        """`tree` at fixed addresses; itself where it is a replay's result."""
        results = (each.result for each in self._captured.values())
        if any(isinstance(own, DraftTree) and _is_same(own, tree) for own in results):
            return tree
        return self.graphs.to_static(tree)


class StepGraphs:
    """Stages by shape, and what they read. max_graphs: how many graphs are kept, at least those of one
    shape. num_captured: graphs made so far; num_replays: stages run from one."""

    def __init__(self, device: torch.device, max_graphs: int = MAX_GRAPHS) -> None:
        self._device = device
        self._max_graphs = max_graphs
        self._shapes: OrderedDict[Hashable, Stages] = OrderedDict()
        self._own = self.new_stages()
        self._inputs: dict[tuple[int, int], StepInputs] = {}
        self._params: dict[Hashable, tuple[BatchParams, object]] = {}
        self._held: dict[Hashable, DraftTree] = {}
        self._arrays: dict[Hashable, torch.Tensor] = {}
        self._pools: dict[Hashable, Any] = {}
        self._alive: dict[Hashable, WeakSet[Captured]] = {}
        self._inbox = Inbox(device)
        self.num_captured = 0
        self.num_replays = 0

    def new_stages(self) -> Stages:
        """Those of a shape that nobody has met."""
        return Stages(self)

    def of(self, shape: Hashable) -> Stages:
        """The stages of a step that begins."""
        stages = self._shapes.pop(shape, None)
        if stages is None:
            stages = self.new_stages()
        self._shapes[shape] = stages
        return stages

    def make_room(self) -> None:
        """After a capture: shapes that were met longest ago go, but for the last one. A batch that is
        still under way has its own."""
        num_kept = sum(map(len, self._shapes.values()))
        while num_kept > self._max_graphs and len(self._shapes) > 1:
            _, dropped = self._shapes.popitem(last=False)
            num_kept -= len(dropped)

    def send_inputs(self, num: int, width: int, packed: np.ndarray) -> None:
        """Inputs of a step of this shape go ahead of it, beside the work under way."""
        found = self._inputs.get((num, width))
        if found is None:
            found = self._inputs[num, width] = StepInputs.empty(num, width, self._device)
            found.taken = self._inbox.mark()
        with self._inbox.arriving(after=found.taken):
            refill(found.staged, packed)
        found.staged_from = packed

    def take_inputs(
        self, num: int, width: int, packed: np.ndarray, lengths_A: torch.Tensor
    ) -> StepInputs:
        """The inputs of steps of this shape, filled with what was sent, once more where another step's
        was since; `lengths_A` stays where it is."""
        found = self._inputs[num, width]
        if found.staged_from is not packed:
            self.send_inputs(num, width, packed)
        self._own.run("inputs", (num, width), lambda: found.take(lengths_A))
        found.taken, found.staged_from = self._inbox.mark(), None
        return found

    def params(self, num: int, params: BatchParams) -> BatchParams:
        """`params` at fixed addresses, with `num` rows; filled again only when they are others."""
        key = (num, params.signature)
        twin, filled_from = self._params.get(key, (None, None))
        if twin is None:
            twin = params.padded(num)
        elif filled_from is not params:
            twin.copy_(params)
        self._params[key] = (twin, params)
        return twin

    def capture(self, name: Hashable, stage: Callable[[], Any]) -> Captured:
        """A stage that has run once."""
        alive = self._alive.setdefault(name, WeakSet())
        if not alive:  # a pool without graphs cannot be used again
            self._pools[name] = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pools[name], capture_error_mode="thread_local"):
            result = stage()
        self.num_captured += 1
        captured = Captured(graph, result)
        alive.add(captured)
        return captured

    def to_static(self, tree: DraftTree) -> DraftTree:
        """A copy of `tree` at addresses that trees of this kind have in common."""
        tensors = _tensors(tree)
        key = (tree.tokens_BW.shape, tree.is_chain, tree.source_BW is not None)
        held = self._held.get(key)
        if held is None:
            copies = [None if t is None else t.clone() for t in tensors]
            tokens_BW, parents_BW, sizes_B, source_BW = copies
            assert tokens_BW is not None and parents_BW is not None and sizes_B is not None
            held = replace(
                tree,
                tokens_BW=tokens_BW,
                parents_BW=parents_BW,
                sizes_B=sizes_B,
                source_BW=source_BW,
            )
            self._held[key] = held
        else:
            for mine, theirs in zip(_tensors(held), tensors, strict=True):
                if mine is not None and theirs is not None and mine is not theirs:
                    mine.copy_(theirs)
        return replace(held)

    def to_static_array(self, key: Hashable, values: np.ndarray | torch.Tensor) -> torch.Tensor:
        """The numbers at a fixed address; `key` and their shape tell which."""
        key = (key, tuple(values.shape), str(values.dtype))
        held = self._arrays.get(key)
        if held is None:
            held = self._arrays[key] = send(values, self._device)
        else:
            refill(held, values)
        return held

    def to_static_array_async(self, key: Hashable, values: torch.Tensor) -> torch.Tensor:
        """As `to_static_array`, copied beside the work under way, none of which may still read the old
        values."""
        with self._inbox.arriving():
            return self.to_static_array(key, values)


def _tensors(tree: DraftTree) -> tuple[torch.Tensor | None, ...]:
    return tree.tokens_BW, tree.parents_BW, tree.sizes_B, tree.source_BW


def _is_same(tree: DraftTree, other: DraftTree) -> bool:
    return all(a is b for a, b in zip(_tensors(tree), _tensors(other), strict=True))


def bucket_of(num: int) -> int:
    """The number of rows that a graph for `num` sequences has: 1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
    if num <= 4:
        return max(1, num)
    power = 1 << ((num - 1).bit_length() - 1)
    return power + power // 2 if num <= power + power // 2 else 2 * power


def length_of(length: int) -> int:
    """The length that a graph for sequences of up to `length` is made for."""
    return max(SMALLEST_LENGTH, 1 << (length - 1).bit_length())
