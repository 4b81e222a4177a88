"""Sequences that wait for a seat, in the order in which the scheduler tries them.

Promises: a sequence of the client that holds the fewest seats comes first, so a client with thousands
of choices delays other clients by no more than the seats it already holds. Among sequences of one
client the oldest comes first.
Does not know: slots, rows, how clients are told apart.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace

from eyas.engine.sequence import Sequence


class WaitingQueue:
    """Waiting sequences by client, each client's in order of age."""

    def __init__(self) -> None:
        self._by_client: dict[str, list[Sequence]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_client.values()))

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._by_client.get(sequence.request.client, ())

    def add(self, sequence: Sequence) -> None:
        """Add a new sequence, or a preempted one, which keeps its age."""
        of_client = self._by_client.setdefault(sequence.request.client, [])
        insort(of_client, sequence, key=lambda s: s.order)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that waits."""
        client = sequence.request.client
        self._by_client[client].remove(sequence)
        if not self._by_client[client]:
            del self._by_client[client]

    def in_turn(self, running: Iterable[Sequence]) -> Iterator[Sequence]:
        """Yield the sequences that wait now, in the order of admission: each is chosen as if all before
        it had got seats. Sequences may be removed while iterating.

        running: the sequences that hold seats.
        """
        held = Counter(sequence.request.client for sequence in running)
        queues = {client: list(waiting) for client, waiting in self._by_client.items()}
        heads = [(held[client], queue[0].order, client, 0) for client, queue in queues.items()]
        heapify(heads)
        while heads:
            num_seats, _, client, index = heads[0]
            queue = queues[client]
            yield queue[index]
            if index + 1 < len(queue):
                heapreplace(heads, (num_seats + 1, queue[index + 1].order, client, index + 1))
            else:
                heappop(heads)
