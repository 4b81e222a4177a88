"""An `LLM` that several threads use, that was closed, and whose process was forked."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from eyas import Regex, SamplingParams
from eyas.core import Delta
from eyas.llm import LLM

QUESTIONS = [
    "ping",
    "What is the capital of France?",
    "Specify a random city.",
    "Write the numbers from 0 to 9.",
]
GREEDY = SamplingParams(temperature=0, max_tokens=24)


def conversation(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(max_num_seqs=8, num_slots=3000, draft_nodes=4, draft_topk=1) as llm:
        yield llm
        if not llm.shared_engine._is_closed:
            llm.engine.check()


def test_threads_get_the_answers_of_one_thread(llm: LLM) -> None:
    def answer(question: str) -> list[int]:
        return llm.chat(conversation(question), GREEDY)[0].token_ids

    def stream(question: str) -> list[int]:
        deltas = llm.stream_chat(conversation(question), GREEDY)
        return [token for delta in deltas for token in delta.token_ids]

    def number(question: str) -> str:
        return llm.chat(conversation(question), GREEDY, output=Regex("[0-9]{2}"), **no_thinking)

    no_thinking = {"enable_thinking": False}
    calls = [(ask, question) for ask in (answer, stream, number) for question in QUESTIONS]
    alone = [ask(question) for ask, question in calls]
    start = threading.Barrier(len(calls))

    def together(call: tuple[Any, str]) -> Any:
        start.wait()
        return call[0](call[1])

    with ThreadPoolExecutor(len(calls)) as threads:
        assert list(threads.map(together, calls)) == alone
    assert llm.engine.metrics.num_failed_steps == 0


def test_a_thread_that_steps_lets_a_thread_that_waits_go_first(llm: LLM) -> None:
    order: list[str] = []
    step, add = llm.engine.step, llm.engine.add
    other = threading.Thread(target=lambda: llm.chat(conversation("ping"), GREEDY))

    def logged_step() -> list[Delta]:
        if not order:
            other.start()
            while (
                not llm.shared_engine._next_turn.locked()
            ):  # the other thread waits for this step to end
                other.join(0.001)
        order.append("step")
        return step()

    def logged_add(*args: Any) -> None:
        if order:
            order.append("add")
        add(*args)

    llm.engine.step, llm.engine.add = logged_step, logged_add  # type: ignore[method-assign]
    llm.chat(conversation("Write the numbers from 0 to 9."), GREEDY)
    other.join()
    assert order[:2] == ["step", "add"]


def test_a_stream_that_is_dropped_during_a_step_is_ended_after_it(llm: LLM) -> None:
    dropped = llm.stream_chat(conversation("Specify a random city."), GREEDY)
    next(dropped)
    order: list[str] = []
    step, abort = llm.engine.step, llm.engine.abort

    def step_that_collects_garbage() -> list[Delta]:
        order.append("step begins")
        dropped.close()  # type: ignore[attr-defined]
        deltas = step()
        order.append("step ends")
        return deltas

    def logged_abort(request_id: str) -> None:
        order.append("abort")
        abort(request_id)

    llm.engine.step = step_that_collects_garbage  # type: ignore[method-assign]
    llm.engine.abort = logged_abort  # type: ignore[method-assign]
    llm.chat(conversation("ping"), GREEDY)
    assert order[:3] == ["step begins", "step ends", "abort"]
    assert not llm.engine.has_work()


def test_a_closed_llm_says_so(llm: LLM) -> None:
    stream = llm.stream_chat(conversation("ping"), GREEDY)
    next(stream)
    llm.close()
    llm.close()
    with pytest.raises(ValueError, match="this LLM is closed; make another one"):
        list(stream)
    for output in (None, Regex("[0-9]{2}")):
        with pytest.raises(ValueError, match="this LLM is closed; make another one"):
            llm.chat(conversation("ping"), GREEDY, output=output)


def test_a_forked_process_is_told_to_make_its_own(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = llm.generate("The eagle", GREEDY)[0].token_ids
    with monkeypatch.context() as forked:
        forked.setattr(llm.shared_engine, "_process", llm.shared_engine._process + 1)
        with pytest.raises(ValueError, match="make an LLM in each process"):
            llm.generate("The eagle", GREEDY, output=Regex("[0-9]{2}"))
        llm.close()  # leaves alone what it shares with its parent
    assert llm.generate("The eagle", GREEDY)[0].token_ids == before


def test_ctrl_c_interrupts_no_step_and_no_other_thread(llm: LLM) -> None:
    """It reaches whoever waits for an answer, and the engine goes on with those of others."""
    long = SamplingParams(temperature=1, seed=1, max_tokens=150, ignore_eos=True)
    expected = llm.generate("The eagle", long)[0].token_ids
    answers: list[list[int]] = []
    worker = threading.Thread(
        target=lambda: answers.extend(
            llm.generate("The eagle", long)[0].token_ids for _ in range(4)
        )
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    num_interrupts = 0
    try:
        worker.start()
        while worker.is_alive():
            timer = threading.Timer(0.03, lambda: os.kill(os.getpid(), signal.SIGINT))
            try:
                timer.start()
                llm.generate(["ping", "pong"], SamplingParams(max_tokens=800, ignore_eos=True))
                timer.join()
            except KeyboardInterrupt:
                num_interrupts += 1
    finally:
        signal.signal(signal.SIGINT, before)
    assert num_interrupts > 1
    assert answers == [expected] * 4
    assert llm.engine.metrics.num_failed_steps == 0
    assert llm.generate("The eagle", long)[0].token_ids == expected
    assert not llm.engine.has_work()


def test_an_exception_of_a_signal_handler_reaches_the_caller(llm: LLM) -> None:
    """It does not end as an error of the step that it interrupts."""

    class TooLate(Exception):
        pass

    def handle(number: int, frame: Any) -> None:
        raise TooLate

    def answer_until(delay: float) -> None:
        timer = threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        timer.start()
        llm.generate(["ping", "pong"], long)
        timer.join()

    long = SamplingParams(temperature=1, seed=1, max_tokens=1500, ignore_eos=True)
    expected = llm.generate("The eagle", GREEDY)[0].token_ids
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        for delay in (0.02, 0.025, 0.03, 0.035, 0.04):
            with pytest.raises(TooLate):
                answer_until(delay)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert llm.engine.metrics.num_failed_steps == 0
    assert llm.generate("The eagle", GREEDY)[0].token_ids == expected
    assert not llm.engine.has_work()
