"""A cache of the results of a pure function, by a digest of its arguments.

Promises: bounded in entries and bytes, the least recently used entry evicted first; thread-safe.
Does not know: schemas.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LruCache(Generic[Value]):
    """num_bytes: of all entries. num_hits, num_misses: counts of all look-ups."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._entries: OrderedDict[bytes, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.num_bytes = self.num_hits = self.num_misses = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> Value | None:
        """Return the cached value, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self.num_misses += 1
                return None
            self.num_hits += 1
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: bytes, value: Value, num_bytes: int) -> None:
        """Cache a value. num_bytes: of key and value; larger values than the bound are not cached."""
        with self._lock:
            if key in self._entries or num_bytes > self._max_bytes:
                return
            self._entries[key] = (value, num_bytes)
            self.num_bytes += num_bytes
            while self.num_bytes > self._max_bytes or len(self._entries) > self._max_entries:
                _, (_, freed) = self._entries.popitem(last=False)
                self.num_bytes -= freed
