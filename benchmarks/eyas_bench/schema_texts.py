"""Make a model with random weights write given instances of schemas, with real masks.

An instance is written as JSON and tokenized. The first token of a request's prompt is the index of
its instance, so that the device can look everything up: draft tokens are replaced by the instance's
tokens up to a drawn length and by other tokens that the grammar allows there; the verdict, after
verification has run in full, is replaced by that of a model that prefers the instance's tokens.
Trees have the form that a good head would give them (`tree_forms`).

Promises: a token that the mask of its row refuses is not chosen: at a root the request ends with an
error, as for an empty mask; at a deeper node the walk ends before it. The host does not wait for
the device, so both replacements also work inside a CUDA graph. The same files give the same texts.
Does not know: steps, clocks, how results are shown.

Legend: R rows, V vocabulary, K mask words, B sequences, W nodes, I instances, A seats, C positions.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eyas.constraint import ConstraintFailure, Grammar
from eyas.constraint.base import State
from eyas.core import GrammarError, Request, SamplingParams
from eyas.draft import TreeShape
from eyas.draft_tree import DraftTree, Verdict
from eyas.engine.engine import Engine
from eyas.engine.verifier import verify
from eyas.grammar import Json, OutputSpec
from eyas.runner.batch import Batch
from eyas.runner.rows import PackedRows
from eyas.schemas import prepare
from eyas.text import Tokenizer
from eyas_bench.grammar import Case, read_cases
from eyas_bench.synthetic import continuation, draw_lengths
from eyas_bench.tree_forms import Form, depths, form_of, path

NAME = "instances' tokens, drawn acceptance"
OF_TREES = f"{NAME}, trees of a good head's form"
LEAST_TOKENS = 32
"""The minimum length of an instance, since the first steps of a sequence are not measured."""
MOST_TEXTS = 256
_TRIES = 4
"""The number of tokens that are tried to find one after which the instance could continue."""
_SLACK = 8

Propose = Callable[[Batch, TreeShape], DraftTree]


@dataclass(frozen=True, slots=True)
class Text:
    """An instance of a schema.

    tokens: without the end token. others: at each position, including the end, other tokens that
    the grammar allows there; fewer where it allows fewer.
    """

    name: str
    output: OutputSpec
    grammar: Grammar
    tokens: list[int]
    others: list[list[int]]


@dataclass(slots=True)
class Texts:
    """The texts of a directory.

    left_out: omitted instances by reason. refused: files whose valid instance the grammar refuses.
    """

    texts: list[Text] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)


def read_texts(
    engine: Engine,
    tokenizer: Tokenizer,
    folder: Path,
    longest: int,
    *,
    topk: int = 1,
    on_text: Callable[[int], None] = lambda number: None,
) -> Texts:
    """Return valid instances of LEAST_TOKENS to `longest` tokens, with their grammars compiled.

    Each schema has one instance before any has a second. topk: number of other tokens at each
    position. ValueError: there are no such instances.
    """
    if engine.info.grammar_backend is None:
        raise ValueError("--schemas: this model cannot be held to schemas")
    end = engine.info.eos_token_ids[0]
    most = min(MOST_TEXTS, engine.info.vocab_size)
    found = Texts()
    cases = read_cases(folder)
    random.Random(0).shuffle(cases)
    grammars: dict[str, tuple[OutputSpec, Grammar] | None] = {}
    for case, value in _in_turn(cases):
        if len(found.texts) == most:
            found.left_out["not needed"] += 1
            continue
        tokens = tokenizer.encode_text(json.dumps(value, ensure_ascii=False))
        if not LEAST_TOKENS <= len(tokens) <= longest:
            found.left_out["too short" if len(tokens) < LEAST_TOKENS else "too long"] += 1
            continue
        if case.name not in grammars:
            grammars[case.name] = _compiled(engine, case)
        compiled = grammars[case.name]
        if compiled is None:
            found.left_out["schema refused"] += 1
            continue
        output, grammar = compiled
        draw = random.Random(f"{case.name} {len(tokens)}")
        others = other_tokens(grammar, [*tokens, end], engine.info.vocab_size, draw, topk)
        if others is None:
            found.left_out["instance refused"] += 1
            found.refused.append(case.name)
            continue
        found.texts.append(Text(case.name, output, grammar, tokens, others))
        on_text(len(found.texts))
    if not found.texts:
        raise ValueError(
            f"--schemas: {folder} has no instance of {LEAST_TOKENS} to {longest} tokens that its "
            f"schema allows ({dict(found.left_out)})"
        )
    return found


def other_tokens(
    grammar: Grammar, tokens: Sequence[int], vocab_size: int, draw: random.Random, num: int = 1
) -> list[list[int]] | None:
    """Return, for each position, tokens other than the instance's that the grammar allows.

    The first of them is a token after which the instance could continue, if one is found quickly.
    None: the grammar refuses a token of the instance.
    """
    state: State | None = grammar.start(fresh=True)
    others: list[list[int]] = []
    for place, token in enumerate(tokens):
        assert state is not None
        mask_1K = np.zeros((1, -(-vocab_size // 32)), dtype=np.int32)
        if grammar.backend.fill([state], mask_1K):
            return None
        allowed_V = np.unpackbits(mask_1K.view(np.uint8)[0], bitorder="little")[:vocab_size]
        if not allowed_V[token]:
            return None
        allowed_V[[token, tokens[-1]]] = 0
        later = tokens[place + 1 : place + 2]
        legal = np.flatnonzero(allowed_V)
        others.append(_others(state, legal, token, later, draw, num, vocab_size))
        try:
            state = state.after(token)
        except ConstraintFailure:
            return None
    return others


def _others(
    state: State,
    legal: np.ndarray,
    token: int,
    later: Sequence[int],
    draw: random.Random,
    num: int,
    vocab_size: int,
) -> list[int]:
    drawn = [int(legal[draw.randrange(len(legal))]) for _ in range(_TRIES * num) if len(legal)]
    first = next((other for other in drawn[:_TRIES] if _goes_on(state, other, later)), None)
    # If few tokens are legal, the grammar refuses the wrong guesses.
    refused = ((token + step) % vocab_size for step in range(-1, -vocab_size, -1))
    found = dict.fromkeys(drawn if first is None else [first, *drawn])
    while len(found) < num:
        found.setdefault(next(refused))
    return list(found)[:num]


def _goes_on(state: State, other: int, later: Sequence[int]) -> bool:
    try:
        following = state.after(other)
        return following is not None and (not later or following.after(later[0]) is not None)
    except ConstraintFailure:
        return False


def _in_turn(cases: Sequence[Case]) -> Iterator[tuple[Case, Any]]:
    valid = [(case, [value for is_valid, value in case.tests if is_valid]) for case in cases]
    for turn in range(max((len(values) for _, values in valid), default=0)):
        for case, values in valid:
            if turn < len(values):
                yield case, values[turn]


def _compiled(engine: Engine, case: Case) -> tuple[OutputSpec, Grammar] | None:
    try:
        output = OutputSpec(root=Json(prepare(case.schema, param="schema")), param="schema")
        return output, engine.compile(output).result()
    except GrammarError:
        return None


class Teacher:
    """Makes the sequences of an engine write instances.

    `verify` must be the engine's from the start; call `teach` before the first step. mean: tokens
    per step on average, including the token that every step yields; None without a drafter. steps:
    levels of its trees. topk: children of a node. num_2: on the device, the number of roots whose
    token was refused, and of walks that ended at a deeper node because a mask was not there in
    time.
    """

    def __init__(self, prompt_tokens: int, mean: float | None, steps: int, topk: int = 1) -> None:
        if mean is not None:
            continuation(mean, steps)  # raises for an impossible mean before any work
        self._prompt_tokens = prompt_tokens
        self._mean, self._steps, self._topk = mean, steps, topk
        self._forms: dict[int, Form] = {}

    def teach(self, engine: Engine, texts: Sequence[Text]) -> None:
        """Set the texts that the engine writes, and replace the proposals of its drafter from now
        on.

        ahead_IC: tokens of each instance by position. others_ICK: other tokens that its grammar
        allows there. ends_I: position of the end token, which follows every text. accepted_AC:
        number of draft tokens that a seat accepts whose root is at a position.
        """
        device, end = engine.table.device, engine.info.eos_token_ids[0]
        columns = max(len(text.tokens) for text in texts) + 2
        ahead = [text.tokens + [end] * (columns - len(text.tokens)) for text in texts]
        beyond = [(end - 1 - k) % engine.info.vocab_size for k in range(self._topk)]
        others = [text.others + [beyond] * (columns - len(text.others)) for text in texts]
        self._ahead_IC = torch.tensor(ahead, device=device)
        self._others_ICK = torch.tensor(others, device=device)
        self._ends_I = torch.tensor([len(text.tokens) for text in texts], device=device)
        num_seats, num_positions = engine.table.tokens_AC.shape
        accepted_AC = torch.zeros((num_seats, num_positions), dtype=torch.int64)
        if self._mean is not None:
            accepted_AC = draw_lengths(self._mean, self._steps, num_seats, num_positions)
        self._accepted_AC = accepted_AC.to(device)
        self._padding_seat = engine.table.padding_seat
        self.num_2 = torch.zeros(2, dtype=torch.int64, device=device)
        self._before_2 = torch.zeros_like(self.num_2)
        self._propose: Propose = engine.drafter.propose
        engine.drafter.propose = self.propose  # type: ignore[method-assign]

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        """Return the drafter's tree with the form and tokens replaced."""
        self._before_2.copy_(self.num_2)
        tree = self._propose(batch, shape)
        if tree.width == 1:
            return tree
        tree = batch.to_static(tree)
        if tree.width not in self._forms:  # not while a step is captured
            form = form_of(tree.width, self._steps, self._topk, tree.tokens_BW.device)
            self._forms[tree.width] = form
        form = self._forms[tree.width]
        key = (tree.width, tree.tokens_BW.data_ptr())
        return batch.stage("taught", key, lambda: self._taught(batch, tree, form))

    def _taught(self, batch: Batch, tree: DraftTree, form: Form) -> DraftTree:
        """Give first children the text's tokens, up to the last one to be accepted."""
        wanted_B1 = self._accepted_AC[batch.seats_B, batch.roots_B].unsqueeze(1)
        # If the first child is wrong, so are its siblings.
        is_wrong_BW = form.follows_main_W & (form.depths_W - 1 == wanted_B1)
        names_B1, places_BW = self._places(batch, form.depths_W - 1)
        ranks_BW = form.ranks_W - 1 + is_wrong_BW.to(torch.int64)
        others_BW = self._others_ICK[names_B1, places_BW, ranks_BW.clamp(min=0)]
        tokens_BW = torch.where(ranks_BW >= 0, others_BW, self._ahead_IC[names_B1, places_BW])
        tokens_BW = torch.cat([tree.tokens_BW[:, :1], tokens_BW[:, 1:]], dim=1)
        parents_BW = form.parents_W.expand_as(tokens_BW).contiguous()
        if tree.is_chain:  # also of what fills it up
            parents_BW = tree.parents_BW
        return replace(tree, tokens_BW=tokens_BW, parents_BW=parents_BW)

    def verify(
        self,
        logits_RV: torch.Tensor,
        tree: DraftTree,
        rows: PackedRows,
        batch: Batch,
        mask_RK: torch.Tensor | None,
    ) -> Verdict:
        """Verify, and replace the verdict by the instance's tokens as far as the masks allow them."""
        verdict = verify(logits_RV, tree, rows, batch, mask_RK)
        names_B1, places_BW = self._places(batch, depths(tree, self._steps))
        chosen_BW = self._ahead_IC[names_B1, places_BW]
        if mask_RK is not None:
            chosen_BW = torch.where(allowed(mask_RK, chosen_BW, rows), chosen_BW, -1)
        nodes_BD, accepted_B = path(tree, chosen_BW, self._steps)
        chosen_BD = chosen_BW.gather(1, nodes_BD)
        has_last_B = chosen_BD.gather(1, accepted_B.unsqueeze(1)).squeeze(1) >= 0
        counts_B = accepted_B + has_last_B.to(torch.int64)
        self._count(batch, names_B1.squeeze(1), accepted_B, has_last_B)
        size = nodes_BD.shape[1]
        verdict.tokens_BW[:, :size].copy_(chosen_BD.clamp(min=0))
        verdict.nodes_BW[:, :size].copy_(nodes_BD)
        real_B = verdict.counts_B
        real_B.copy_(torch.where(real_B > 0, torch.where(counts_B > 0, counts_B, -1), real_B))
        return verdict

    def _places(self, batch: Batch, depths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the instance of each sequence [B, 1], and the index of the token after each node
        [B, W].

        depths: of the nodes, [W] or [B, W].
        """
        names_B1 = batch.table.tokens_AC[batch.seats_B, 0].unsqueeze(1)
        places_BW = batch.roots_B.unsqueeze(1) + (1 - self._prompt_tokens) + depths
        return names_B1, places_BW.clamp(0, self._ahead_IC.shape[1] - 1)

    def _count(
        self,
        batch: Batch,
        names_B: torch.Tensor,
        accepted_B: torch.Tensor,
        has_last_B: torch.Tensor,
    ) -> None:
        """Add to the counts; sequences that have already ended do not count."""
        place_B = batch.roots_B + (1 - self._prompt_tokens) + accepted_B
        is_faulty_B = ~has_last_B & (place_B <= self._ends_I[names_B])
        is_faulty_B &= batch.seats_B != self._padding_seat
        at_root_B = accepted_B == 0
        faulty_2B = torch.stack([is_faulty_B & at_root_B, is_faulty_B & ~at_root_B])
        # Not added to itself: a stage runs twice when it is captured.
        self.num_2.copy_(self._before_2 + faulty_2B.sum(dim=1))


def allowed(mask_RK: torch.Tensor, tokens_BW: torch.Tensor, rows: PackedRows) -> torch.Tensor:
    """Return whether the mask of each node allows its token, bool [B, W].

    False for nodes without a row.
    """
    num, width = tokens_BW.shape
    is_grid = mask_RK.shape[0] == num * width
    sequence_R = rows.sampling.sequence_R
    tokens_R = tokens_BW.reshape(-1) if is_grid else tokens_BW[sequence_R, rows.node_R]
    words_R = mask_RK.gather(1, (tokens_R // 32).unsqueeze(1)).squeeze(1)
    allowed_R = (words_R >> (tokens_R % 32).to(words_R.dtype)) & 1 == 1
    if is_grid:
        return allowed_R.view(num, width)
    grid_BW = torch.zeros((num, width), dtype=torch.bool, device=mask_RK.device)
    grid_BW[sequence_R, rows.node_R] = allowed_R
    return grid_BW


def request_for(
    texts: Sequence[Text], number: int, prompt_tokens: int, name: str, *, has_schema: bool
) -> Request:
    """Return a request for a text, with or without its schema.

    Its prompt is the text's index and zeros.
    """
    text = texts[number]
    return Request(
        id=name,
        prompt_token_ids=[number] + [0] * (prompt_tokens - 1),
        params=SamplingParams(temperature=0.0, max_tokens=len(text.tokens) + _SLACK),
        output=text.output if has_schema else None,
    )
