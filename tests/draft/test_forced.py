"""What a grammar leaves no choice about, drafted: automata that look ahead, a drafter that asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from eyas.constraint import ConstraintFailure, State
from eyas.constraint.automaton import Automaton
from eyas.constraint.base import one_by_one
from eyas.constraint.filling import Filling
from eyas.constraint.mask_batch import MaskRequest
from eyas.core import Request, SamplingParams
from eyas.draft import Drafter, ForcedDrafter, RootDrafter, StepReport, TreeShape
from eyas.draft.base import chain
from eyas.draft_tree import DraftTree
from eyas.grammar import Budget, Marker, OutputSpec, Source
from tests.laws.automata import Lane, Modular, ToyGrammar, Toys, toy
from tests.laws.cases import walk_text
from tests.laws.drafters import RandomTrees
from tests.laws.test_faults import failing
from tests.laws.world import EOS, VOCAB, Setting, new_engine, run

NUM_WORDS = -(-VOCAB // 32)


@dataclass
class Told:
    """A text of its own, token by token; `choices` are the places where any letter may stand."""

    grammar: ToyGrammar
    text: str
    choices: frozenset[int] = frozenset()
    count: int = 0

    num_deviations = 0

    def after(self, token: int) -> Told | None:
        if not self.row()[token]:
            return None
        return Told(self.grammar, self.text, self.choices, self.count + 1)

    def after_all(self, tokens: Sequence[int]) -> State | None:
        return one_by_one(self, tokens)

    def become(self, tokens: Sequence[int]) -> State | None:
        return self.after_all(tokens)

    def row(self) -> np.ndarray:
        allowed = np.zeros(VOCAB, dtype=bool)
        if self.count == len(self.text):
            allowed[EOS] = True
        elif self.count in self.choices:
            allowed[97:123] = True
        elif self.count < len(self.text):
            allowed[ord(self.text[self.count])] = True
        return allowed

    def forced(self, limit: int) -> list[int]:
        end = min((c for c in self.choices if c >= self.count), default=len(self.text))
        return [ord(letter) for letter in self.text[self.count : end]][:limit]


def told(grammar: ToyGrammar, source: str) -> Told:
    """A ? is a choice."""
    return Told(grammar, source, frozenset(i for i, letter in enumerate(source) if letter == "?"))


TOYS = Toys(told=told)


def grammar_of(source: str) -> ToyGrammar:
    return TOYS.compile(OutputSpec(root=Source("lark", source)))  # type: ignore[return-value]


def automaton_of(source: str, budget: Budget | None = None) -> Automaton:
    return Automaton(grammar_of(source), budget, lambda token: bytes([token % 256]))


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


# Automata


def test_legal_is_what_the_grammar_takes() -> None:
    legal = automaton_of("told ab?d").legal([0, *letters("abxdxa")], [-1, 0, 1, 2, 3, 1, 2])
    assert legal == [True, True, True, True, True, False, True]


def test_nothing_is_legal_below_what_is_not() -> None:
    legal = automaton_of("told abab").legal([0, *letters("bab")], [-1, 0, 1, 2])
    assert legal == [True, False, False, False]


def test_a_branch_that_hits_a_limit_dies_alone() -> None:
    automaton = automaton_of("fused 3:3")
    tokens = [3, 3, 3, 3, 3]
    assert automaton.legal([0, *tokens], [-1, 0, 1, 2, 3, 4]) == [True] * 4 + [False] * 2
    automaton.advance(tokens[:3])
    assert automaton.num_replays == 1, "the draft has used up what the states share"


@pytest.mark.parametrize("where", ["after:1", "after:3"])
def test_a_draft_that_breaks_the_library_is_not_legal(where: str) -> None:
    grammar = Toys(failing=failing).compile(OutputSpec(root=Source("lark", f"failing {where}")))
    automaton = Automaton(grammar)
    assert automaton.legal([0, 1, 2, 3], [-1, 0, 1, 2]) == [True, False, False, False]


def test_a_limit_used_up_by_drafts_is_counted_afresh() -> None:
    automaton = automaton_of("fused 3:3")
    automaton.legal([0, 3, 4, 7], [-1, 0, 0, 0])
    automaton.advance([6, 3])
    assert automaton.num_replays == 1
    assert automaton.root.count == 2  # type: ignore[attr-defined]


def test_a_limit_that_the_text_itself_hits_is_a_failure() -> None:
    automaton = automaton_of("fused 3:3")
    automaton.advance([3, 3, 3])
    with pytest.raises(ConstraintFailure):
        automaton.advance([3])
    assert automaton.num_replays == 1


def test_a_token_that_is_not_legal_is_our_fault() -> None:
    with pytest.raises(AssertionError, match="not legal"):
        automaton_of("told ab").advance(letters("b"))


def test_a_replay_stands_at_the_same_place() -> None:
    automaton = automaton_of("modular 3")
    automaton.advance([3, 1, 2, 3])
    before = automaton.root
    automaton.replay()
    assert automaton.root is not before and automaton.num_replays == 1
    assert automaton.root.state == before.state  # type: ignore[attr-defined]
    assert automaton.root.count == 4  # type: ignore[attr-defined]


def test_a_fork_goes_its_own_way() -> None:
    automaton = automaton_of("modular 3")
    automaton.advance([1])
    fork = automaton.fork()
    automaton.advance([3])
    fork.advance([2, 3])
    assert automaton.root.count == 2  # type: ignore[attr-defined]
    assert fork.root.count == 3  # type: ignore[attr-defined]
    automaton.replay()
    fork.replay()
    assert automaton.root.count == 2  # type: ignore[attr-defined]
    assert fork.root.count == 3  # type: ignore[attr-defined]


def test_a_budget_closes_whatever_the_grammar_would_take() -> None:
    budget = Budget(2, (Marker("#", None),), tuple(letters("##")))
    automaton = automaton_of("told ??????", budget)
    # "#" is no letter: the budget waits until its text can stand there
    assert all(automaton.legal([0, *letters("aaaa")], [-1, 0, 1, 2, 3]))
    closing = Budget(2, (Marker("z", None),), tuple(letters("yz")))
    automaton = automaton_of("told ??????", closing)
    tree = [0, *letters("aaayzab")], [-1, 0, 1, 2, 2, 4, 5, 6]
    assert automaton.legal(*tree) == [True, True, True, False, True, True, True, True]
    assert automaton.due(*tree) == {2: ord("y"), 3: ord("y"), 4: ord("z")}


def test_an_end_in_time_leaves_the_budget_out() -> None:
    budget = Budget(3, (Marker("zz", None),), tuple(letters("zz")))
    automaton = automaton_of("told ????????", budget)
    automaton.advance(letters("azz"))
    assert automaton.budget is None and automaton.due([0], [-1]) == {}
    split = automaton_of("told ????????", budget)
    split.advance(letters("zaz"))
    assert split.due([0], [-1]) == {0: ord("z")}


def test_a_closing_that_was_begun_goes_on() -> None:
    budget = Budget(1, (Marker("qz", None),), tuple(letters("xyz")))
    automaton = automaton_of("told ????????", budget)
    automaton.advance(letters("ax"))
    assert automaton.due([0], [-1]) == {0: ord("y")}
    automaton.advance(letters("yz"))
    assert automaton.due([0], [-1]) == {}


def test_spans_follow_the_ends_of_the_draft() -> None:
    automaton = automaton_of("told ab?cd?ef")
    assert automaton.forced([0], [-1], 9) == {0: letters("ab")}
    found = automaton.forced([0, *letters("abxy")], [-1, 0, 1, 2, 2], 9)
    assert found == {3: letters("cd"), 4: letters("cd")}
    assert automaton.forced([0, *letters("abx")], [-1, 0, 1, 2], 1) == {3: letters("c")}
    assert automaton.forced([0, *letters("ab")], [-1, 0, 1], 9) == {}


def test_what_is_refused_is_no_end_and_hides_none() -> None:
    automaton = automaton_of("told ab?cd")
    assert automaton.forced([0, *letters("ax")], [-1, 0, 1], 9) == {1: letters("b")}


def test_a_canonical_grammar_forces_more_until_the_text_leaves_it() -> None:
    grammar = grammar_of("told ?b?d")
    grammar.canonical = (grammar_of("told abcd"), grammar_of("told xb?d"))
    automaton = Automaton(grammar)
    assert automaton.forced([0], [-1], 9) == {0: letters("abcd")}
    automaton.advance(letters("xb"))
    assert automaton.forced([0, *letters("q")], [-1, 0], 9) == {1: letters("d")}
    late = Automaton(grammar)
    late.advance(letters("zb"))
    assert late.forced([0], [-1], 9) == {}


# Masks


def masks_of(states: Sequence[State]) -> tuple[int, list[int], np.ndarray]:
    """How many were made, how many each state has, and all."""
    mask_RK = np.zeros((len(states), NUM_WORDS), dtype=np.int32)
    requests = [MaskRequest(state, row) for row, state in enumerate(states)]
    filling = Filling(requests, (), mask_RK, 60.0)
    assert filling.wait()
    return filling.num_masks, [each.num_masks for each in requests], mask_RK


class Spoilt(Toys):
    """A library in which some states hit a limit, or raise for all that is filled with them."""

    def __init__(self, *, raises: bool) -> None:
        super().__init__(told=told)
        self.raises = raises

    def write(
        self, states: Sequence[Any], mask_RK: np.ndarray, rows: Any, drafts: Any
    ) -> list[int]:
        spoilt = [i for i, state in enumerate(states) if state.text == "spoilt"]
        if spoilt and self.raises:
            mask_RK[:] = -1
            raise MemoryError("on purpose")
        return [*super().write(states, mask_RK, rows, drafts), *spoilt]


@pytest.mark.parametrize("raises", [False, True])
def test_a_state_that_fails_has_no_mask_and_its_neighbours_have_theirs(raises: bool) -> None:
    toys = Spoilt(raises=raises)
    states = [
        Automaton(toys.compile(OutputSpec(root=Source("lark", f"told {text}")))).root
        for text in ("ab", "spoilt", "ba")
    ]
    num, nums, mask_RK = masks_of(states)
    assert num == 2 and nums == [1, 0, 1]
    bits_RV = np.unpackbits(mask_RK.view(np.uint8), axis=1, bitorder="little")
    rows = [np.nonzero(bits)[0].tolist() for bits in bits_RV]
    assert rows == [[ord("a")], [], [ord("b")]]


# The drafter


class Fixed(Drafter):
    """Proposes one tree, and keeps what it is told."""

    sources = ("one", "two")

    def __init__(self, tree: DraftTree) -> None:
        self.tree = tree
        self.shape = TreeShape(tree.width - 1, 2, tree.width)
        self.reports: list[StepReport] = []

    def preferred_shape(
        self, num_sequences: int, num_constrained: int = 0, num_prompt_rows: int = 0
    ) -> TreeShape:
        return TreeShape(4, 1, 5)

    def propose(self, batch: Any, shape: TreeShape) -> DraftTree:
        return self.tree

    def learn(self, report: StepReport) -> None:
        self.reports.append(report)


def tree_of(
    tokens: Sequence[Sequence[int]],
    parents: Sequence[Sequence[int]],
    sizes: Sequence[int],
    sources: Sequence[Sequence[int]] | None = None,
) -> DraftTree:
    source_BW = None if sources is None else torch.tensor(sources)
    is_chain = False
    return DraftTree(
        torch.tensor(tokens), torch.tensor(parents), torch.tensor(sizes), is_chain, source_BW
    )


def batch_of(automata: Sequence[Automaton | None] | None, width: int) -> Any:
    """What the drafter reads of a batch."""
    return SimpleNamespace(
        automata=None if automata is None else list(automata),
        rooted=[object()] * (0 if automata is None else len(automata)),
        width=width,
    )


def extended(
    inner: Fixed, automata: Sequence[Automaton | None], *, nodes: int = 8, width: int = 32
) -> tuple[ForcedDrafter, DraftTree]:
    drafter = ForcedDrafter(inner, nodes)
    return drafter, drafter.propose(batch_of(automata, width), TreeShape(31, 4, width))


def paths_of(tree: DraftTree, b: int) -> dict[str, int | None]:
    tokens, parents = tree.tokens_BW[b].tolist(), tree.parents_BW[b].tolist()
    sources = None if tree.source_BW is None else tree.source_BW[b].tolist()
    paths: list[str] = []
    for node in range(int(tree.sizes_B[b])):
        paths.append(paths[parents[node]] + chr(tokens[node]) if node else "")
    return {path: None if sources is None else sources[i] for i, path in enumerate(paths)}


ROOT = 32


def test_a_span_goes_on_where_the_tree_ends_and_says_whose_it_is() -> None:
    tokens = [[ROOT, *letters("abxy")], [ROOT, *letters("pq"), 0, 0]]
    inner = Fixed(
        tree_of(
            tokens, [[-1, 0, 1, 2, 2], [-1, 0, 0, 0, 0]], [5, 3], [[0, 0, 1, 1, 0], [1, 0, 1, 0, 0]]
        )
    )
    drafter, tree = extended(inner, [automaton_of("told ab?cd"), None])
    assert drafter.sources == ("one", "two", "forced")
    assert paths_of(tree, 0) == {
        "": 0,
        "a": 0,
        "ab": 1,
        "abx": 1,
        "aby": 0,
        "abxc": 2,
        "abxcd": 2,
        "abyc": 2,
        "abycd": 2,
    }
    assert paths_of(tree, 1) == {"": 1, "p": 0, "q": 1}
    assert not tree.is_chain


def test_chains_with_spans_stay_chains() -> None:
    inner = Fixed(chain(torch.tensor([[ROOT, 97], [ROOT, 98]]), torch.tensor([2, 1])))
    tree = extended(inner, [automaton_of("told ab?"), automaton_of("told bcd?")])[1]
    assert tree.is_chain
    assert paths_of(tree, 0) == {"": 0, "a": 0, "ab": 2}
    assert paths_of(tree, 1) == {"": 0, "b": 2, "bc": 2, "bcd": 2}
    assert tree.sizes_B.tolist() == [3, 4]


@pytest.mark.parametrize(("nodes", "width", "expected"), [(2, 32, 4), (8, 3, 3), (8, 32, 7)])
def test_room_is_kept_to(nodes: int, width: int, expected: int) -> None:
    inner = Fixed(chain(torch.tensor([[ROOT, 97]]), torch.tensor([2])))
    drafter, tree = extended(inner, [automaton_of("told abcdef")], nodes=nodes, width=width)
    assert tree.width == expected and drafter.width == 2 + nodes
    assert list(paths_of(tree, 0)) == ["", "a", "ab", "abc", "abcd", "abcde", "abcdef"][:expected]


def test_where_nothing_is_forced_the_tree_is_the_inner_ones() -> None:
    inner = Fixed(chain(torch.tensor([[ROOT, 97]]), torch.tensor([2])))
    assert extended(inner, [automaton_of("told a????")])[1] is inner.tree
    assert extended(inner, [None])[1] is inner.tree
    assert extended(inner, [automaton_of("told abcd")], width=1)[1] is inner.tree
    assert ForcedDrafter(inner, 8).propose(batch_of(None, 9), TreeShape(8, 1, 9)) is inner.tree


def test_rows_are_wished_for_where_a_grammar_is() -> None:
    drafter = ForcedDrafter(Fixed(chain(torch.tensor([[ROOT]]), torch.tensor([1]))), 8)
    assert drafter.preferred_shape(3, 0) == TreeShape(4, 1, 5) and drafter.preferred_shape(
        3, 1
    ) == TreeShape(4, 1, 5, extra=8)
    alone = ForcedDrafter(RootDrafter(), 8)
    assert alone.preferred_shape(3, 0).width == 1 and alone.preferred_shape(3, 1).width == 9


def test_the_inner_drafter_hears_of_its_own_nodes_alone() -> None:
    inner = Fixed(tree_of([[ROOT, *letters("ab")]], [[-1, 0, 1]], [3], [[0, 0, 1]]))
    drafter, tree = extended(inner, [automaton_of("told abcd?")])
    report = StepReport(tree, [5], tree.sizes_B.tolist(), 0.25, [[0, 1, 2, 2]], [0])
    drafter.learn(report)
    [told_on] = inner.reports
    assert told_on.tree is inner.tree
    assert (list(told_on.counts), list(told_on.sizes), told_on.seconds) == ([3], [3], 0.25)


def test_a_step_of_the_inner_tree_is_passed_on_as_it_is() -> None:
    inner = Fixed(tree_of([[ROOT, 97]], [[-1, 0]], [2]))
    drafter = ForcedDrafter(inner, 8)
    report = StepReport(inner.tree, [2], [2], None, [[0]], [0])
    drafter.learn(report)
    assert inner.reports == [report]


@pytest.mark.parametrize("flights", [0, 1])
@pytest.mark.parametrize("kind", ["lane", "liar"])
def test_forced_tokens_are_accepted_and_change_nothing(kind: str, flights: int) -> None:
    params = SamplingParams(temperature=0.7, seed=3, max_tokens=60, logprobs=1, n=2)
    asked = [
        Request(
            id="a",
            prompt_token_ids=walk_text(97, 9, [0, 1]),
            params=params,
            output=toy(f"{kind} 5"),
        ),
        Request(id="b", prompt_token_ids=walk_text(99, 9, [0, 1]), params=params),
    ]
    plain = run(new_engine(Setting()), asked)
    for inner in (RootDrafter(), RandomTrees(5, 1)):
        engine = new_engine(Setting(flights=flights), ForcedDrafter(inner, 12))
        assert run(engine, asked) == plain
        drafts = engine.metrics.drafts
        assert drafts.drafted_by_source["forced"] > 0
        if kind == "lane":
            assert drafts.accepted_by_source["forced"] > 10
        nodes = engine.metrics.nodes
        accepted = {source: sum(depths) for source, depths in nodes.accepted.items()}
        assert accepted == drafts.accepted_by_source
        proposed, illegal = (
            sum(map(sum, each.values())) for each in (nodes.proposed, nodes.illegal)
        )
        assert proposed - illegal == engine.metrics.num_draft_tokens
        assert 0 <= illegal <= engine.metrics.grammar.num_pruned
        assert illegal or isinstance(inner, RootDrafter), "random nodes are refused"


def test_a_step_out_of_time_has_the_roots_branches_and_no_others() -> None:
    params = SamplingParams(temperature=0.7, seed=3, max_tokens=60, logprobs=1)
    prompt = walk_text(97, 9, [0, 1])
    asked = [Request(id="a", prompt_token_ids=prompt, params=params, output=toy("modular 5"))]
    plain = run(new_engine(Setting()), asked)
    engine = new_engine(Setting(), ForcedDrafter(RandomTrees(12, 1), 12))
    engine.launcher.masking.time_limit = -1.0
    in_time = new_engine(Setting(), ForcedDrafter(RandomTrees(12, 1), 12))
    in_time.launcher.masking.time_limit = 60.0
    assert run(engine, asked) == run(in_time, asked) == plain
    hurried, whole = engine.stats(), in_time.stats()
    assert hurried.num_draft_tokens > 0 and hurried.grammar.num_replays == 0
    assert hurried.grammar.num_late > 0 and whole.grammar.num_late == 0
    assert 0 < hurried.num_accepted_tokens < whole.num_accepted_tokens


def test_toys_force_what_they_say() -> None:
    """The lane's spans are legal, token by token."""
    state: Modular | None = Lane(grammar_of("lane 5"), 5, 0, 1, 3)
    assert state is not None
    span = state.forced(9)
    assert len(span) == 3
    for token in span:
        assert state is not None
        state = state.after(token)
    assert state is not None
