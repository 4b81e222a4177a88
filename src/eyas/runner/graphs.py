"""CUDA graphs of the stages of a step, and the static tensors that they read.

A stage is a function of tensors on the device: a drafter's expansion, the forward pass, the
verdict. Its first call captures the function, if its kernels are prepared, and replays the graph. If
they are not, or the capture fails, it runs the function without a graph and captures it afterwards.
Later calls replay the graph. So a stage may run twice on the same inputs and must give the same result.
A replay writes the tensors that the function returned while it was captured, and later stages were
captured reading those tensors. If a stage cannot be captured, steps of its shape run without graphs
from then on.

Where several ranks run the model, the forward pass in a stage exchanges tensors with the other ranks,
which capture it at the same time, and replay it when they are told to (`runner.leader.Leader`).

Promises: a replay does what the function would do. The number of cached graphs is bounded. A stage
reads static tensors (`StepInputs`, the engine's own tables), tensors copied to static ones
(`to_static`), and results of other stages of the same step. Therefore the stages of one step shape
are cached and dropped together, and a batch holds a reference to its own. A result is valid until a
stage of the same name runs in the next step, also while it is copied to the host: a step runs one
stage of each name, and only stages of the same name share memory.
Does not know: what the stages compute.

Legend: B sequences of a bucket, W width.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import numpy as np
import torch

from eyas.draft_tree import DraftTree
from eyas.ops.capture import capturing
from eyas.runner.step_inputs import StepInputs, StepSizes, bucket_of
from eyas.sampling.params import BatchParams
from eyas.transfer import Inbox, refill, send

log = logging.getLogger(__name__)

Result = TypeVar("Result")

MAX_GRAPHS = 1024
"""The most graphs that are cached: about 0.3 GiB without their results (on one H200, 300 graphs take 96
MiB)."""
CAPTURED_AT = 2
"""The occurrence of a step's shape that an engine captures: the first one prepares its kernels, and a
capture takes little longer than a step without graphs."""


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """The largest steps that are captured. num_seqs: their sequences. prompt_rows: rows of their
    forward passes with prompt chunks; with 0 no chunks are captured."""

    num_seqs: int = 1 << 30
    prompt_rows: int = 0


NO_LIMITS = CaptureLimits()


class Announced(Protocol):
    """number: of the forward pass of a stage that was captured; None if it has none."""

    @property
    def number(self) -> int | None: ...


class Announcer(Protocol):
    """Has the other ranks capture, replay and drop the forward pass that is in a stage.

    capturing, replaying: contexts in which this rank does the same. own: tells of the captured stage.
    """

    def capturing(self) -> AbstractContextManager[Announced]: ...
    def replaying(self, number: int) -> AbstractContextManager[None]: ...
    def own(self, captured: Captured, number: int) -> None: ...


class Replayed(Protocol):
    """A CUDA graph, or what is one on another device. reset: frees what it holds."""

    def replay(self) -> object: ...
    def reset(self) -> object: ...


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Captured:
    """A captured stage and the result that its replays write.

    replaying: the context of a replay in which the other ranks have a part.
    """

    graph: Replayed
    result: Any
    replaying: Callable[[], AbstractContextManager[None]] = nullcontext

    def replay(self) -> None:
        with self.replaying():
            self.graph.replay()

    def destroy(self) -> None:
        self.graph.reset()


def recorded(stage: Callable[[], Result], pool: Any) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Return the graph of a stage, and the result that its replays write. pool: of its memory.

    Unlike `torch.cuda.graph` this waits for nothing, and keeps the free memory of torch's allocators,
    unless the capture needs it: other steps are under way, and the next ones use it.
    """
    try:
        return _recorded_once(stage, pool)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()  # during a capture the allocator does not do so by itself
        return _recorded_once(stage, pool)


