"""A step's masks where trees are seen too late to lose nodes, as on a device: those of a walk."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from eyas import builtin
from eyas.constraint import Vocabulary, build_backend, filling
from eyas.constraint.automaton import LEAST_REST, Automaton
from eyas.constraint.base import MaskJob
from eyas.constraint.filling import Filling
from eyas.draft_tree import DraftTree
from eyas.engine.masks import FAILED, Masking, TreeMasks
from eyas.engine.prune import Refusals
from eyas.engine.sequence import Status
from eyas.grammar import Budget, Concat, FreeText, Json, Literal, Marker, Node, OutputSpec, Regex
from eyas.text import Tokenizer
from eyas.transfer import Outbox
from eyas.wire import GrammarStats
from tests.constraint.walking import tokens_of
from tests.laws.structured import ask, engine, told
from tests.thorough import drawn, only_thorough

QUESTION = "What is the capital of France? Think about it."
OBJECT = Json('{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}}}')
LIST = Json('{"type":"array"}')
TEXT = '{"a": 12, "b": "some text"}'
HEAVY = Regex("(.{1,1000}){1,1000}")
TOKENIZER = Tokenizer.from_directory(builtin.path())
END = TOKENIZER.eos_id
assert END is not None


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left out of a tree before the forward."""
    monkeypatch.setattr(Masking, "prunes", property(lambda masking: False))


@pytest.fixture(scope="module", params=[1, 3])
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    """By threads of the library; with a `thread` that waits for it."""
    info = engine("root").info
    vocabulary = Vocabulary.of(TOKENIZER, info.vocab_size, info.eos_token_ids)
    made: Any = build_backend("llguidance", vocabulary, request.param)
    made.thread = ThreadPoolExecutor(1)
    yield made
    made.thread.shutdown()
    made.close()


def sequence(backend: Any, root: Node | None, *pieces: str, **more: Any) -> Any:
    """What of a sequence the masks look at, behind a text."""
    automaton = None
    if root is not None:
        automaton = Automaton(backend.compile(OutputSpec(root=root)), **more)
        automaton.advance(tokens_of(TOKENIZER, *pieces))
    return SimpleNamespace(automaton=automaton, status=Status.RUNNING, failure=None)


def chains(rows: Sequence[Sequence[int]]) -> DraftTree:
    """Roots and what is drafted behind each."""
    width = 1 + max(len(row) for row in rows)
    return DraftTree(
        torch.tensor([[0, *row, *[7] * (width - 1 - len(row))] for row in rows]),
        torch.arange(-1, width - 1).repeat(len(rows), 1),
        torch.tensor([1 + len(row) for row in rows]),
        True,
    )


def as_branches(tree: DraftTree) -> DraftTree:
    """The same, not known to be a chain."""
    return DraftTree(tree.tokens_BW, tree.parents_BW, tree.sizes_B, False)


def filled(
    tree: DraftTree,
    rooted: Sequence[Any],
    backend: Any,
    deadline: float = 60.0,
    step_seconds: float = math.inf,
) -> tuple[np.ndarray, Refusals, GrammarStats]:
    """[B, W, K], what was refused, and the counts."""
    stats = GrammarStats()
    outbox = Outbox(tree.tokens_BW.device)
    masking = Masking(backend.vocabulary.vocab_size, deadline, stats, outbox)
    masking.step_seconds.append(step_seconds)
    masking.threads = backend.thread
    masks = TreeMasks(masking, tree)
    masks.find_legal(rooted)
    masks.begin()
    mask_RK = masks.finish().numpy()
    masks.learn()
    masks.note()
    return mask_RK.reshape(*tree.tokens_BW.shape, -1), masks.refusals, stats


