"""What a step asks for is filled in time, drafts as if each token had been read by a copy."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from eyas.constraint import ConstraintFailure
from eyas.constraint.automaton import Automaton, DraftMaskLimit
from eyas.constraint.base import Backend, MaskJob, counted
from eyas.constraint.filling import Allowance, Filling
from eyas.constraint.llguidance_states import LlguidanceState
from eyas.constraint.mask_batch import MaskRequest
from eyas.grammar import Regex, Source
from eyas.text import Tokenizer
from tests.constraint.test_backends import WALKS
from tests.constraint.walking import compiled, tokens_of, walked

HEAVY = Regex("(.{1,1000}){1,1000}")
"""Hits a limit after some tokens."""


def expected(backend: Any, states: Sequence[Any], num: int) -> np.ndarray:
    """[num, K]: the masks of states one at a time, and zeros."""
    mask_RK = np.zeros((num, backend.vocabulary.num_mask_words), dtype=np.int32)
    for row, state in enumerate(states):
        assert backend.fill([state], mask_RK[row : row + 1]) == []
    return mask_RK


def drafted_from(grammar: Any, before: Sequence[int], draft: Sequence[int]) -> list[Any]:
    """The states at the end of a text and along a draft, as far as it is legal."""
    states = walked(grammar, [*before, *draft])
    assert len(states) > len(before)
    return states[len(before) :]


def some_drafts(tokenizer: Tokenizer, tokens: list[int], draw: random.Random) -> list[list[int]]:
    """What may follow each place of a text: its own tokens, one of them another, none."""
    drafts = []
    for place in range(len(tokens)):
        draft = tokens[place : place + draw.randrange(6)]
        if draft and draw.random() < 0.7:
            others = [draw.randrange(tokenizer.vocab_size), tokenizer.eos_id, -1, 2**31 - 1]
            draft[draw.randrange(len(draft))] = draw.choice(others)  # type: ignore[assignment]
        drafts.append(draft)
    return drafts


def walk_of(backend: Any, tokenizer: Tokenizer, name: str) -> tuple[Any, list[int]]:
    """A grammar, and a text that it allows, with the end."""
    root, pieces = WALKS[name]
    return compiled(backend, root), [*tokens_of(tokenizer, *pieces), tokenizer.eos_id]


@pytest.mark.parametrize("name", WALKS)
def test_a_draft_is_filled_as_if_it_had_been_walked_through(
    backend: Any, tokenizer: Tokenizer, name: str
) -> None:
    """With the end and what is no token at all; and a state stays what it is."""
    grammar, tokens = walk_of(backend, tokenizer, name)
    starts, drafts, wanted = [], [], []
    for place, draft in enumerate(some_drafts(tokenizer, tokens, random.Random(name))):
        along = drafted_from(grammar, tokens[:place], draft)
        starts.append(along[0])
        drafts.append(draft)
        wanted.append(expected(backend, along, 1 + len(draft)))
    rows = [sum(len(each) for each in wanted[:i]) for i in range(len(wanted))]
    for order in (list(range(len(rows))), list(range(len(rows)))[::-1]):
        mask_RK = np.zeros_like(np.concatenate(wanted))
        asked = [[each[i] for i in order] for each in (starts, rows, drafts)]
        backend.expect(asked[0][1::2])
        job = backend.job(asked[0], mask_RK, asked[1], asked[2])
        job.run()
        settled = job.settle()
        assert np.array_equal(mask_RK, np.concatenate(wanted))
        assert settled == counted(mask_RK, asked[1], asked[2])
    for state, draft, wanted_LK in zip(starts, drafts, wanted, strict=True):  # each by itself
        mask_LK = np.zeros_like(wanted_LK)
        assert backend.fill([state], mask_LK, None, [draft]) == []
        assert np.array_equal(mask_LK, wanted_LK)


@pytest.mark.parametrize("name", WALKS)
def test_a_state_that_is_given_up_leads_where_it_would_have_led(
    backend: Any, tokenizer: Tokenizer, name: str
) -> None:
    """And whoever starts later finds the start as it was."""
    grammar, tokens = walk_of(backend, tokenizer, name)
    states = walked(grammar, tokens)
    wanted = expected(backend, states, len(states))
    for place in range(0, len(tokens), 2):
        for end in range(place + 1, len(tokens) + 1):
            state = grammar.start().become(tokens[:place]) if place else grammar.start()
            reached = state.become(tokens[place:end])
            assert np.array_equal(expected(backend, [reached], 1), wanted[end : end + 1])
    assert np.array_equal(expected(backend, [grammar.start()], 1), wanted[:1])
    assert grammar.start().become([*tokens, tokens[0]]) is None
    assert np.array_equal(expected(backend, [grammar.start()], 1), wanted[:1])


@pytest.mark.parametrize("name", WALKS)
def test_behind_an_end_nothing_is_filled(backend: Any, tokenizer: Tokenizer, name: str) -> None:
    """Whether a draft of another state is filled in the same call or not; and a state stays."""
    grammar, tokens = walk_of(backend, tokenizer, name)
    states = walked(grammar, tokens)[:-1]
    drafts = [
        [tokenizer.eos_id, tokens[0]] if i % 3 else tokens[i:][:2] for i in range(len(states))
    ]
    rows = [3 * i for i in range(len(states))]
    for with_drafts in (True, False, True):
        asked = [i for i, draft in enumerate(drafts) if with_drafts or draft[0] == tokenizer.eos_id]
        mask_RK = np.zeros((3 * len(states), backend.vocabulary.num_mask_words), dtype=np.int32)
        each = [[held[i] for i in asked] for held in (states, rows, drafts)]
        assert backend.fill(each[0], mask_RK, each[1], each[2]) == []
        for i in asked:
            along = drafted_from(grammar, tokens[:i], drafts[i])
            if drafts[i][0] == tokenizer.eos_id:
                along = along[:1]
            assert np.array_equal(mask_RK[3 * i : 3 * i + 3], expected(backend, along, 3)), i


@pytest.mark.parametrize("name", WALKS)
def test_many_tokens_at_once_lead_where_each_of_them_leads(
    backend: Any, tokenizer: Tokenizer, name: str
) -> None:
    grammar, tokens = walk_of(backend, tokenizer, name)
    states = walked(grammar, tokens)
    for place in range(0, len(tokens), 3):
        for end in range(place, len(tokens) + 1):
            reached = states[place].after_all(tokens[place:end])
            wanted = expected(backend, [states[end]], 1)
            assert np.array_equal(expected(backend, [reached], 1), wanted)
    if name not in ("reasoning", "calls"):  # there, anything may come first
        assert states[0].after_all(tokens[1:]) is None
    assert states[0].after_all([*tokens, tokens[0]]) is None
    assert states[0].after_all([-1]) is None


def test_a_draft_that_was_expected_goes_through_a_copy_made_before(
    llguidance_backend: Any, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for all drafts; and the copy is taken along."""
    grammar, tokens = walk_of(llguidance_backend, tokenizer, "schema")
    state = grammar.start().become(tokens[:2])
    states, draft = walked(grammar, tokens), tokens[2:5]
    wanted = expected(llguidance_backend, states[2:6], 4)
    copies: list[LlguidanceState] = []
    copy = LlguidanceState.copy
    monkeypatch.setattr(LlguidanceState, "copy", lambda each: copies.append(each) or copy(each))
    for _ in range(2):
        mask_RK = np.zeros_like(wanted)
        llguidance_backend.expect([state, state])
        assert len(copies) == 1
        assert llguidance_backend.fill([state], mask_RK, None, [draft]) == []
        assert np.array_equal(mask_RK, wanted) and len(copies) == 1
    later = state.become(tokens[2:4])
    mask_RK = np.zeros_like(wanted)
    assert llguidance_backend.fill([later], mask_RK, None, [tokens[4:7]]) == []
    assert len(copies) == 1
    assert np.array_equal(mask_RK, expected(llguidance_backend, states[4:8], 4))
    llguidance_backend.expect([states[-1]])  # over: there is nothing to copy
    assert len(copies) == 1


