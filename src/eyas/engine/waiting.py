"""Sequences that wait for a seat, in the order in which they are tried.

Promises: whose client holds fewest seats goes first, so a client with thousands of choices delays
nobody else's by more than the seats that it holds already; among one client's the oldest goes first,
and with one client alone all are in order of age. Does not know: slots, rows, what a client is.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace

from eyas.engine.sequence import Sequence


class WaitingQueue:
    """By client, each in order of age."""

    def __init__(self) -> None:
        self._by_client: dict[str, list[Sequence]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_client.values()))

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._by_client.get(sequence.request.client, ())

    def add(self, sequence: Sequence) -> None:
        """A new one, or one that gave up its seat and keeps its age."""
        of_client = self._by_client.setdefault(sequence.request.client, [])
        insort(of_client, sequence, key=lambda s: s.order)

    def remove(self, sequence: Sequence) -> None:
        client = sequence.request.client
        self._by_client[client].remove(sequence)
        if not self._by_client[client]:
            del self._by_client[client]

    def in_turn(self, running: Iterable[Sequence]) -> Iterator[Sequence]:
        """All that wait now, each as if those before it had been given a seat. Sequences may be removed
        meanwhile."""
        held = Counter(sequence.request.client for sequence in running)
        queues = {client: list(waiting) for client, waiting in self._by_client.items()}
        heads = [(held[client], queue[0].order, client, 0) for client, queue in queues.items()]
        heapify(heads)
        while heads:
            seats, _, client, place = heads[0]
            queue = queues[client]
            yield queue[place]
            if place + 1 < len(queue):
                heapreplace(heads, (seats + 1, queue[place + 1].order, client, place + 1))
            else:
                heappop(heads)