def some_steps(backend: Any, draw: random.Random) -> tuple[DraftTree, list[Any]]:
    """Drafts from many places of a text: right, wrong, over the end, empty; unconstrained ones."""
    tokens = [*tokens_of(TOKENIZER, TEXT), END]
    rooted, rows = [], []
    for place in range(0, len(tokens) - 1, 2):
        grammar = OBJECT if place % 3 else Json(TEXT.replace("12", "1.5").join(('{"const":', "}")))
        end = 0 if grammar is not OBJECT else place
        held = sequence(backend, grammar)
        held.automaton.advance(tokens[:end])
        rooted.append(held)
        row = tokens[end : end + draw.randrange(6)]
        if row and draw.random() < 0.5:
            row[draw.randrange(len(row))] = draw.choice([draw.randrange(4000), END, tokens[0]])
        rows.append(row)
        if place % 4 == 0:
            rooted.append(sequence(backend, None))
            rows.append([1, 2, 3])
    ended = sequence(backend, OBJECT)
    ended.status = Status.FINISHED
    return chains([*rows, [5, 6, 7, 8, 9]]), [*rooted, ended]


@pytest.mark.parametrize("as_tree", [lambda tree: tree, as_branches], ids=["chain", "tree"])
def test_rows_that_fill_up_a_batch_are_nobodys(
    backend: Any, as_tree: Callable[[DraftTree], DraftTree]
) -> None:
    tree, rooted = some_steps(backend, random.Random(9))
    alone_BWK, refusals, stats = filled(as_tree(tree), rooted, backend)
    rows = [row.tolist()[1:size] for row, size in zip(tree.tokens_BW, tree.sizes_B, strict=True)]
    padded_BWK, padded, counts = filled(as_tree(chains([*rows, [3, 4], []])), rooted, backend)
    assert np.array_equal(padded_BWK[: len(rooted)], alone_BWK)
    assert not padded_BWK[len(rooted) :].any()
    assert (padded, counts.num_masks) == (refusals, stats.num_masks) and refusals.num_nodes


@pytest.mark.parametrize("seed", range(4))
def test_a_chain_has_the_masks_of_a_tree(backend: Any, seed: int) -> None:
    tree, rooted = some_steps(backend, random.Random(seed))
    mask_BWK, refusals, stats = filled(tree, rooted, backend)
    walked_BWK, expected, counts = filled(as_branches(tree), rooted, backend)
    assert np.array_equal(mask_BWK, walked_BWK)
    assert refusals == expected and refusals.num_nodes > 0
    assert stats.num_pruned == counts.num_pruned == refusals.num_nodes
    assert (mask_BWK[1, :4] == -1).all() and not mask_BWK[1, 4:].any(), "nobody holds it"
    assert not mask_BWK[-1].any(), "it has ended"
    assert stats.num_masks >= counts.num_masks > len(rooted) / 2
    for b, held in enumerate(rooted):  # what it looked at did not move it
        if held.automaton is not None and held.status is Status.RUNNING:
            assert held.failure is None, b


def test_a_budget_has_its_say_in_a_chain(backend: Any) -> None:
    marker = Marker("</x>")
    closing = tuple(TOKENIZER.encode_text("</x>", continues=True))
    root = Concat((FreeText(until=(marker,)), Literal("Paris")))
    budget = Budget(2, (marker,), closing)
    held = sequence(backend, root, budget=budget, token_bytes=TOKENIZER.token_bytes)
    tokens = tokens_of(TOKENIZER, "some words here")[:2]
    tree = chains([[*tokens, *closing], [*tokens, tokens[0]]])
    fork = SimpleNamespace(automaton=held.automaton.fork(), status=held.status, failure=None)
    mask_BWK, refusals, _ = filled(tree, [held, fork], backend)
    bits = np.unpackbits(mask_BWK[0, 2].view(np.uint8), bitorder="little")
    assert np.nonzero(bits)[0].tolist() == [closing[0]]
    assert refusals.illegal == [set(), {3}] and refusals.below == [set(), {2}]
    assert mask_BWK[0].any(axis=1).all() and not mask_BWK[1, 3:].any()


