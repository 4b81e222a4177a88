"""CUDA graphs and copies as unkind as they may be, on a CPU: what a stage returned is spoilt whenever a
namesake of its runs, and results leave for the host at the last moment.

A replay does what was captured, with the tensors of that time, and fills what was returned then. Where
a stage reads what is neither static, nor held, nor this step's, the tokens are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch

from eyas.engine.engine import Engine
from eyas.runner.graphs import MAX_GRAPHS, NO_LIMITS, CaptureLimits, Stages, StepGraphs
from eyas.runner.rows import ForwardRows
from eyas.runner.runner import Output
from eyas.transfer import HostCopy, Outbox

SPOILT = 3


def tensors_of(result: Any) -> Iterator[torch.Tensor]:
    """All tensors of what a stage returned, in an order of its own."""
    if isinstance(result, torch.Tensor):
        yield result
    elif is_dataclass(result):
        for each in fields(result):
            yield from tensors_of(getattr(result, each.name))
    elif isinstance(result, list | tuple):
        for each in result:
            yield from tensors_of(each)


def _home(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@dataclass(eq=False)
class Replay:
    """own: which of the result's tensors the stage made; the others were there before."""

    stage: Callable[[], Any]
    result: Any
    own: list[bool]
    spoil_namesakes: Callable[[Replay], None]

    def mine(self, result: Any) -> Iterator[torch.Tensor]:
        for tensor, is_own in zip(tensors_of(result), self.own, strict=True):
            if is_own:
                yield tensor

    def replay(self) -> None:
        self.spoil_namesakes(self)
        fresh = list(self.mine(self.stage()))
        for old, new in zip(self.mine(self.result), fresh, strict=True):
            assert old.shape == new.shape, "a stage's shapes must not depend on data"
            old.copy_(new)

    def spoil(self) -> None:
        for tensor in self.mine(self.result):
            tensor.fill_(float("nan") if tensor.is_floating_point() else SPOILT)


class UnkindGraphs(StepGraphs):
    """num_spoilt: results that were. num_with_prompts: steps whose prompt chunks were in graphs."""

    def __init__(
        self,
        limits: CaptureLimits = NO_LIMITS,
        *,
        max_graphs: int = MAX_GRAPHS,
        captured_at: int = 1,
    ) -> None:
        super().__init__(
            torch.device("cpu"), limits, max_graphs=max_graphs, captured_at=captured_at
        )
        self._namesakes: dict[Hashable, list[Replay]] = {}
        self.num_spoilt = 0
        self.num_with_prompts = 0

    def of(self, shape: Hashable, read: Stages | None = None) -> Stages:
        self.num_with_prompts += read is not None
        return super().of(shape, read)

    def send_inputs(self, num: int, width: int, packed: np.ndarray) -> None:
        """A device's inputs were made where stages run, and may not be written to elsewhere."""
        assert torch.is_inference_mode_enabled()
        super().send_inputs(num, width, packed)

    def _record(self, name: Hashable, stage: Callable[[], Any]) -> tuple[Any, Any]:
        result, again = stage(), stage()
        pairs = zip(tensors_of(result), tensors_of(again), strict=True)
        own = [_home(one) != _home(other) for one, other in pairs]
        known = self._namesakes.setdefault(name, [])

        def spoil_namesakes(replay: Replay) -> None:
            for each in known:
                if each is not replay:
                    each.spoil()
                    self.num_spoilt += 1

        replay = Replay(stage, result, own, spoil_namesakes)
        known.append(replay)
        return replay, result


class LateCopy(HostCopy):
    """Made when it is read, or when what comes next may overwrite its source."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__(tensors)
        self._is_made = False

    def make(self) -> None:
        if not self._is_made:
            self._tensors = {name: tensor.clone() for name, tensor in self._tensors.items()}
            self._is_made = True

    def read(self) -> dict[str, torch.Tensor]:
        self.make()
        return super().read()


class LateOutbox(Outbox):
    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self._pending: list[LateCopy] = []

    def send(self, tensors: Mapping[str, torch.Tensor]) -> HostCopy:
        copy = LateCopy(tensors)
        self._pending.append(copy)
        return copy

    def settle(self) -> None:
        for copy in self._pending:
            copy.make()
        self._pending.clear()


def make_unkind(engine: Engine, max_graphs: int = MAX_GRAPHS, captured_at: int = 1) -> UnkindGraphs:
    """Let an engine run its steps from such graphs from now on. Its model writes to slots that it has:
    a device writes wherever it is told."""
    runner, last_slot = engine.runner, engine.info.num_slots
    forward = runner.forward

    def checked(rows: ForwardRows, taps: tuple[int, ...] = ()) -> Output:
        assert rows.write_slots_T.min() >= 0 and rows.write_slots_T.max() <= last_slot
        return forward(rows, taps)

    runner.forward = checked  # type: ignore[method-assign]
    limits = CaptureLimits(prompt_rows=512 if engine.runner.captures_prompts else 0)
    graphs = engine.launcher.graphs = UnkindGraphs(
        limits, max_graphs=max_graphs, captured_at=captured_at
    )
    engine.launcher._outbox = LateOutbox()
    return graphs
