"""Copies between host and device that do not wait for unrelated work.

Promises: `send` and `refill` never make the host wait for the device: the values go through pinned
memory, which torch keeps alive until the copy is done. A `HostCopy` waits for the work launched
before it and for nothing launched later; work launched after an `Outbox.send` does not wait for the
copy. Copies within `Inbox.arriving` run concurrently with all work launched after the given event.
Does not know: what the values mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch


def send(
    values: np.ndarray | torch.Tensor | Sequence[int] | Sequence[Sequence[int]],
    device: torch.device,
) -> torch.Tensor:
    """Return a tensor on `device` with these values; lists become int64. A tensor of values must be
    pinned, as those of `reachable` are."""
    if isinstance(values, torch.Tensor):
        return values.to(device, non_blocking=True)
    array = values if isinstance(values, np.ndarray) else np.array(values, dtype=np.int64)
    host = torch.from_numpy(array)
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)


def refill(tensor: torch.Tensor, values: np.ndarray | torch.Tensor) -> None:
    """Copy values into an existing tensor. A tensor of values must be pinned, as those of `reachable`
    are."""
    host = values if isinstance(values, torch.Tensor) else torch.from_numpy(values)
    if tensor.device.type != "cpu" and host is not values:
        host = host.pin_memory()
    tensor.copy_(host.view_as(tensor), non_blocking=True)


def reachable(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return an uninitialised int32 tensor on the host, pinned unless `device` is a CPU."""
    return torch.empty(shape, dtype=torch.int32, pin_memory=device.type != "cpu")


class BlankPages:
    """Allocates zeroed pinned tensors ahead of time. device: the one that they are copied to."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._made: torch.Tensor | None = None

    def make(self, shape: tuple[int, ...]) -> None:
        """Allocate the tensor that the next `take` of this shape returns. Can run in any thread."""
        self._made = self._zeros(shape)

    def take(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return int32 zeros that no other caller has."""
        made, self._made = self._made, None
        return self._zeros(shape) if made is None or tuple(made.shape) != shape else made

    def _zeros(self, shape: tuple[int, ...]) -> torch.Tensor:
        with torch.cuda.device(self._device if self._device.type == "cuda" else -1):
            zeros = reachable(shape, self._device)
        zeros.numpy()[:] = 0  # torch would start its threads for it, which then spin for a while
        return zeros


class HostCopy:
    """Copies of tensors to the host, ordered after the work that computes them (see `Outbox`)."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        self._sources: tuple[torch.Tensor, ...] = ()
        self._tensors = dict(tensors)
        if all(tensor.device.type == "cpu" for tensor in self._tensors.values()):
            return
        self._sources = tuple(
            self._tensors.values()
        )  # their memory must not be reused before the copy
        for name, tensor in self._tensors.items():
            pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._tensors[name] = pinned.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def read(self) -> dict[str, torch.Tensor]:
        """Wait until the copies are done, and return the tensors on the host."""
        if self._event is not None:
            self._event.synchronize()
            self._sources = ()
        return self._tensors


class Inbox:
    """Copies values from the host to the device on a stream of its own, concurrently with running work.

    On a CPU copies are done immediately.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def mark(self) -> torch.cuda.Event | None:
        """Record an event after the work launched so far; None on a CPU."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._stream.device))
        return event

    @contextmanager
    def arriving(self, after: torch.cuda.Event | None = None) -> Iterator[None]:
        """Run the copies launched inside the context on the stream of this inbox.

        They wait for `after` and for no other work. Work launched after the context waits for them.
        """
        if self._stream is None:
            yield
            return
        if after is not None:
            self._stream.wait_event(after)
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


class Outbox:
    """Copies results to the host on a stream of its own, concurrently with work launched later."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def send(self, tensors: Mapping[str, torch.Tensor]) -> HostCopy:
        """Start copies that wait for the work launched so far."""
        if self._stream is None:
            return HostCopy(tensors)
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            return HostCopy(tensors)

    def ending(self) -> Callable[[], bool] | None:
        """Return a function that tells whether the work launched so far has ended; None on a CPU, where
        nothing runs beside its caller."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._stream.device))
        return event.query

    def settle(self) -> None:
        """Make work launched from here on wait for all copies, so that it may overwrite what was
        sent."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
