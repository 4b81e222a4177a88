"""Compiled grammars that are cached for later requests, within a bound on memory.

A grammar grows while outputs are read: its library makes states of its lexer as texts need them. Where
the process's allocator counts, the bound is on what grammars hold by that count, with those of running
outputs and their states; elsewhere on the grammars' own estimates.

The count is of the whole process. What was there before the first grammar is subtracted, and what is
there whenever no grammar is left. Other growth looks like grammars' until dropping grammars has not
helped for a while; then it is subtracted as well.

Promises: the least recently used grammars are dropped first; what they free returns to the system.
Does not know: who compiles and reads grammars.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict

from eyas.constraint.allocator import Allocator
from eyas.constraint.base import Grammar
from eyas.constraint.threads import started
from eyas.core import GrammarsUnavailable

LOOK_SECONDS = 2.0
"""Seconds between two looks at the allocator, while there are grammars."""
LEAST_SECONDS = 0.2
"""The same after a grammar was compiled."""
RESIDENT = 1.25
"""Bytes that the process takes for each that is in use: what lies free between them cannot be returned.
1.05 to 1.45 were measured, the more the longer grammars have come and gone."""
TRIM_BYTES = 16 * 2**20
"""So much is free before it is returned."""
PATIENCE = 5
"""Looks in a row after which growth that dropping grammars does not stop is taken for other memory."""
RECOUNTS, RECOUNT_SECONDS = 3, 0.02
"""Readings of the count when it is above the bound, since a step's own tensors come and go."""


class GrammarCache:
    """max_bytes: that grammars may hold. Without an allocator at least the newest is cached."""

    def __init__(self, max_bytes: int, allocator: Allocator | None = None) -> None:
        self._max_bytes = max_bytes
        self._allocator = allocator
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._grammars: OrderedDict[bytes, Grammar] = OrderedDict()
        self._alive: list[weakref.ref[Grammar]] = []
        self._base = self._used = self._peak = self._held = self._num_vain = 0
        self._num_begun = 0
        self._is_watched = self._is_used = False
        self._is_wanted, self._is_closed = threading.Event(), threading.Event()

    def __len__(self) -> int:
        return len(self._grammars)

    @property
    def num_bytes(self) -> int:
        """Bytes that grammars hold; where the allocator counts, at the last look."""
        if self._allocator is not None:
            return self._held
        with self._lock:
            return self._told_bytes()

    def find(self, key: bytes) -> Grammar | None:
        """Return the grammar, which becomes the most recently used."""
        with self._lock:
            if key in self._grammars:
                self._grammars.move_to_end(key)
            return self._grammars.get(key)

    def begin(self) -> None:
        """Note that a grammar is about to be compiled. Not on a thread that others wait for."""
        if self._allocator is None:
            return
        with self._lock:
            is_first, self._is_watched = not self._is_watched, True
        if is_first:
            try:
                started(self._watch, "eyas-grammar-memory")
            except GrammarsUnavailable:
                self._is_watched = False  # the next compilation tries again
        with self._looking:
            if not (self._alive or self._num_begun):
                self._count(self._allocator)
            self._num_begun += 1

    def keep(self, key: bytes, grammar: Grammar) -> None:
        """Cache a grammar for later requests."""
        with self._lock:
            self._grammars[key] = grammar
            if self._allocator is not None:
                self._alive.append(weakref.ref(grammar))
        if self._allocator is None:
            while self._told_excess() and self._let_go(1):
                pass

    def end(self) -> None:
        """Note that a compilation has ended: look soon."""
        with self._looking:
            self._num_begun -= 1
        self._is_wanted.set()

    def settle(self) -> None:
        """Look how much is held, and drop what is too much. Runs on a thread of its own."""
        allocator = self._allocator
        if allocator is None:
            return
        with self._looking:
            excess = self._lasting_excess(allocator)
            was_over = excess > 0
            while excess > 0 and self._let_go(self._share(excess)):
                excess = self._count(allocator) - self._max_bytes
            self._num_vain = self._num_vain + 1 if excess > 0 else 0
            if self._num_vain >= PATIENCE:
                self._base = self._used - self._max_bytes // 2
                self._num_vain = 0
                self._count(allocator)
            if was_over or self._peak - self._used >= TRIM_BYTES:
                self._trim(allocator)

    def close(self) -> None:
        """End the thread."""
        self._is_closed.set()
        self._is_wanted.set()

    def _watch(self) -> None:
        allocator = self._allocator
        assert allocator is not None
        while not self._is_closed.is_set():
            has_ended = self._is_wanted.wait(LOOK_SECONDS if self._alive or self._is_used else None)
            self._is_wanted.clear()
            self._is_used |= has_ended
            self.settle()
            if self._is_used and not has_ended:  # what compilers needed on the way is free
                with self._looking:
                    self._trim(allocator)
            self._is_closed.wait(LEAST_SECONDS)

    def _trim(self, allocator: Allocator) -> None:
        """Return free memory to the system, within a look."""
        allocator.trim()
        self._peak, self._is_used = self._used, False

    def _lasting_excess(self, allocator: Allocator) -> int:
        """Return the bytes beyond the bound, the least of a few readings."""
        excess = self._count(allocator) - self._max_bytes
        for _ in range(RECOUNTS - 1):
            if excess > 0:
                time.sleep(RECOUNT_SECONDS)
                excess = self._count(allocator) - self._max_bytes
        return excess

    def _count(self, allocator: Allocator) -> int:
        """Return the bytes that grammars hold now."""
        with self._lock:
            self._alive = [each for each in self._alive if each() is not None]
            is_rest = not (self._alive or self._num_begun)
        used = allocator.num_bytes()
        self._base = used if is_rest else min(self._base, used)
        self._used, self._peak = used, max(self._peak, used)
        self._held = int(RESIDENT * (used - self._base))
        return self._held

    def _share(self, excess: int) -> int:
        """Return how many grammars hold about so much."""
        return max(1, len(self._grammars) * excess // max(1, self._held))

    def _let_go(self, num: int) -> bool:
        """Drop the least recently used grammar. Returns False where there is none to drop."""
        least = 1 if self._allocator is None else 0
        gone: list[Grammar] = []
        with self._lock:
            while len(gone) < num and len(self._grammars) > least:
                gone.append(self._grammars.popitem(last=False)[1])
        return bool(gone)  # and here they end, without the lock

    def _told_bytes(self) -> int:
        """Return the grammars' own estimate. The lock is held."""
        return sum(len(key) + grammar.num_bytes for key, grammar in self._grammars.items())

    def _told_excess(self) -> bool:
        with self._lock:
            return self._told_bytes() > self._max_bytes
