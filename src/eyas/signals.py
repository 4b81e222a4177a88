"""Handle the first of some signals, and leave the next one to its usual effect.

Promises: nothing is changed outside of the main thread.

Does not know: what is done about them.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

_HELD_BACK = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2),
)
"""Not the timers of profilers, whose handlers look at the frame that they interrupt."""


@contextmanager
def first_signal(numbers: Sequence[int], handle: Callable[[int], None]) -> Iterator[None]:
    """Call `handle` with the first of these signals until the block ends; the next one has its usual
    effect. Outside of the main thread, which gets signals, all have it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found = ((number, signal.getsignal(number)) for number in numbers)
    handlers = {number: handler for number, handler in found if handler is not None}  # Python's own

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def record(number: int, frame: FrameType | None) -> None:
        restore()
        handle(number)

    for number in handlers:
        signal.signal(number, record)
    try:
        yield
    finally:
        restore()


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Let Ctrl-C, or another signal whose handler may raise an exception, have its effect when the
    block ends. A second one has it at once."""
    found: list[int] = []
    with first_signal([x for x in _HELD_BACK if callable(signal.getsignal(x))], found.append):
        yield
    for number in found:
        signal.raise_signal(number)
