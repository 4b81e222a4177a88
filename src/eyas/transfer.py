"""Between host and device without waiting for more than what is asked for.

Promises: `send` and `refill` never wait for work under way on a device: the numbers go through pinned
memory that torch keeps until the copy is done. A `HostCopy` waits for what was under way when it was
made, and for nothing after it; nor does what comes after it wait, sent by an `Outbox`. What arrives
through an `Inbox` waits for nothing that need not be done.
Does not know: what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch


def send(
    values: np.ndarray | torch.Tensor | Sequence[int] | Sequence[Sequence[int]],
    device: torch.device,
) -> torch.Tensor:
    """A tensor on `device` with these values; of lists, int64. A tensor of values is `reachable`."""
    if isinstance(values, torch.Tensor):
        return values.to(device, non_blocking=True)
    array = values if isinstance(values, np.ndarray) else np.array(values, dtype=np.int64)
    host = torch.from_numpy(array)
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)


def refill(tensor: torch.Tensor, values: np.ndarray | torch.Tensor) -> None:
    """Put values into a tensor that stays where it is; a tensor of values is `reachable`."""
    host = values if isinstance(values, torch.Tensor) else torch.from_numpy(values)
    if tensor.device.type != "cpu" and host is not values:
        host = host.pin_memory()
    tensor.copy_(host.view_as(tensor), non_blocking=True)


def reachable(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Int32 numbers on the host, whatever they are, where a device can fetch them by itself."""
    return torch.empty(shape, dtype=torch.int32, pin_memory=device.type != "cpu")


class BlankPages:
    """`reachable` zeros, made when there is time for it. device: who fetches them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._made: torch.Tensor | None = None

    def make(self, shape: tuple[int, ...]) -> None:
        """One for whoever comes next, who will probably want as much; in any thread."""
        self._made = self._blank(shape)

    def take(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Zeros for the caller alone."""
        made, self._made = self._made, None
        return self._blank(shape) if made is None or tuple(made.shape) != shape else made

    def _blank(self, shape: tuple[int, ...]) -> torch.Tensor:
        with torch.cuda.device(self._device if self._device.type == "cuda" else -1):
            page = reachable(shape, self._device)
        page.numpy()[:] = 0  # torch would wake threads for it, and these stay awake
        return page


class HostCopy:
    """Tensors on their way to the host, behind the work that makes them (see `Outbox`)."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        self._sources: tuple[torch.Tensor, ...] = ()
        self._tensors = dict(tensors)
        if all(tensor.device.type == "cpu" for tensor in self._tensors.values()):
            return
        self._sources = tuple(self._tensors.values())  # memory that is nobody else's till then
        for name, tensor in self._tensors.items():
            pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._tensors[name] = pinned.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def read(self) -> dict[str, torch.Tensor]:
        """The tensors on the host; waits until they are there."""
        if self._event is not None:
            self._event.synchronize()
            self._sources = ()
        return self._tensors


class Inbox:
    """Numbers of the host arrive beside the work under way. On a CPU all of this happens at once."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def mark(self) -> torch.cuda.Event | None:
        """What has been launched so far."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._stream.device))
        return event

    @contextmanager
    def arriving(self, after: torch.cuda.Event | None = None) -> Iterator[None]:
        """Copies that wait for what was launched before a mark and for nothing else; what is launched
        behind them waits for them."""
        if self._stream is None:
            yield
            return
        if after is not None:
            self._stream.wait_event(after)
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


class Outbox:
    """Results leave for the host beside the work that is launched after them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def send(self, tensors: Mapping[str, torch.Tensor]) -> HostCopy:
        """They start as soon as what has been launched so far is done."""
        if self._stream is None:
            return HostCopy(tensors)
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            return HostCopy(tensors)

    def settle(self) -> None:
        """What is launched from here on may overwrite what was sent: it waits until that has left."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
