"""Drafters of every kind: lucky, hostile, all-knowing, broken. None may change the output."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from eyas.draft import Drafter, DrafterWrapper, StepReport, TreeShape
from eyas.draft_tree import DraftTree, Verdict
from eyas.runner.batch import Batch
from eyas.runner.runner import Output
from eyas.sampling import SequenceParams, gumbel
from tests.laws.world import EOS, VOCAB, bigrams

Branches = list[tuple[int, int]]
"""(parent, token) of each node after the root, in order."""


def as_tree(roots: Sequence[int], branches: Sequence[Branches], *, chains: bool) -> DraftTree:
    """One tree from each sequence's branches; a chain where `chains` says that they all are."""
    width = 1 + max((len(b) for b in branches), default=0)
    tokens = torch.zeros((len(roots), width), dtype=torch.int64)
    parents = torch.zeros((len(roots), width), dtype=torch.int64)
    parents[:, 0] = -1
    sizes = torch.ones(len(roots), dtype=torch.int64)
    for b, (root, branch) in enumerate(zip(roots, branches, strict=True)):
        tokens[b, 0] = root
        seen: set[tuple[int, int]] = set()
        for i, (parent, token) in enumerate(branch, start=1):
            assert 0 <= parent < i and (parent, token) not in seen
            assert not chains or parent == i - 1
            seen.add((parent, token))
            tokens[b, i], parents[b, i] = token, parent
        sizes[b] = 1 + len(branch)
    if chains:
        parents = torch.arange(-1, width - 1).expand(len(roots), -1)
    return DraftTree(tokens, parents, sizes, is_chain=chains)


class HostDrafter(Drafter):
    """A drafter that thinks on the host, one sequence at a time."""

    chains = False

    def __init__(self, num_tokens: int, seed: int = 0) -> None:
        self.shape = TreeShape(num_tokens, 1, num_tokens + 1)
        self.draw = random.Random(seed)

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        table = batch.table
        roots, branches = [], []
        for b, seat in enumerate(batch.seats_B.tolist()):
            length = int(batch.roots_B[b]) + 1
            tokens = table.tokens_AC[seat, :length].tolist()
            room = batch.width - 1
            branch = self.think(batch.params.sequences[b], tokens, room) if room else []
            roots.append(tokens[-1])
            branches.append(branch[:room])
        if not roots:
            empty = torch.empty((0, 1), dtype=torch.int64)
            return DraftTree(empty, empty, empty[:, 0], is_chain=True)
        return as_tree(roots, branches, chains=self.chains)

    def think(self, source: SequenceParams, tokens: list[int], room: int) -> Branches:
        raise NotImplementedError


class RandomTrees(HostDrafter):
    """Random shapes; tokens are bigrams' guesses, old tokens, the end, anything."""

    def think(self, source: SequenceParams, tokens: list[int], room: int) -> Branches:
        draw, pairs = self.draw, bigrams()
        branch: Branches = []
        at, seen = [tokens[-1]], set()
        for _ in range(draw.randint(0, room)):
            deep = draw.random() < 0.6
            parent = len(at) - 1 if deep else draw.randrange(len(at))
            guesses = [pairs.first[at[parent]]] * 5 + [pairs.second[at[parent]]] * 3
            token = draw.choice([*guesses, draw.choice(tokens), draw.randrange(VOCAB), EOS])
            if (parent, token) not in seen:
                seen.add((parent, token))
                branch.append((parent, token))
                at.append(token)
        return branch


class RaggedChains(HostDrafter):
    """Chains of bigrams whose length changes with every sequence and step."""

    chains = True

    def think(self, source: SequenceParams, tokens: list[int], room: int) -> Branches:
        branch: Branches = []
        last, pairs = tokens[-1], bigrams()
        for i in range(self.draw.randint(0, room)):
            lucky = self.draw.random() < 0.8
            last = pairs.first[last] if lucky else pairs.second[last]
            branch.append((i, last))
        return branch