def test_a_draft_that_hits_a_limit_harms_no_other(backend: Any) -> None:
    """It spoils the lexer for its own root, which counts only where a fresh automaton fails as well."""
    letter = tokens_of(TOKENIZER, "a")[0]
    digits = tokens_of(TOKENIZER, '{"a": 12}')[:5]
    heavy = sequence(backend, HEAVY)
    tree = chains([digits, [letter] * 5, digits])
    num_steps = 0
    while heavy.failure is None:
        rooted = [sequence(backend, OBJECT), heavy, sequence(backend, OBJECT)]
        mask_BWK, _, _ = filled(tree, rooted, backend)
        assert mask_BWK[[0, 2]].any(axis=2).all()
        has_mask = mask_BWK[1].any(axis=1).tolist()
        assert has_mask == sorted(has_mask, reverse=True)
        assert has_mask[0] == (heavy.failure is None)
        if heavy.failure is None:
            heavy.automaton.advance([letter])
        num_steps += 1
    assert 10 < num_steps < 300 and heavy.automaton.num_replays > 0
    assert [held.failure for held in rooted] == [None, FAILED, None]
    mask_BWK, refusals, _ = filled(tree, rooted, backend)
    assert not mask_BWK[1].any() and mask_BWK[[0, 2]].any(axis=2).all()
    assert refusals.illegal[1] == set()


# Drafts that are late


class Clock:
    """For who waits for masks: it stands still until it is started, so that a machine that is busy
    makes nothing late but what a test holds up."""

    def __init__(self) -> None:
        self._begin: float | None = None

    def start(self) -> None:
        self._begin = self._begin or time.perf_counter()

    def perf_counter(self) -> float:
        return 0.0 if self._begin is None else time.perf_counter() - self._begin


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(filling, "time", made)
    return made


@pytest.fixture
def slow(
    backend: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Sequence[int]], threading.Event]]:
    """Have a call with drafts of these tokens wait for an event before their masks after the second;
    the event counts them."""
    held: list[threading.Event] = []
    make = backend.job

    def hold(slow_tokens: Sequence[int]) -> threading.Event:
        go = threading.Event()
        go.num_held = 0  # type: ignore[attr-defined]

        def slow_job(states: Any, mask_RK: Any, rows: Any, drafts: Any, **more: Any) -> MaskJob:
            job = make(states, mask_RK, rows, drafts, **more)
            ours = [i for i, draft in enumerate(drafts or ()) if draft == tuple(slow_tokens)]

            def slowly() -> None:
                job.run()
                if ours and not go.is_set():
                    last = np.array([rows[i] + behind for i in ours for behind in (2, 3)])
                    found = mask_RK[last]
                    mask_RK[last] = 0
                    go.num_held += len(ours)  # type: ignore[attr-defined]
                    clock.start()
                    assert go.wait(300)
                    mask_RK[last] = found  # all at once: nobody sees some of them

            return MaskJob(slowly, job.settle)

        monkeypatch.setattr(backend, "job", slow_job)
        held.append(go)
        return go

    yield hold
    for go in held:
        go.set()


def several(backend: Any, num: int, num_slow: int) -> tuple[DraftTree, list[Any], list[int]]:
    """Drafts from the start of one text each, and which of them are slow: one token shorter."""
    tokens = tokens_of(TOKENIZER, TEXT)[:4]
    rows = [tokens[:3] if b < num_slow else tokens for b in range(num)]
    return chains(rows), [sequence(backend, OBJECT) for _ in rows], tokens[:3]