def _recorded_once(stage: Callable[[], Result], pool: Any) -> tuple[torch.cuda.CUDAGraph, Result]:
    graph = torch.cuda.CUDAGraph()
    with capturing(), torch.cuda.stream(_capture_stream(torch.cuda.current_device())):
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            result = stage()
        finally:
            graph.capture_end()
    return graph, result


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class Stages:
    """The captured stages of one step shape. graphs: shared by all shapes.

    is_prepared: a step of this shape has run without graphs. read: the stages whose results these
    read, beside their own.
    """

    def __init__(self, graphs: StepGraphs, read: Stages | None = None) -> None:
        self.graphs = graphs
        self.read = read
        self.is_prepared = False
        self.captured: dict[Hashable, Captured] = {}
        self._has_given_up = False

    def __len__(self) -> int:
        return len(self.captured)

    def run(self, name: Hashable, key: Hashable, stage: Callable[[], Result]) -> Result:
        """Return what `stage` returns, by capture or replay where possible.

        name: of the stage in a step; key: identifies its shapes among the stages of that name.
        """
        if self._has_given_up:
            return stage()
        captured = self.captured.get((name, key))
        if captured is not None:
            captured.replay()
        else:
            captured = self._capture(name, stage, logging.DEBUG) if self.is_prepared else None
            if captured is None:
                result = stage()
                captured = self._capture(name, stage, logging.WARNING)
                if captured is None:
                    # The result of the call is valid, but stages that read it must not be captured.
                    self._has_given_up = True
                    self.captured.clear()
                    return result
            self.captured[name, key] = captured
            self.graphs.make_room()
        self.graphs.num_replays += 1
        return captured.result

    def _capture(self, name: Hashable, stage: Callable[[], Any], level: int) -> Captured | None:
        """Capture and replay a stage; None if that fails, which is logged at this level."""
        try:
            captured = self.graphs.capture(name, stage)
            captured.replay()
        except Exception:
            log.log(level, "a stage of a step cannot be captured: %s", name, exc_info=True)
            return None
        return captured

    def to_static(self, tree: DraftTree) -> DraftTree:
        """Return `tree` at fixed addresses: itself if a replay wrote it, else a copy."""
        if any(
            _is_same(own, tree) for each in self.captured.values() for own in _trees(each.result)
        ):
            return tree
        return self.graphs.to_static(tree)