class Adversary(HostDrafter):
    """Wide trees of what the model likes least, ids that no token has, the end of the text."""

    def think(self, source: SequenceParams, tokens: list[int], room: int) -> Branches:
        likely = {bigrams().first[tokens[-1]], bigrams().second[tokens[-1]]}
        bad = [VOCAB - 1, EOS, *(t for t in range(0, VOCAB, 17) if t not in likely)]
        return [(i // 2, bad[i % len(bad)]) for i in range(room) if i // 2 <= i][:room]


class NoiseReader(HostDrafter):
    """A tree that has read all the noise to come: a table's guess plus the request's own noise."""

    def think(self, source: SequenceParams, tokens: list[int], room: int) -> Branches:
        branch: Branches = []
        frontier = [(0, tokens[-1], len(tokens) - 1)]
        while frontier and len(branch) < room:
            parent, last, position = frontier.pop(0)
            scores = _table_logits()[last] / max(source.params.temperature, 1e-3)
            if source.params.temperature > 0:
                seed = torch.tensor([source.seed if source.seed < 2**63 else source.seed - 2**64])
                place, choice = torch.tensor([position]), torch.tensor([source.choice])
                scores = scores + gumbel(seed, place, choice, VOCAB)[0]
            best = scores.topk(2 if len(branch) < room - 2 else 1).indices.tolist()
            for token in best[: room - len(branch)]:
                branch.append((parent, token))
                frontier.append((len(branch), token, position + 1))
            frontier.sort(key=lambda entry: entry[0] % 2 == 0)
        return branch


def _table_logits() -> torch.Tensor:
    """[V, V] what the last token alone says of the next."""
    pairs = bigrams()
    table = torch.zeros(VOCAB, VOCAB)
    rows = torch.arange(VOCAB)
    table[rows, torch.tensor(pairs.second)] = 4.0
    table[rows, torch.tensor(pairs.first)] = 5.0
    return table


class Oracle(HostDrafter):
    """Knows what the root drafter answered.

    answers: the whole output by (seed, choice, prompt). decoys: hide the true path among wrong
    siblings, at a random place; else it is a chain. honesty: share of steps that are not cut short
    by a wrong token.
    """

    def __init__(
        self,
        num_tokens: int,
        answers: dict[tuple[int, int, tuple[int, ...]], list[int]],
        *,
        decoys: bool,
        seed: int = 0,
        honesty: float = 0.6,
    ) -> None:
        super().__init__(num_tokens, seed)
        self.answers, self.decoys, self.honesty = answers, decoys, honesty
        self.chains = not decoys

    def think(self, source: SequenceParams, tokens: list[int], room: int) -> Branches:
        prompt = tuple(tokens[: source.num_prompt_tokens])
        known = self.answers.get((source.seed, source.choice, prompt), [])
        ahead = known[len(tokens) - len(prompt) :]
        lie_at = -1 if self.draw.random() < self.honesty else self.draw.randint(1, 4)
        branch: Branches = []
        parent = 0
        for i, token in enumerate(ahead):
            if len(branch) >= room:
                break
            wrong = [t for t in self.draw.sample(range(VOCAB), 3) if t != token]
            true = wrong.pop() if i == lie_at else token
            siblings = [true]
            if self.decoys:
                siblings += wrong[: self.draw.randint(0, 2)]
                self.draw.shuffle(siblings)
            siblings = siblings[: room - len(branch)]
            base = len(branch)
            for sibling in siblings:
                branch.append((parent, sibling))
            if true not in siblings:
                break
            parent = base + siblings.index(true) + 1
        return branch


class Raises(DrafterWrapper):
    """Another drafter that fails every few steps, in propose, observe and learn."""

    def __init__(self, inner: Drafter, every: int = 3) -> None:
        super().__init__(inner)
        self.every, self.calls = every, 0

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        self.calls += 1
        if self.calls % self.every == 0:
            raise RuntimeError("a drafter's fault, on purpose")
        return super().propose(batch, shape)

    def observe(self, batch: Batch, output: Output, verdict: Verdict | None) -> None:
        if self.calls % self.every == 1:
            raise RuntimeError("a drafter's fault, on purpose")
        super().observe(batch, output, verdict)

    def learn(self, report: StepReport) -> None:
        if self.calls % 5 == 0:
            raise RuntimeError("a drafter's fault, on purpose")
        super().learn(report)


class Changing(Drafter):
    """A different drafter every step: wide, narrow, trees, chains, nothing."""

    def __init__(self, inner: Sequence[Drafter]) -> None:
        self.inner, self.calls = list(inner), 0
        self.taps = next((d.taps for d in self.inner if d.taps), ())
        nodes = max(d.width for d in self.inner)
        self.shape = TreeShape(nodes - 1, 1, nodes)

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        self.calls += 1
        full, drafter = batch.width, self.inner[self.calls % len(self.inner)]
        batch.width = min(full, drafter.width)
        try:
            return drafter.propose(batch, drafter.shape.within(batch.width))
        finally:
            batch.width = full

    def observe(self, batch: Batch, output: Output, verdict: Verdict | None) -> None:
        for drafter in self.inner:
            drafter.observe(batch, output, verdict)


@dataclass
class Seen:
    """What the verdicts did to the trees. steps: sequences' steps that had a drafted token."""

    steps: int = 0
    accepted: int = 0
    most_accepted: int = 0
    refused_inside: int = 0
    refused_below_accepted: int = 0


class Watched(DrafterWrapper):
    """Any drafter, counted: how far walks went and where they stopped."""

    def __init__(self, inner: Drafter, seen: Seen | None = None) -> None:
        super().__init__(inner)
        self.seen = seen if seen is not None else Seen()
        self.tree: DraftTree | None = None

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        self.tree = None
        self.tree = super().propose(batch, shape)
        return self.tree

    def observe(self, batch: Batch, output: Output, verdict: Verdict | None) -> None:
        tree, seen = self.tree, self.seen
        if tree is not None and verdict is not None:
            for b, size in enumerate(tree.sizes_B.tolist()):
                count = int(verdict.counts_B[b])
                if size == 1 or count < 1:
                    continue
                last = int(verdict.nodes_BW[b, count - 1])
                has_child = last in tree.parents_BW[b, 1:size].tolist()
                seen.steps += 1
                seen.accepted += count - 1
                seen.most_accepted = max(seen.most_accepted, count - 1)
                seen.refused_inside += has_child
                seen.refused_below_accepted += has_child and count > 1
        super().observe(batch, output, verdict)


MakeDrafter = Callable[[], Drafter]
