"""Seats go to the client that holds fewest; nobody waits for ever."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.core import Request, SamplingParams
from eyas.engine.sequence import Sequence
from eyas.engine.stops import StopChecker
from eyas.engine.waiting import WaitingQueue
from eyas.llm import LLM


def sequence(client: str, order: int) -> Sequence:
    request = Request(id=f"{client}{order}", prompt_token_ids=[1], client=client)
    stops: Any = object.__new__(StopChecker)
    return Sequence(request, 0, order, 0, [1], 1, 10, stops)


def queue_of(*clients: str) -> WaitingQueue:
    queue = WaitingQueue()
    for order, client in enumerate(clients):
        queue.add(sequence(client, order))
    return queue


def turns(queue: WaitingQueue, running: list[Sequence] | None = None) -> str:
    return "".join(each.request.client for each in queue.in_turn(running or []))


def test_one_client_is_served_by_age() -> None:
    queue = queue_of(*"aaaa")
    assert [each.order for each in queue.in_turn([])] == [0, 1, 2, 3]
    assert [each.order for each in queue.in_turn([sequence("a", 9)] * 3)] == [0, 1, 2, 3]


def test_who_comes_later_with_little_passes_who_came_first_with_much() -> None:
    assert turns(queue_of(*"aaaaaab")) == "abaaaaa"
    held = [sequence("a", 90 + k) for k in range(4)]
    assert turns(queue_of(*"aaabbb"), held) == "bbbaaa"
    assert turns(queue_of(*"aabbcc")) == "abcabc"


def test_a_sequence_that_gave_up_its_seat_keeps_its_age() -> None:
    queue = queue_of(*"aaa")
    first = next(iter(queue.in_turn([])))
    queue.remove(first)
    assert first not in queue and len(queue) == 2
    queue.add(first)
    assert [each.order for each in queue.in_turn([])] == [0, 1, 2]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=60),
    st.integers(1, 8),
    st.randoms(use_true_random=False),
)
def test_seats_are_even_and_all_are_served(clients: list[str], num_seats: int, draw: Any) -> None:
    """Seats are given and freed at random: a client that waits never holds two seats fewer than one
    that is given a seat."""
    queue = queue_of(*clients)
    running: list[Sequence] = []
    served: list[Sequence] = []
    while len(queue):
        for each in queue.in_turn(list(running)):
            if len(running) == num_seats:
                break
            held = Counter(s.request.client for s in running)
            waiting = {s.request.client for s in queue.in_turn([])}
            assert held[each.request.client] == min(held[client] for client in waiting)
            queue.remove(each)
            running.append(each)
            served.append(each)
        running.pop(draw.randrange(len(running)))
    assert len(served) == len(clients)
    for client in set(clients):
        orders = [each.order for each in served if each.request.client == client]
        assert orders == sorted(orders)


def test_an_engine_gives_a_late_client_its_seat() -> None:
    """One client asks for 24 answers on 4 seats, then another one for a single one."""
    params = SamplingParams(temperature=0, n=12, max_tokens=12, ignore_eos=True)
    with LLM(max_num_seqs=4, num_slots=2000, drafter="root") as llm:
        for name in ("a", "b"):
            llm.engine.add(
                Request(id=f"many {name}", prompt_token_ids=[5, 6], params=params, client="many")
            )
        ends: list[str] = []
        has_come = False
        while llm.engine.has_work():
            for delta in llm.engine.step():
                if delta.finish_reason is not None:
                    ends.append(delta.request_id)
            if not has_come:
                has_come = True
                alone = msgspec.structs.replace(params, n=1)
                llm.engine.add(
                    Request(id="one", prompt_token_ids=[5, 6], params=alone, client="one")
                )
    assert len(ends) == 25
    assert ends.index("one") <= 8, "with the second lot of four"
