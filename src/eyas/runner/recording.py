"""Recordings of stages on a CPU: what a CUDA graph is on a GPU.

A stage is run once while torch's operations and the calls of compiled C are noted. A replay runs these
again with the same tensors, without the Python that has led to them, which takes as long as the numbers
of a small model do. Views and empty tensors need nothing: what they refer to stays.

Promises: a replay has the bits of the stage. Conditions that the host reads are checked: where one has
changed, the stage is called. A stage that reads other numbers of a tensor on the host, draws random
numbers, or makes a tensor whose shape depends on data, is refused while it is recorded; so is one whose
tensors take more than `MOST_BYTES`. What a stage does to objects of Python is not done again.
Does not know: what a stage computes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from eyas.draft_tree import DraftTree
from eyas.native.build import ConditionChanged, noting_calls
from eyas.native.steps import compiled_steps
from eyas.runner.graphs import NO_LIMITS, CaptureLimits, Stages, StepGraphs
from eyas.runner.step_inputs import StepSizes

log = logging.getLogger(__name__)

Result = TypeVar("Result")

FORWARD = "forward"
"""The stage without which recording is of no use."""
RECORDED_AT = 2
"""The occurrence of a step's shape that is recorded: it takes about twice as long."""
MOST_CHANGES = 8
"""How often a recording may be found to go another way before it is not replayed any more."""
MOST_RECORDINGS, MOST_OF_SHAPE = 256, 48
"""Stages that are kept, and those of one step shape; each has tensors of its own."""
MOST_DRAFTING = 4
"""Sequences with drafts of a step that is recorded."""
MOST_BYTES = 8 << 20
"""Of all tensors that a recording keeps. Where they are larger, Python does not matter."""
_READS = frozenset(
    {
        *("tolist", "numpy", "item", "__array__", "__dlpack__"),
        *("__int__", "__index__", "__float__"),
    }
)
"""Methods of a tensor that return its numbers."""
_UNSUITABLE = frozenset(
    {
        torch.Tag.data_dependent_output,
        torch.Tag.dynamic_output_shape,
        torch.Tag.nondeterministic_seeded,
    }
)
"""Tags of operations that read numbers, whose results have a shape that depends on them, or that are
random."""
_COMPOSITE = frozenset({"item", "is_nonzero", "argwhere", "nonzero_numpy", "unique_dim"})
"""Such operations that have no tag, because they consist of others."""
_EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
_CONSTANT = frozenset(
    {
        *("arange", "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones"),
        *("full", "full_like", "new_full"),
    }
)
"""Operations whose results have the same numbers each time."""


class NotRecordable(Exception):
    """A stage cannot be replayed; says why."""


class TooLarge(NotRecordable):
    """A stage makes more tensors than are worth keeping."""


class Recording:
    """The operations of a stage, in order. It keeps their tensors alive."""

    def __init__(self) -> None:
        self._operations: list[Callable[[], object]] = []
        self._kept: list[Any] = []
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._operations)

    def replay(self) -> None:
        """Run the operations again."""
        for operation in self._operations:
            operation()

    def reset(self) -> None:
        """Forget the operations and their tensors."""
        self._operations.clear()
        self._kept.clear()

    def add(self, operation: Callable[[], object]) -> None:
        self._operations.append(operation)

    def keep(self, *values: Any) -> None:
        """Keep tensors for as long as the recording lives."""
        self._kept.append(values)

    def count(self, tensor: torch.Tensor) -> None:
        """Count a tensor that the stage has made. Raises TooLarge if all of them are."""
        self._num_bytes += tensor.nbytes
        if self._num_bytes > MOST_BYTES:
            raise TooLarge(f"its tensors take more than {MOST_BYTES >> 20} MiB")


def record(stage: Callable[[], Result]) -> tuple[Recording, Result]:
    """Run a stage on a CPU. Returns its recording, and the result that replays write.

    Raises NotRecordable if it cannot be replayed.
    """
    recording = Recording()
    with noting_calls(recording.add), _Operations(recording), _Reads(recording):
        result = stage()
    return recording, result


class _Operations(TorchDispatchMode):
    """Notes the operations of torch."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it imports it, which takes more than a second

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2].rstrip("_")
        if name in _COMPOSITE or _depends_on_data(name, func, args):
            raise NotRecordable(f"it uses {func._schema.name}")
        result = func(*args, **kwargs)
        recording = self._recording
        recording.keep(args, kwargs, result)
        if func._schema.is_mutable:
            recording.add(partial(func, *args, **kwargs))
            return result
        results = result if isinstance(result, tuple | list) else (result,)
        if not all(isinstance(each, torch.Tensor) for each in results):
            raise NotRecordable(f"{func._schema.name} returns no tensor")
        own = {_memory(each) for each in (*args, *kwargs.values()) if _is_tensor(each)}
        made = [each for each in results if _memory(each) not in own]
        for each in made:
            recording.count(each)
        if not made or name in _EMPTY:
            return result
        if name in _CONSTANT:
            recording.add(partial(result.copy_, result.clone()))
        elif isinstance(result, torch.Tensor):
            recording.add(partial(_again, func, args, kwargs, result))
        else:
            recording.add(partial(_all_again, func, args, kwargs, tuple(results)))
        return result


class _Reads(TorchFunctionMode):
    """Refuses to return numbers of tensors to the host, but for conditions, which replays check."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _READS:
            raise NotRecordable("it reads numbers on the host")
        if name == "__bool__":
            with _disable_current_modes():
                holds = func(*args)
            self._recording.add(partial(_check, args[0], holds))
            return holds
        return func(*args, **(kwargs or {}))


