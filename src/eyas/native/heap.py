"""The C library's heap.

Promises: nothing where the C library is not glibc.
Does not know: what is on the heap.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


def return_free_memory() -> None:
    """Return memory that was freed to the system, also between pieces that are in use. It takes about a
    millisecond, more where there are many pieces."""
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library or system
        return None
    function.argtypes = [ctypes.c_size_t]
    return function