class StepGraphs:
    """The captured stages of all step shapes, and the static tensors that they read.

    limits: larger steps run without graphs. max_graphs: how many graphs are kept, at least those of one
    shape. captured_at: the occurrence of a shape from which its steps are captured. announcer: to the
    other ranks; None where there are none.
    prepares: whether steps of a shape run without graphs first, unless they are captured at once.
    num_captured: graphs captured so far; num_replays: calls that were served by a replay.
    captures_at_start: common shapes are worth capturing before the first request. fills_up: rows of
    padding make many sizes one, since they cost little. may_end_early: a stage may end before it is
    done, and is run again then; otherwise each of its runs is whole.
    """

    captures_at_start = fills_up = True
    may_end_early = False

    def __init__(
        self,
        device: torch.device,
        limits: CaptureLimits = NO_LIMITS,
        *,
        max_graphs: int = MAX_GRAPHS,
        captured_at: int = 1,
        announcer: Announcer | None = None,
    ) -> None:
        self._device = device
        self.limits = limits
        self._max_graphs = max_graphs
        self._captured_at = captured_at
        self.prepares = captured_at > 1
        self._num_seen: Counter[Hashable] = Counter()
        self._announcer = announcer
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

    def new_stages(self, read: Stages | None = None) -> Stages:
        """Return the stages of a new shape."""
        return Stages(self, read)

    def serves(self, step: StepSizes) -> bool:
        """Return whether steps of this size can be captured."""
        return 0 < step.num_sequences <= self.limits.num_seqs

    def bucket(self, num: int) -> int:
        """Return the number of sequences of the graph that serves `num`."""
        return bucket_of(num) if self.fills_up else num

    def captures(self, shape: Hashable, *, at_once: bool) -> bool:
        """Count a step of this shape, and return whether it runs from graphs.

        at_once: whatever occurred before.
        """
        self._num_seen[shape] += self._captured_at if at_once else 1
        return self._num_seen[shape] >= self._captured_at

    def of(self, shape: Hashable, read: Stages | None = None) -> Stages:
        """Return the stages of a step of this shape, and mark the shape as used last.

        read: the stages of another shape whose results they read too. Stages that have read those of a
        shape that was dropped since are not returned.
        """
        stages = self._shapes.pop(shape, None)
        if stages is None or stages.read is not read:
            stages = self.new_stages(read)
        self._shapes[shape] = stages
        return stages

    def make_room(self) -> None:
        """Drop the least recently used shapes while there are more than `max_graphs` graphs.

        The last shape stays. A batch that is still running holds a reference to its own stages.
        """
        num_kept = sum(map(len, self._shapes.values()))
        while num_kept > self._max_graphs and len(self._shapes) > 1:
            _, dropped = self._shapes.popitem(last=False)
            num_kept -= len(dropped)

    def send_inputs(self, num: int, width: int, packed: np.ndarray) -> None:
        """Stage the inputs of a step of this shape, concurrently with running work."""
        inputs = self._inputs.get((num, width))
        if inputs is None:
            inputs = self._inputs[num, width] = StepInputs.empty(num, width, self._device)
            inputs.taken = self._inbox.mark()
        with self._inbox.arriving(after=inputs.taken):
            refill(inputs.staged, packed)
        inputs.staged_from = packed

    def take_inputs(
        self, num: int, width: int, packed: np.ndarray, lengths_A: torch.Tensor
    ) -> StepInputs:
        """Return the inputs of steps of this shape, filled with `packed`.

        They are sent again if another step's inputs were staged since. `lengths_A`: static tensor.
        """
        inputs = self._inputs[num, width]
        if inputs.staged_from is not packed:
            self.send_inputs(num, width, packed)
        self._own.run("inputs", (num, width), lambda: inputs.take(lengths_A))
        inputs.taken, inputs.staged_from = self._inbox.mark(), None
        return inputs

    def params(self, num: int, params: BatchParams) -> BatchParams:
        """Return a copy of `params` at fixed addresses with `num` rows, filled again only if they
        changed."""
        key = (num, params.signature)
        padded, filled_from = self._params.get(key, (None, None))
        if padded is None:
            padded = params.padded(num)
        elif filled_from is not params:
            padded.copy_(params)
        self._params[key] = (padded, params)
        return padded

    def capture(self, name: Hashable, stage: Callable[[], Any]) -> Captured:
        """Capture a stage that has run once, on all ranks that have a part in it."""
        announcer = self._announcer
        if announcer is None:
            captured = Captured(*self._record(name, stage))
        else:
            with announcer.capturing() as announced:
                graph, result = self._record(name, stage)
            captured = Captured(graph, result)
            if (number := announced.number) is not None:
                captured = Captured(graph, result, partial(announcer.replaying, number))
                announcer.own(captured, number)
        self.num_captured += 1
        self._alive.setdefault(name, WeakSet()).add(captured)
        return captured

    def _record(self, name: Hashable, stage: Callable[[], Any]) -> tuple[Replayed, Any]:
        """Return the graph of a stage and its result."""
        if not self._alive.get(name):  # a pool without graphs cannot be used again
            self._pools[name] = torch.cuda.graph_pool_handle()
        return recorded(stage, self._pools[name])

    def to_static(self, tree: DraftTree) -> DraftTree:
        """Return a copy of `tree` in tensors that all trees of its shape and kind share."""
        tensors = _tensors(tree)
        key = (tree.tokens_BW.shape, tree.is_chain, tree.source_BW is None, tree.score_BW is None)
        held = self._held.get(key)
        if held is None:
            copies = [None if t is None else t.clone() for t in tensors]
            tokens_BW, parents_BW, sizes_B, source_BW, score_BW = copies
            assert tokens_BW is not None and parents_BW is not None and sizes_B is not None
            held = replace(
                tree,
                tokens_BW=tokens_BW,
                parents_BW=parents_BW,
                sizes_B=sizes_B,
                source_BW=source_BW,
                score_BW=score_BW,
            )
            self._held[key] = held
        else:
            for mine, theirs in zip(_tensors(held), tensors, strict=True):
                if mine is not None and theirs is not None and mine is not theirs:
                    mine.copy_(theirs)
        return replace(held)

    def to_static_array(self, key: Hashable, values: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Return a copy of the numbers at a fixed address, one for each key, shape and type."""
        key = (key, tuple(values.shape), str(values.dtype))
        held = self._arrays.get(key)
        if held is None:
            sent = send(values, self._device)  # on a CPU in the memory of the values
            held = self._arrays[key] = sent if sent.is_cuda else sent.clone()
        else:
            refill(held, values)
        return held

    def to_static_array_async(self, key: Hashable, values: torch.Tensor) -> torch.Tensor:
        """`to_static_array`, concurrently with running work, which must not read the old values."""
        with self._inbox.arriving():
            return self.to_static_array(key, values)


def _tensors(tree: DraftTree) -> tuple[torch.Tensor | None, ...]:
    return tree.tokens_BW, tree.parents_BW, tree.sizes_B, tree.source_BW, tree.score_BW


def _trees(result: object) -> list[DraftTree]:
    results = result if isinstance(result, tuple) else (result,)
    return [each for each in results if isinstance(each, DraftTree)]


def _is_same(tree: DraftTree, other: DraftTree) -> bool:
    return all(a is b for a, b in zip(_tensors(tree), _tensors(other), strict=True))