def test_a_grammar_that_cannot_go_back_goes_forward(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    text = 'start: some "!"\nsome[max_tokens=6]: /[a-z ]*/\n'
    grammar = compiled(llguidance_backend, Source("lark", text))
    draft = tokens_of(tokenizer, "abc def")[:4]
    along = drafted_from(grammar, [], draft)
    assert len(along) > 2
    wanted = expected(llguidance_backend, along, 1 + len(draft))
    for _ in range(2):
        mask_LK = np.zeros_like(wanted)
        assert llguidance_backend.fill([along[0]], mask_LK, None, [draft]) == []
        assert np.array_equal(mask_LK, wanted)


def test_a_limit_hit_in_a_draft_leaves_its_rows_empty(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    """And no other's; where the point itself hits it that is told."""
    heavy, light = (compiled(llguidance_backend, root) for root in (HEAVY, Regex("[a-z]{0,40}")))
    letter = tokens_of(tokenizer, "a")[0]
    state, others = heavy.start(), [light.start(), light.start().after(letter)]
    words = llguidance_backend.vocabulary.num_mask_words
    has_mask = [True] * 6
    for _ in range(300):
        mask_RK = np.zeros((18, words), dtype=np.int32)
        states, drafts = [others[0], state, others[1]], [[letter] * 5] * 3
        failed = llguidance_backend.fill(states, mask_RK, [0, 6, 12], drafts)
        assert mask_RK[:6].any(axis=1).all() and mask_RK[12:].any(axis=1).all()
        has_mask = mask_RK[6:12].any(axis=1).tolist()
        assert failed == []
        if not all(has_mask):
            break
        state = state.after(letter)
    assert has_mask == sorted(has_mask, reverse=True) and has_mask[0]
    assert not all(has_mask), "the pattern is meant to be over the library's limits"
    # now it is spoilt for all that share its lexer
    mask_RK[:] = 0
    assert llguidance_backend.fill(states, mask_RK, [0, 6, 12], drafts) == [1]
    assert mask_RK.any(axis=1).tolist() == [True] * 6 + [False] * 6 + [True] * 6
    with pytest.raises(ConstraintFailure):
        heavy.start(fresh=True).after_all([letter] * 400)


# What a step asks for


class Faulty(Backend):
    """A backend that counts what it is asked for, breaks over `spoilt`, whose rows it leaves full of
    rubbish, and in `slow` waits for `go` before its last row."""

    name = "faulty"
    vocabulary: Any

    def __init__(self, backend: Any) -> None:
        self.backend: Any = backend
        self.num = 0
        self.spoilt: tuple[int, ...] | None = None
        self.slow: tuple[int, ...] | None = None
        self.breaks_at_once = False
        self.error: BaseException = MemoryError("on purpose")
        self.go = threading.Event()
        self.is_waiting = threading.Event()

    def job(
        self, states: Any, mask_RK: Any, rows: Any = None, drafts: Any = None, **more: Any
    ) -> MaskJob:
        job = self.backend.job(states, mask_RK, rows, drafts, **more)
        if self.spoilt in drafts and self.breaks_at_once:
            raise self.error

        def run() -> None:
            if self.spoilt in drafts:
                for row, draft in zip(rows, drafts, strict=True):
                    mask_RK[row : row + 1 + len(draft)] = 7
                raise self.error
            self.num += len(drafts)
            job.run()
            if self.slow in drafts:
                end = rows[drafts.index(self.slow)] + 1 + len(self.slow)
                last = mask_RK[end - 1].copy()
                mask_RK[end - 1] = 0
                self.is_waiting.set()
                assert self.go.wait(300)
                mask_RK[end - 1] = last

        return MaskJob(run, job.settle)


@pytest.fixture
def faulty(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> Iterator[tuple[Faulty, Any, list[int]]]:
    """It, a way to new grammars of it, and tokens that are legal from the start."""
    backend = Faulty(llguidance_backend)
    for name in ("vocabulary", "eos_token_ids", "is_nameless", "spelled"):
        setattr(backend, name, getattr(llguidance_backend, name))

    def grammar() -> Any:
        made = compiled(llguidance_backend, Regex("[a-z ]{3,40}"))
        made._backend = backend
        return made

    yield backend, grammar, tokens_of(tokenizer, "abc def ghi")[:4]
    backend.go.set()


@pytest.fixture(params=["here", "beside"])
def thread(request: pytest.FixtureRequest) -> Iterator[ThreadPoolExecutor | None]:
    with ThreadPoolExecutor(1) as made:
        yield made if request.param == "beside" else None


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def asked_of(automaton: Automaton, tokens: Sequence[int], row: int) -> MaskRequest:
    return MaskRequest(automaton.root, row, tuple(tokens))


def begun(
    first: Sequence[MaskRequest],
    backend: Any,
    thread: ThreadPoolExecutor | None,
    later: Sequence[Sequence[MaskRequest]] = (),
    time_limit: float = 60.0,
) -> tuple[Filling, np.ndarray]:
    """Under way, where another thread fills."""
    requests = (*first, *(request for call in later for request in call))
    num_rows = max(each.row + len(each.tokens) + 1 for each in requests)
    mask_RK = np.zeros((num_rows, backend.vocabulary.num_mask_words), dtype=np.int32)
    filling = Filling(first, later, mask_RK, time_limit)
    if thread is not None:
        filling.start(thread)
    return filling, mask_RK


def filled(requests: Sequence[MaskRequest], backend: Any, thread: Any) -> tuple[int, np.ndarray]:
    """How many masks were made, and all."""
    filling, mask_RK = begun(requests, backend, thread)
    assert filling.wait()
    assert not any(each.is_late or each.is_slow for each in requests)
    return filling.num_masks, mask_RK


def test_drafts_of_forks_and_of_others_are_filled_in_one_call(
    faulty: tuple[Faulty, Any, list[int]], thread: ThreadPoolExecutor | None
) -> None:
    backend, grammar, tokens = faulty
    first = Automaton(grammar())
    fork, other = first.fork(), Automaton(grammar())
    requests = [asked_of(first, tokens, 0), asked_of(fork, tokens[:2], 5), asked_of(other, [], 8)]
    num, mask_RK = filled(requests, backend, thread)
    assert num == 5 + 3 + 1 and backend.num == 3
    assert np.array_equal(mask_RK[:3], mask_RK[5:8])
    assert np.array_equal(mask_RK, expected_of(requests, backend.backend, len(mask_RK)))
    assert [each.num_legal for each in requests] == [4, 2, 0]
    assert [each.num_masks for each in requests] == [5, 3, 1]


def expected_of(requests: Sequence[MaskRequest], backend: Any, num: int) -> np.ndarray:
    """[num, K] by walking."""
    mask_RK = np.zeros((num, backend.vocabulary.num_mask_words), dtype=np.int32)
    for each in requests:
        state: Any = each.state.after_all(each.path)
        for row, token in enumerate([None, *each.tokens], start=each.row):
            state = state if token is None else state.after(token)
            assert backend.fill([state], mask_RK, [row]) == []
    return mask_RK


@pytest.mark.parametrize("goes_first", [0, 1])
def test_forks_do_not_move_each_other(
    faulty: tuple[Faulty, Any, list[int]], goes_first: int
) -> None:
    backend, grammar, tokens = faulty
    first = Automaton(grammar())
    for _ in range(3):
        both = (first, first.fork())
        mover, other = both[goes_first], both[1 - goes_first]
        before = expected(backend.backend, [other.root], 1)
        mover.advance(tokens[:3])
        assert np.array_equal(expected(backend.backend, [other.root], 1), before)
        other.advance(tokens[:1])


class Panic(BaseException):
    """How a library written in Rust says that it is at its end."""


@pytest.mark.parametrize("error", [MemoryError("on purpose"), Panic("on purpose")])
@pytest.mark.parametrize("at_once", [False, True])
def test_one_draft_that_breaks_the_library_breaks_no_other(
    faulty: tuple[Faulty, Any, list[int]],
    thread: ThreadPoolExecutor | None,
    at_once: bool,
    error: BaseException,
) -> None:
    backend, grammar, tokens = faulty
    backend.spoilt, backend.breaks_at_once = tuple(tokens[:2]), at_once
    backend.error = error
    shared = grammar()
    automata = [Automaton(shared), Automaton(shared), Automaton(grammar())]
    requests = [
        asked_of(automaton, tokens[:length], 5 * i)
        for i, (automaton, length) in enumerate(zip(automata, (4, 2, 3), strict=True))
    ]
    num, mask_RK = filled(requests, backend, thread)
    assert num == 5 + 4
    assert [each.num_masks for each in requests] == [5, 0, 4]
    assert mask_RK.any(axis=1).tolist() == [True] * 5 + [False] * 5 + [True] * 4


def test_what_a_broken_call_leaves_behind_a_root_is_wiped(
    faulty: tuple[Faulty, Any, list[int]], thread: ThreadPoolExecutor | None
) -> None:
    backend, grammar, tokens = faulty
    backend.spoilt = tuple(tokens)
    root = MaskRequest(Automaton(grammar()).root, 0, has_spare_row=True)
    draft = asked_of(Automaton(grammar()), tokens[:3], 2)
    broken = asked_of(Automaton(grammar()), tokens, 6)
    _, mask_RK = filled([root, draft, broken], backend, thread)
    assert [each.num_masks for each in (root, draft, broken)] == [1, 4, 0]
    assert mask_RK[0].any() and not mask_RK[1].any() and mask_RK[2:6].any(axis=1).all()


def test_roots_are_filled_first_and_the_rest_while_there_is_time(
    faulty: tuple[Faulty, Any, list[int]], thread: ThreadPoolExecutor | None
) -> None:
    backend, grammar, tokens = faulty
    for time_limit in (-1.0, 60.0):
        state = Automaton(grammar()).root
        root = MaskRequest(state, 0)
        later = [
            MaskRequest(state, 2 * i + 1, tuple(tokens[i : i + 1]), tuple(tokens[:i]))
            for i in range(4)
        ]
        filling, mask_RK = begun([root], backend, thread, [[each] for each in later], time_limit)
        assert filling.wait()
        is_over = time_limit < 0
        assert root.num_masks == 1 and not root.is_late and mask_RK[0].any()
        assert {each.num_masks for each in later} == {0 if is_over else 2}
        assert {each.is_late for each in later} == {is_over}
        assert filling.num_masks == 1 + (0 if is_over else 8)
        assert mask_RK[1:].any() != is_over
        if not is_over:
            wanted_RK = expected_of([root, *later], backend.backend, len(mask_RK))
            assert np.array_equal(mask_RK, wanted_RK)


def slow_among_others(
    faulty: tuple[Faulty, Any, list[int]],
    beside: ThreadPoolExecutor,
    num: int = 8,
    time_limit: float = 60.0,
) -> tuple[Filling, np.ndarray, list[MaskRequest]]:
    """Some drafts; the third hangs before its last mask."""
    backend, grammar, tokens = faulty
    backend.slow = tuple(tokens[:3])
    automata = [Automaton(grammar()) for _ in range(num)]
    requests = [
        asked_of(automaton, tokens[:3] if i == 2 else tokens, 5 * i)
        for i, automaton in enumerate(automata)
    ]
    filling, mask_RK = begun(requests, backend, beside, (), time_limit)
    assert backend.is_waiting.wait(120)
    return filling, mask_RK, requests


@pytest.mark.parametrize("num", [8, 3])
def test_what_is_slow_is_noted_and_waited_for(
    faulty: tuple[Faulty, Any, list[int]], beside: ThreadPoolExecutor, num: int
) -> None:
    backend, _, _ = faulty
    filling, mask_RK, requests = slow_among_others(faulty, beside, num)
    timer = threading.Timer(0.05, backend.go.set)
    timer.start()
    assert filling.wait(slow_after=0.01)
    assert backend.go.is_set(), "it waited"
    assert [i for i, each in enumerate(requests) if each.is_slow] == [2]
    wanted_RK = expected_of(requests, backend.backend, len(mask_RK))
    for each in requests:
        assert np.array_equal(each.rows(mask_RK), each.rows(wanted_RK))
    assert not any(each.is_late for each in requests)
    timer.join()


@pytest.mark.parametrize("num", [1, 8])
def test_a_slow_root_is_noted_where_drafts_are_not(
    faulty: tuple[Faulty, Any, list[int]], beside: ThreadPoolExecutor, num: int
) -> None:
    backend, grammar, tokens = faulty
    backend.slow = ()
    drafts: list[list[int]] = [*[tokens] * num, []]
    requests = [asked_of(Automaton(grammar()), draft, 6 * i) for i, draft in enumerate(drafts)]
    filling, mask_RK = begun(requests, backend, beside)
    assert backend.is_waiting.wait(120)
    timer = threading.Timer(0.05, backend.go.set)
    timer.start()
    assert filling.wait(slow_after=60.0, root_slow_after=0.01)
    assert [i for i, each in enumerate(requests) if each.is_slow] == [num]
    assert [each.num_masks for each in requests] == [*[5] * num, 1]
    assert np.array_equal(mask_RK, expected_of(requests, backend.backend, len(mask_RK)))
    timer.join()


def test_what_is_there_soon_enough_is_not_slow(
    faulty: tuple[Faulty, Any, list[int]], beside: ThreadPoolExecutor
) -> None:
    backend, _, _ = faulty
    filling, _, requests = slow_among_others(faulty, beside)
    timer = threading.Timer(0.05, backend.go.set)
    timer.start()
    assert filling.wait(slow_after=60.0)
    assert not any(each.is_slow for each in requests)
    timer.join()


def test_where_many_are_slow_nobody_is_to_blame(
    faulty: tuple[Faulty, Any, list[int]], beside: ThreadPoolExecutor
) -> None:
    backend, grammar, tokens = faulty
    backend.slow = tuple(tokens[:3])
    requests = [asked_of(Automaton(grammar()), tokens[:3], 4 * i) for i in range(8)]
    filling, mask_RK = begun(requests, backend, beside)
    assert backend.is_waiting.wait(120)
    for each in requests[1:4]:
        mask_RK[each.row + 1 : each.row + 4] = 0  # as if these were on their way too
    timer = threading.Timer(0.05, backend.go.set)
    timer.start()
    assert filling.wait(slow_after=0.0)
    assert not any(each.is_slow for each in requests)
    timer.join()


def test_a_draft_that_has_ended_is_not_taken_for_a_slow_one(
    faulty: tuple[Faulty, Any, list[int]], beside: ThreadPoolExecutor, tokenizer: Tokenizer
) -> None:
    backend, grammar, tokens = faulty
    backend.slow = tuple(tokens[:3])
    drafts = [tokens[:3], [*tokens, tokenizer.eos_id], [*tokens, tokenizer.eos_id]]
    requests = [asked_of(Automaton(grammar()), draft, 6 * i) for i, draft in enumerate(drafts)]
    filling, _ = begun(requests, backend, beside)
    assert backend.is_waiting.wait(120)
    timer = threading.Timer(0.05, backend.go.set)
    timer.start()
    assert filling.wait(slow_after=0.0)
    assert [each.num_legal for each in requests] == [3, 5, 5]
    assert [each.is_slow for each in requests] == [True, False, False]
    timer.join()


@pytest.mark.parametrize("has_begun", [False, True])
def test_after_the_deadline_no_draft_is_waited_for(
    faulty: tuple[Faulty, Any, list[int]], beside: ThreadPoolExecutor, has_begun: bool
) -> None:
    backend, _, tokens = faulty
    if has_begun:
        filling, mask_RK, requests = slow_among_others(faulty, beside, time_limit=0.01)
    else:
        go = threading.Event()
        beside.submit(go.wait, 300)
        requests = [asked_of(Automaton(faulty[1]()), tokens, 0)]
        filling, mask_RK = begun(requests, backend, beside, (), 0.01)
    assert not filling.wait()
    assert all(each.is_late and not each.is_slow and not each.num_masks for each in requests)
    if has_begun:
        backend.go.set()
    else:
        go.set()
        beside.submit(int).result()
        assert backend.num == 0 and not mask_RK.any(), "it never began"


@pytest.mark.parametrize("has_root", [False, True])
def test_nobody_waits_for_what_another_step_has_left_behind(
    faulty: tuple[Faulty, Any, list[int]], beside: ThreadPoolExecutor, has_root: bool
) -> None:
    backend, grammar, _ = faulty
    go = threading.Event()
    beside.submit(go.wait, 300)
    roots = [asked_of(Automaton(grammar()), [], 0)] if has_root else []
    mask_RK = np.zeros((1, backend.vocabulary.num_mask_words), dtype=np.int32)
    filling = Filling(roots, (), mask_RK, 0.01)
    filling.start(beside)
    assert filling.wait() != has_root
    assert [each.is_late for each in roots] == [True] * len(roots)
    go.set()
    beside.submit(int).result()
    assert backend.num == 0 and not mask_RK.any(), "it never began"


def test_a_slow_root_makes_no_draft_late(
    faulty: tuple[Faulty, Any, list[int]], beside: ThreadPoolExecutor
) -> None:
    backend, grammar, tokens = faulty
    backend.slow = ()
    requests = [asked_of(Automaton(grammar()), tokens[: 4 * i], 5 * i) for i in range(2)]
    filling, mask_RK = begun(requests, backend, beside, (), 0.01)
    assert backend.is_waiting.wait(120)
    timer = threading.Timer(0.1, backend.go.set)
    timer.start()
    assert filling.wait(slow_after=0.0)
    assert [each.num_masks for each in requests] == [1, 5]
    assert not any(each.is_late or each.is_slow for each in requests)
    assert np.array_equal(mask_RK, expected_of(requests, backend.backend, len(mask_RK)))
    timer.join()


def test_who_holds_up_others_again_and_again_is_tried_less_and_less_often() -> None:
    mask_limit = DraftMaskLimit()
    rests = []
    for _ in range(10):
        mask_limit.held_up(5)
        num = 0
        while mask_limit.limit == 0:
            mask_limit.in_time(5)
            num += 1
        rests.append(num)
    assert rests == [3, 5, 9, 17, 33, 65, 65, 65, 65, 65]
    limits = [mask_limit.limit]
    while mask_limit.limit is not None:
        mask_limit.in_time(5)
        limits.append(mask_limit.limit)
    assert limits == [1, 2, 3, 4, None], "and from there on as if nothing had been"
    mask_limit.in_time(5)
    assert mask_limit.limit is None
    mask_limit.held_up(5)
    for _ in range(rests[0]):
        assert mask_limit.limit == 0
        mask_limit.in_time(5)
    assert mask_limit.limit == 1


def test_a_root_that_is_slow_by_itself_puts_off_the_next_draft() -> None:
    mask_limit = DraftMaskLimit()
    mask_limit.held_up(5)
    mask_limit.in_time(5)
    mask_limit.held_up(5)
    num = 0
    while mask_limit.limit == 0:
        mask_limit.in_time(5)
        num += 1
    assert num == 5, "two steps of rest, then four, and the one in which it is seen"


def test_a_draft_that_was_cut_short_says_nothing_of_whole_ones() -> None:
    mask_limit = DraftMaskLimit()
    mask_limit.held_up(5)
    for size in (0, 1):
        mask_limit.in_time(size)
        assert mask_limit.limit == 0
    for limit in (1, 2):
        mask_limit.in_time(0)
        assert mask_limit.limit == limit
    assert mask_limit.limit == 2, "and no whole draft has been in time yet"


def test_roots_alone_are_waited_for_however_long(
    faulty: tuple[Faulty, Any, list[int]], beside: ThreadPoolExecutor
) -> None:
    backend, grammar, _ = faulty
    backend.slow = ()
    root = asked_of(Automaton(grammar()), [], 0)
    filling, mask_RK = begun([root], backend, beside, (), 0.01)
    assert backend.is_waiting.wait(120)
    timer = threading.Timer(0.1, backend.go.set)
    timer.start()
    assert filling.wait(slow_after=0.0)
    assert root.num_masks == 1 and mask_RK.any() and not root.is_slow
    timer.join()


def test_branches_are_filled_until_what_runs_beside_them_is_about_to_end(
    faulty: tuple[Faulty, Any, list[int]],
) -> None:
    """The time for them follows whether that had ended, and says which are begun."""
    backend, grammar, tokens = faulty
    allowance = Allowance()
    most = allowance.seconds

    def left_out(answers: Sequence[bool]) -> list[bool]:
        """Of three branches. answers: whether it has ended, whenever that is asked."""
        automaton = Automaton(grammar())
        first = [asked_of(automaton, tokens, 0)]
        later = [
            [MaskRequest(automaton.root, row, tuple(tokens[1:]), (tokens[0],), repeats_first=True)]
            for row in (5, 9, 13)
        ]
        mask_RK = np.zeros((18, backend.vocabulary.num_mask_words), dtype=np.int32)
        asked = iter(answers)
        filling = Filling(first, later, mask_RK, 60.0, lambda: next(asked), allowance)
        assert filling.wait() and next(asked, None) is None
        assert first[0].num_masks == 5
        for (request,) in later:
            assert not request.is_late
            assert (request.num_masks > 0) == (not request.is_left_out)
            assert mask_RK[request.row].any() == (not request.is_left_out)
        return [request.is_left_out for (request,) in later]

    assert left_out([False, False, False, False]) == [False, False, False]
    assert allowance.seconds == most
    assert left_out([False, True, True]) == [False, True, True]
    assert allowance.seconds < most
    allowance.seconds = shorter = most / 2
    assert left_out([True, True]) == [True, True, True]
    assert allowance.seconds == shorter, "the roots' masks took that long, not the branches'"
    allowance.seconds = 0.0
    assert left_out([False]) == [True, True, True]