@pytest.mark.parametrize("backend", [3], indirect=True)
@pytest.mark.parametrize(("num", "num_slow"), [(8, 1), (16, 2), (8, 5), (2, 1), (1, 1)])
@pytest.mark.parametrize("is_slow", [False, True])
def test_a_sequence_whose_draft_is_slow_looks_less_far_ahead_for_a_while(
    backend: Any,
    slow: Callable[[Sequence[int]], Any],
    monkeypatch: pytest.MonkeyPatch,
    num: int,
    num_slow: int,
    is_slow: bool,
) -> None:
    tree, rooted, tokens = several(backend, num, num_slow)
    expected_BWK, _, _ = filled(tree, rooted, backend)
    go = slow(tokens)
    note_slow = Filling._note_slow

    def look(self: Filling, requests: Sequence[Any]) -> bool:
        is_noted = note_slow(self, requests)
        if requests:
            go.set()
        return is_noted

    if is_slow:
        monkeypatch.setattr(Filling, "_note_slow", look)
    else:
        threading.Timer(0.2, go.set).start()
    step_seconds = 0.01 if is_slow else math.inf
    mask_BWK, refusals, stats = filled(tree, rooted, backend, step_seconds=step_seconds)
    assert np.array_equal(mask_BWK, expected_BWK) and stats.num_late == 0
    is_noted = is_slow and num_slow <= max(1, num // 4)
    limits = [0 if is_noted and b < num_slow else None for b in range(num)]
    assert [held.automaton.mask_limit.limit for held in rooted] == limits
    for looked_at in (1, 1, 1, 2, 3, 4, 4) if is_noted else ():
        mask_BWK, refusals, stats = filled(tree, rooted, backend)
        assert refusals.num_nodes == 0 and stats.num_late == 0
        assert mask_BWK[:num_slow].any(axis=2).sum(axis=1).tolist() == [looked_at] * num_slow
        assert np.array_equal(mask_BWK[:num_slow, :looked_at], expected_BWK[:num_slow, :looked_at])
        assert np.array_equal(mask_BWK[num_slow:], expected_BWK[num_slow:])
    assert all(held.failure is None for held in rooted)


@pytest.mark.parametrize("backend", [3], indirect=True)
@pytest.mark.parametrize("num_slow", [1, 5])
def test_who_was_too_late_waits_before_the_next_try(
    backend: Any, slow: Callable[[Sequence[int]], Any], num_slow: int
) -> None:
    """Who stands out, or everybody."""
    tree, rooted, tokens = several(backend, 8, num_slow)
    go = slow(tokens)
    _, _, stats = filled(tree, rooted, backend, deadline=0.1, step_seconds=0.01)
    assert stats.num_late == 8
    num = num_slow if num_slow == 1 else 8
    assert [held.automaton.mask_limit.limit for held in rooted] == [0] * num + [None] * (8 - num)
    go.set()
    for looked_at in (1, 1, 1, 2, 3, 4, 5):
        mask_BWK, _, stats = filled(tree, rooted, backend)
        num_rows = mask_BWK.any(axis=2).sum(axis=1).tolist()
        whole = [4] * num_slow + [5] * (8 - num_slow)
        expected = [min(looked_at, rows) if b < num else rows for b, rows in enumerate(whole)]
        assert num_rows == expected and stats.num_late == 0


@pytest.mark.parametrize("backend", [3], indirect=True)
def test_a_sequence_goes_on_while_its_last_draft_is_still_under_way(
    backend: Any, slow: Callable[[Sequence[int]], Any]
) -> None:
    """Or ends: what was left behind holds what it needs, and nobody reads what it writes."""
    tree, rooted, tokens = several(backend, 8, 1)
    expected_BWK, _, _ = filled(tree, rooted, backend)
    go = slow(tokens)
    mask_BWK, refusals, stats = filled(tree, rooted, backend, deadline=0.05)
    assert stats.num_late == 8 and refusals.num_nodes == 0
    before_BWK = mask_BWK.copy()
    rooted[1].status = Status.FINISHED
    for held in rooted:
        held.automaton.advance(tokens[:1])
    roots_BWK, _, stats = filled(tree, rooted, backend, deadline=0.05)
    assert stats.num_late == 0 and stats.num_masks == 7, (
        "its thread is busy, and only roots are asked"
    )
    assert roots_BWK.any(axis=2).sum(axis=1).tolist() == [1, 0, 1, 1, 1, 1, 1, 1]
    go.set()
    backend.thread.submit(int).result()
    assert np.array_equal(mask_BWK, before_BWK)
    assert np.array_equal(mask_BWK[:, 0], expected_BWK[:, 0]) and not mask_BWK[:, 1:].any()
    rows = [tokens_of(TOKENIZER, TEXT)[1:4]] * 8
    for _ in range(LEAST_REST):
        filled(chains(rows), rooted, backend)
    mask_BWK, _, stats = filled(chains(rows), rooted, backend)
    assert stats.num_late == 0 and not mask_BWK[1].any()
    assert mask_BWK[[0, *range(2, 8)], :2].any(axis=2).all()


@pytest.mark.parametrize("backend", [3], indirect=True)
def test_when_time_is_over_only_roots_have_masks(
    backend: Any, slow: Callable[[Sequence[int]], Any]
) -> None:
    tree, rooted = some_steps(backend, random.Random(1))
    in_time_BWK, _, _ = filled(tree, some_steps(backend, random.Random(1))[1], backend)
    held = [
        b
        for b, each in enumerate(rooted)
        if each.automaton is not None and each.status is Status.RUNNING
    ]
    long = next(b for b in held if in_time_BWK[b, 2].any())
    num_masks = int(in_time_BWK[long].any(axis=1).sum())
    go = slow(tree.tokens_BW[long, 1:num_masks].tolist())
    for each in (tree, as_branches(tree)):
        _, step = some_steps(backend, random.Random(1))
        mask_BWK, refusals, stats = filled(each, step, backend, deadline=0.1)
        assert np.array_equal(mask_BWK[:, 0], in_time_BWK[:, 0])
        is_there = mask_BWK.any(axis=2)
        assert is_there[held, 0].all() and not is_there[held, 1:].any()
        assert 0 < stats.num_late <= len(held) and refusals.num_nodes > 0
    go.set()
    backend.thread.submit(int).result()


def at_rest(backend: Any) -> Any:
    """A sequence of which only the root is looked at, and whose text may end here."""
    held = sequence(backend, Regex("[ab]{1,50}"), "ab")
    held.automaton.mask_limit.limit, held.automaton.mask_limit._rest = 0, 9
    return held


@pytest.mark.parametrize("backend", [3], indirect=True)
@pytest.mark.parametrize("is_broken", [False, True])
def test_behind_a_root_alone_nothing_is_legal(
    backend: Any, slow: Callable[[Sequence[int]], Any], monkeypatch: Any, is_broken: bool
) -> None:
    """Also when the call that had an end behind it was left, or broke."""
    tree, rooted, tokens = several(backend, 2, 2)
    rooted[0] = at_rest(backend)
    go = slow(tokens) if not is_broken else threading.Event()
    make, calls = backend.job, []

    def breaking(*asked: Any, **more: Any) -> MaskJob:
        job = make(*asked, **more)
        calls.append(job)

        def run() -> None:
            job.run()
            if is_broken and len(calls) == 1:
                raise RuntimeError("on purpose")

        return MaskJob(run, job.settle)

    monkeypatch.setattr(backend, "job", breaking)
    mask_BWK, _, stats = filled(tree, rooted, backend, deadline=60.0 if is_broken else 0.1)
    assert stats.num_late == (not is_broken) and len(calls) > 1
    assert mask_BWK[:, 0].any(axis=1).all() and not mask_BWK[0, 1:].any()
    go.set()


@pytest.mark.parametrize("backend", [3], indirect=True)
def test_a_root_at_rest_is_not_to_blame_for_drafts_that_are_late(
    backend: Any, clock: Clock, monkeypatch: Any
) -> None:
    tree, rooted, _ = several(backend, 8, 0)
    rooted[0] = at_rest(backend)
    go, make = threading.Event(), backend.job

    def waiting(states: Any, mask_RK: Any, rows: Any, drafts: Any, **more: Any) -> MaskJob:
        job = make(states, mask_RK, rows, drafts, **more)

        def run() -> None:
            if any(len(draft) > 1 for draft in drafts or ()):
                clock.start()
                assert go.wait(300)
            job.run()

        return MaskJob(run, job.settle)

    monkeypatch.setattr(backend, "job", waiting)
    _, _, stats = filled(tree, rooted, backend, deadline=0.1, step_seconds=0.01)
    go.set()
    backend.thread.submit(int).result()
    assert stats.num_late == 7
    assert [held.automaton.mask_limit.limit for held in rooted] == [0] * 8


@pytest.mark.parametrize(
    ("drafter", "library", "flights"),
    [
        ("chain", "llguidance", 1),
        ("tree", "llguidance", 0),
        ("short chain", "xgrammar", 0),
        ("tree", "xgrammar", 1),
        *only_thorough(
            ("chain", "llguidance", 0),
            ("short chain", "llguidance", 1),
            ("tree", "llguidance", 1),
            ("root", "llguidance", 1),
            ("chain", "xgrammar", 1),
            ("root", "xgrammar", 0),
        ),
    ],
)
def test_an_engine_says_the_same_however_late_it_sees_its_trees(
    monkeypatch: pytest.MonkeyPatch, drafter: str, library: str, flights: int
) -> None:
    if library == "xgrammar":
        pytest.importorskip("xgrammar")
    monkeypatch.setattr(Masking, "is_packed", property(lambda masking: True))  # on a CPU
    llm = engine(drafter, library, flights)
    cases = [(OBJECT, 0.0), (Regex("(Paris|Amsterdam)[a-z ]{4,9}"), 1.0), (Literal("Paris"), 0.0)]
    for wanted, first in cases:
        # Greedy or sampled, the other way with the other flights; `make laws` runs both.
        for temperature in drawn((abs(first - flights),), (0.0, 1.0)):
            options = {"temperature": temperature, "seed": 3, "n": 1 + int(temperature)}
            options["max_tokens"] = drawn(12, 24)
            answer = ask(llm, QUESTION, wanted, **options)  # type: ignore[arg-type]
            with monkeypatch.context() as ahead:
                ahead.setattr(Masking, "prunes", property(lambda masking: True))
                plain = ask(llm, QUESTION, wanted, **options)  # type: ignore[arg-type]
            assert told(answer) == told(plain)
            assert all(choice.error is None for choice in answer.choices)
    assert llm.engine.metrics.num_failed_steps == 0


@pytest.mark.parametrize(
    ("library", "seed"), [("llguidance", 0), ("xgrammar", 1), *only_thorough(("llguidance", 2))]
)
def test_an_engine_says_the_same_however_many_drafts_are_late(
    monkeypatch: pytest.MonkeyPatch, library: str, seed: int
) -> None:
    if library == "xgrammar":
        pytest.importorskip("xgrammar")
    llm = engine("chain", library, flights=seed % 2)
    draw = random.Random(seed)
    stats = llm.engine.metrics.grammar
    before = stats.num_late
    pool = llm.engine.grammars
    assert pool is not None
    backend: Any = pool._backend
    make = backend.job

    delays = chain([0.5], repeat(0.01))  # the first is late on a busy machine too

    def slow_job(states: Any, mask_RK: Any, rows: Any, drafts: Any, **more: Any) -> MaskJob:
        job = make(states, mask_RK, rows, drafts, **more)
        seconds = next(delays) if any(drafts or ()) and draw.random() < 0.4 else 0.0

        def slowly() -> None:
            time.sleep(seconds)
            job.run()

        return MaskJob(slowly, job.settle)

    options = {"temperature": seed / 2, "seed": seed, "n": drawn(3, 4), "max_tokens": drawn(10, 40)}
    for wanted in (OBJECT, Regex("(Paris|Amsterdam)[a-z ]{4,9}")):
        with monkeypatch.context() as ahead:
            ahead.setattr(Masking, "prunes", property(lambda masking: True))
            plain = ask(llm, QUESTION, wanted, **options)  # type: ignore[arg-type]
        assert 0 < len(llm.engine.launcher.masking.step_seconds) <= 8
        assert all(seconds > 0 for seconds in llm.engine.launcher.masking.step_seconds)
        with monkeypatch.context() as late:
            late.setattr(llm.engine.launcher.masking, "time_limit", 0.008)
            late.setattr(llm.engine.launcher.masking, "step_seconds", [0.003])
            late.setattr(backend, "job", slow_job)
            answer = ask(llm, QUESTION, wanted, **options)  # type: ignore[arg-type]
        assert told(answer) == told(plain)
        assert all(choice.error is None for choice in answer.choices)
    assert stats.num_late > before


@pytest.mark.parametrize("flights", [0, 1])
def test_notes_that_are_lost_cost_nobody_an_answer(
    monkeypatch: pytest.MonkeyPatch, flights: int
) -> None:
    llm = engine("chain", "llguidance", flights)
    options = {"temperature": 0.0, "seed": 3, "max_tokens": drawn(16, 40)}
    with monkeypatch.context() as ahead:
        ahead.setattr(Masking, "prunes", property(lambda masking: True))
        plain = ask(llm, QUESTION, OBJECT, **options)  # type: ignore[arg-type]
    lost = []

    def lose(masks: TreeMasks) -> None:
        lost.append(masks)
        raise RuntimeError("on purpose")

    monkeypatch.setattr(TreeMasks, "note", lose)
    answer = ask(llm, QUESTION, OBJECT, **options)  # type: ignore[arg-type]
    assert told(answer) == told(plain) and answer.choices[0].error is None
    assert len(lost) > 2