def _check(condition: torch.Tensor, holds: bool) -> None:
    if bool(condition) != holds:
        raise ConditionChanged


def _again(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> None:
    """Run an operation again, and write what it returns to the tensor of the first time."""
    _write(func, result, func(*args, **kwargs))


def _all_again(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: tuple[torch.Tensor, ...]
) -> None:
    """Repeat an operation that returns several tensors, into the tensors of its first run."""
    for old, new in zip(results, func(*args, **kwargs), strict=True):
        _write(func, old, new)


def _write(func: Any, old: torch.Tensor, new: torch.Tensor) -> None:
    if old.shape != new.shape:
        raise ConditionChanged(f"{func._schema.name} returned another shape")
    old.copy_(new)


def _depends_on_data(name: str, func: Any, args: tuple[Any, ...]) -> bool:
    """Whether numbers decide about the shape of a result, or about more than its numbers."""
    if name == "index":  # by a condition, or by positions
        return any(_is_tensor(each) and each.dtype in (torch.bool, torch.uint8) for each in args[1])
    if name == "repeat_interleave":
        return any(map(_is_tensor, args[1:]))
    return (name == "where" and len(args) == 1) or not _UNSUITABLE.isdisjoint(func.tags)


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _memory(tensor: torch.Tensor) -> int | None:
    """Return where a tensor's numbers are; None for a weight in oneDNN's layout, which has no views."""
    return None if tensor.is_mkldnn else tensor.untyped_storage().data_ptr()


class RecordedStages(Stages):
    """The recorded stages of one step shape.

    A stage that cannot be recorded, or that would go another way this time, is called, and so are those
    of the same step that come after it, since they may read its result. num_sequences, width: of the
    step.
    """

    def __init__(self, graphs: Recordings, read: Stages | None = None) -> None:
        super().__init__(graphs, read)
        self._recordings = graphs
        self._refused: set[Hashable] = set()
        self._num_changes: Counter[Hashable] = Counter()
        self.has_called = False
        self.num_sequences = self.width = 1

    def run(self, name: Hashable, key: Hashable, stage: Callable[[], Result]) -> Result:
        captured = self.captured.get((name, key))
        is_full = captured is None and len(self) >= MOST_OF_SHAPE
        if self.has_called or is_full or (name, key) in self._refused:
            self.has_called = True
            return stage()
        try:
            if captured is not None:
                captured.replay()
            else:
                captured = self.captured[name, key] = self.graphs.capture(name, stage)
                self.graphs.make_room()
        except NotRecordable as why:
            log.debug("a stage of a step is not recorded: %s: %s", name, why)
            self._refused.add((name, key))
            if name == FORWARD:
                num = self.num_sequences if isinstance(why, TooLarge) else 1
                self._recordings.refuse(num, self.width)
        except ConditionChanged:
            self._num_changes[name, key] += 1
            if self._num_changes[name, key] == MOST_CHANGES:
                self._refused.add((name, key))
        else:
            self.graphs.num_replays += 1
            return captured.result
        self.has_called = True
        return stage()

    def to_static(self, tree: DraftTree) -> DraftTree:
        """Return a copy, also of what a replay wrote: each recording of a draft has a tree of its own,
        and stages that read it would be recorded for each."""
        return self.graphs.to_static(tree)


class Recordings(StepGraphs):
    """The recorded stages of all step shapes on a CPU.

    They are those of plain steps, and of a few sequences that draft: more have too many numbers of
    missing rows, and those and prompts take much longer than Python.

    Results are valid until the next step, so a step has to land before that. A stage ends early if it
    is refused, or if a replay has gone another way. refused_from: by the width
    of trees, the least number of sequences with which forward passes cannot be recorded, so nothing
    else is.
    """

    captures_at_start = fills_up = False
    may_end_early = True

    def __init__(
        self,
        device: torch.device,
        limits: CaptureLimits = NO_LIMITS,
        *,
        recorded_at: int = RECORDED_AT,
    ) -> None:
        super().__init__(device, limits, max_graphs=MOST_RECORDINGS, captured_at=recorded_at)
        compiled_steps(device)  # its check reads numbers, which a recording may not
        self.refused_from: dict[int, int] = {}

    def new_stages(self, read: Stages | None = None) -> RecordedStages:
        return RecordedStages(self, read)

    def of(self, shape: Hashable, read: Stages | None = None) -> Stages:
        stages = super().of(shape, read)
        assert isinstance(stages, RecordedStages) and isinstance(shape, tuple)
        stages.has_called = False
        stages.num_sequences, stages.width = shape[:2]
        return stages

    def refuse(self, num_sequences: int, width: int) -> None:
        """Record no more steps with trees of this width and so many sequences, or more of them."""
        least = self.refused_from.get(width, num_sequences)
        self.refused_from[width] = min(least, num_sequences)

    def serves(self, step: StepSizes) -> bool:
        num, width = step.num_sequences, step.width
        is_kind = (width == 1 or num <= MOST_DRAFTING) and not step.num_prompt_rows
        is_refused = width in self.refused_from and num >= self.refused_from[width]
        return is_kind and not is_refused and super().serves(step)

    def _record(self, name: Hashable, stage: Callable[[], Any]) -> tuple[Recording, Any]:
        return record(stage)
