"""Handle the first of some signals, and leave the next one to its usual effect.

Does not know: what is done about them.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


@contextmanager
def first_signal(numbers: Sequence[int], handle: Callable[[int], None]) -> Iterator[None]:
    """Call `handle` with the first of these signals until the block ends; the next one has its usual
    effect. Outside of the main thread, which gets signals, all have it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in numbers}

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
