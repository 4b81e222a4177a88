"""The store of responses: what GET /v1/responses/{id} and previous_response_id read.

Promises: bounded by bytes, number and age. An owner (an API key) reads and deletes its own responses
only, and when the store is full, the owner that holds the most bytes loses its oldest. Does not know:
what a response contains, HTTP.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

ENTRY_BYTES = 1024
"""What an entry takes besides its texts, generously."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as JSON, and the conversation that a next one continues
    (`eyas.server.responses.conversion.encode_conversation`)."""

    response: bytes
    conversation: bytes

    @property
    def num_bytes(self) -> int:
        return len(self.response) + len(self.conversation) + ENTRY_BYTES


class ResponseStore:
    """The responses of all owners. Its methods may be called by several threads."""

    def __init__(
        self,
        max_bytes: int,
        max_count: int,
        max_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """max_bytes: 0 stores nothing. now: the clock, in seconds."""
        self._max_bytes = max_bytes
        self._max_count = max_count
        self._max_seconds = max_seconds
        self._now = now
        self._lock = threading.Lock()
        self._of_owner: dict[str, OrderedDict[str, tuple[float, StoredResponse]]] = {}
        self._num_bytes_of: dict[str, int] = {}
        self._num_bytes = 0
        self._count = 0

    @property
    def is_on(self) -> bool:
        return self._max_bytes > 0

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def put(self, owner: str, response_id: str, stored: StoredResponse) -> None:
        """Store a response; older ones make room. One that is larger than the whole store is not
        stored."""
        if stored.num_bytes > self._max_bytes:
            return
        with self._lock:
            self._drop_old()
            self._remove(owner, response_id)
            entries = self._of_owner.setdefault(owner, OrderedDict())
            entries[response_id] = (self._now(), stored)
            self._add(owner, stored.num_bytes, 1)
            while self._num_bytes > self._max_bytes or self._count > self._max_count:
                largest = max(self._num_bytes_of, key=self._num_bytes_of.__getitem__)
                self._remove(largest, next(iter(self._of_owner[largest])))

    def get(self, owner: str, response_id: str) -> StoredResponse | None:
        """Return a response of this owner; None if it is not stored."""
        with self._lock:
            self._drop_old()
            found = self._of_owner.get(owner, {}).get(response_id)
            return None if found is None else found[1]

    def delete(self, owner: str, response_id: str) -> bool:
        """Delete a response of this owner. Return whether it was stored."""
        with self._lock:
            self._drop_old()
            return self._remove(owner, response_id)

    def _drop_old(self) -> None:
        """Remove what is too old: the first entries of each owner."""
        limit = self._now() - self._max_seconds
        for owner in list(self._of_owner):
            while (entries := self._of_owner.get(owner)) and (
                (oldest := next(iter(entries.items())))[1][0] < limit
            ):
                self._remove(owner, oldest[0])

    def _remove(self, owner: str, response_id: str) -> bool:
        entries = self._of_owner.get(owner, {})
        removed = entries.pop(response_id, None)
        if removed is None:
            return False
        self._add(owner, -removed[1].num_bytes, -1)
        if not entries:
            del self._of_owner[owner], self._num_bytes_of[owner]
        return True

    def _add(self, owner: str, num_bytes: int, count: int) -> None:
        self._num_bytes_of[owner] = self._num_bytes_of.get(owner, 0) + num_bytes
        self._num_bytes += num_bytes
        self._count += count
