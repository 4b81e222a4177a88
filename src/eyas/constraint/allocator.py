"""The memory on the process's heap, as the C library's allocator counts it.

Grammar libraries do not report how much memory they hold, and it grows as outputs are read. glibc
counts what it has handed out and not got back. A cache of keys and values or a checkpoint is one large
piece from the beginning on, so changes while a server runs are mostly grammars'.

Promises: None where the C library has no such count, or another allocator serves its callers.
Does not know: who holds what.
"""

from __future__ import annotations

import ctypes
from typing import Protocol

from eyas.native.heap import return_free_memory

PROBE_BYTES = 4 * 2**20
"""Allocated once, to see whether it is counted."""


class Allocator(Protocol):
    """Counts what is on the heap."""

    def num_bytes(self) -> int:
        """Return the bytes handed out and not given back. Takes milliseconds where the heap is in many
        pieces; other threads wait for some of it when they allocate."""
        ...

    def trim(self) -> None:
        """Return free memory on the heap to the system, in about as much time."""
        ...


class _Counts(ctypes.Structure):
    """`struct mallinfo2` of glibc, version 2.33 and later."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


class _Glibc:
    """All arenas of all threads, and pieces that were mapped one by one."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)  # which lets other threads run meanwhile
        self._count = library.mallinfo2
        self._count.restype = _Counts

    def num_bytes(self) -> int:
        counts = self._count()
        return int(counts.uordblks + counts.hblkhd)

    def trim(self) -> None:
        return_free_memory()


def process_allocator() -> Allocator | None:
    """Return this process's allocator, or None where it cannot be asked."""
    try:
        allocator = _Glibc()
    except (AttributeError, OSError, TypeError):  # another C library or system
        return None
    before = allocator.num_bytes()
    probe = bytearray(PROBE_BYTES)
    is_counted = allocator.num_bytes() - before >= len(probe) // 2
    return allocator if is_counted else None  # not, where another allocator was loaded before it
