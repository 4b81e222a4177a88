"""Measure the cost of schemas: compilation, masks along instances, and masks of draft trees.

Promises: uses the same functions as a request: `schemas.prepare`, a backend, the automaton of the
engine; every token of an instance is checked against its mask, so accepted and rejected instances
are counted too. Trees of the same files are the same in every run.
Does not know: models, HTTP, how results are shown.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eyas.constraint.automaton import Automaton
from eyas.constraint.base import Backend, ConstraintFailure, Grammar, State
from eyas.constraint.filling import Filling
from eyas.constraint.vocabulary import Vocabulary
from eyas.core import GrammarError
from eyas.engine.branches import requested
from eyas.grammar import Json, OutputSpec
from eyas.schemas import prepare
from eyas.schemas.keywords import KEYWORD_TYPES
from eyas.text import Tokenizer
from eyas_bench.load import percentile

NUM_NODES = 64
_NUM_ALTERNATIVES = 3
"""The number of alternatives to each token of the instance in a tree."""
_REACH = 24
"""Alternatives are chosen from this many tokens before and after the instance's token."""
_KEYWORDS = (
    *("$ref", "oneOf", "anyOf", "allOf", "not", "if", "enum", "const", "type", "patternProperty"),
    *KEYWORD_TYPES,
)


@dataclass(frozen=True, slots=True)
class Case:
    """A schema and its tests, each (whether it is valid, value)."""

    name: str
    schema: Any
    tests: list[tuple[bool, Any]]


@dataclass(slots=True)
class Measurements:
    """The measured times in seconds, and counts.

    prepare, compile, first_mask have an entry for each schema, mask for each token, tree_walk and
    tree_fill for each tree. verdicts: counts of (is valid, was accepted).
    """

    prepare: list[float] = field(default_factory=list)
    compile: list[float] = field(default_factory=list)
    first_mask: list[float] = field(default_factory=list)
    mask: list[float] = field(default_factory=list)
    tree_walk: list[float] = field(default_factory=list)
    tree_fill: list[float] = field(default_factory=list)
    num_nodes: int = 0
    num_legal_nodes: int = 0
    num_failures: int = 0
    verdicts: Counter[tuple[bool, bool]] = field(default_factory=Counter)
    refusals: list[dict[str, str]] = field(default_factory=list)
    valid_rejected: list[dict[str, str]] = field(default_factory=list)
    invalid_accepted: list[dict[str, str]] = field(default_factory=list)


def read_cases(folder: Path, limit: int | None = None) -> list[Case]:
    """Read the files of a directory in the order of their names. ValueError: there are none."""
    cases = []
    for file in sorted(folder.glob("*.json"))[:limit]:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not {"schema", "tests"} <= content.keys():
            raise ValueError(f"{file.name}: holds no object with schema and tests")
        tests = [(bool(test["valid"]), test["data"]) for test in content["tests"]]
        cases.append(Case(file.stem, content["schema"], tests))
    if not cases:
        raise ValueError(f"{folder}: holds no .json files with schema and tests")
    return cases


def read_vocabulary(path: Path) -> tuple[Tokenizer, Vocabulary]:
    """Return the tokenizer of a model directory or of a tokenizer.json, and its vocabulary."""
    if path.is_dir():
        tokenizer = Tokenizer.from_directory(path)
    else:
        try:
            tokenizer = Tokenizer(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise ValueError(f"--tokenizer: {path} cannot be read ({error})") from None
    end = tokenizer.eos_id
    if end is None:
        if not tokenizer.control_ids:
            raise ValueError(f"--tokenizer: {path} has no token that could end a text")
        end = min(tokenizer.control_ids)  # only the end of a text depends on the choice
    size = -(-tokenizer.vocab_size // 128) * 128
    return tokenizer, Vocabulary.of(tokenizer, size, (end,))


def measure(
    backend: Backend,
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    cases: Sequence[Case],
    on_case: Callable[[str], None] = lambda name: None,
) -> Measurements:
    """Measure all cases, one after the other. on_case: called with the name of each."""
    measured = Measurements()
    for case in cases:
        on_case(case.name)
        spec = _spec(case, measured)
        grammar = None if spec is None else _compile(backend, spec, case, measured)
        if spec is None or grammar is None:
            continue
        second = backend.compile(spec)  # has its own caches
        for is_valid, value in case.tests:
            text = json.dumps(value, ensure_ascii=False)
            tokens = tokenizer.encode_text(text)
            passed = _walk(backend, vocabulary, grammar, tokens, measured if is_valid else None)
            measured.verdicts[is_valid, passed == len(tokens) + 1] += 1
            if is_valid != (passed == len(tokens) + 1):
                whose = measured.valid_rejected if is_valid else measured.invalid_accepted
                read = b"".join(vocabulary.tokens[token] for token in tokens[:passed])
                whose.append({"file": case.name, "read": read.decode("utf-8", "replace")[-80:]})
            elif is_valid:
                draw = random.Random(f"{case.name} {text}")
                _walk_with_trees(vocabulary, second, tokens, draw, measured)
    return measured


def summary(measured: Measurements) -> dict[str, Any]:
    """Return counts and percentiles for the result file; times are in milliseconds."""
    verdicts = measured.verdicts
    return {
        "schemas": len(measured.prepare),
        "refused": len(measured.refusals),
        "refused_by_keyword": dict(Counter(r["keyword"] for r in measured.refusals).most_common()),
        "valid": verdicts[True, True] + verdicts[True, False],
        "valid_rejected": verdicts[True, False],
        "invalid": verdicts[False, True] + verdicts[False, False],
        "invalid_accepted": verdicts[False, True],
        "limits_hit": measured.num_failures,
        "milliseconds": {
            "prepare": _percentiles(measured.prepare),
            "compile": _percentiles(measured.compile),
            "first_mask": _percentiles(measured.first_mask),
            "mask": _percentiles(measured.mask),
            "tree_walk": _percentiles(measured.tree_walk),
            "tree_fill": _percentiles(measured.tree_fill),
            "tree": _percentiles(
                [a + b for a, b in zip(measured.tree_walk, measured.tree_fill, strict=True)]
            ),
        },
        "tree_nodes": NUM_NODES,
        "legal_nodes": round(measured.num_legal_nodes / max(1, measured.num_nodes), 3),
        "refusals": measured.refusals,
        "rejected": measured.valid_rejected,
        "accepted": measured.invalid_accepted,
    }


def _spec(case: Case, measured: Measurements) -> OutputSpec | None:
    begin = time.perf_counter()
    try:
        return OutputSpec(root=Json(prepare(case.schema, param="schema")), param="schema")
    except GrammarError as error:
        measured.refusals.append(_refusal(case, error))
        return None
    finally:
        measured.prepare.append(time.perf_counter() - begin)


def _compile(
    backend: Backend, spec: OutputSpec, case: Case, measured: Measurements
) -> Grammar | None:
    begin = time.perf_counter()
    try:
        grammar = backend.compile(spec)
    except GrammarError as error:
        measured.refusals.append(_refusal(case, error))
        return None
    whole = time.perf_counter() - begin
    measured.compile.append(getattr(grammar, "compile_seconds", whole))
    if hasattr(grammar, "first_mask_seconds"):
        measured.first_mask.append(grammar.first_mask_seconds)
    return grammar


def _refusal(case: Case, error: GrammarError) -> dict[str, str]:
    message = error.message[:300]
    named = {"keyword": _keyword(error.message), "message": message}
    return {"file": case.name, "fault": error.fault, **named}


def _keyword(message: str) -> str:
    """Return the keyword that a refusal is about: the last in the schema path, or one in the text."""
    place = next((word for word in message.split() if word.startswith("#/")), "")
    for step in (*reversed(place.rstrip(":").split("/")), *message.replace(":", " ").split()):
        if step in _KEYWORDS:
            return step
    return "$ref" if "circular" in message else "other"


def _walk(
    backend: Backend,
    vocabulary: Vocabulary,
    grammar: Grammar,
    tokens: Sequence[int],
    measured: Measurements | None,
) -> int:
    """Return the number of tokens that the masks accept, including the end token."""
    state: State | None = grammar.start()
    mask_NK = np.zeros((1, vocabulary.num_mask_words), dtype=np.int32)
    for position, token in enumerate((*tokens, vocabulary.eos_token_ids[0])):
        assert state is not None
        mask_NK[:] = 0
        begin = time.perf_counter()
        has_failed = bool(backend.fill([state], mask_NK))
        if measured is not None:
            measured.mask.append(time.perf_counter() - begin)
            measured.num_failures += has_failed
        if not mask_NK[0, token // 32] >> token % 32 & 1:
            return position
        state = state.after(token)
    return len(tokens) + 1


def _walk_with_trees(
    vocabulary: Vocabulary,
    grammar: Grammar,
    tokens: Sequence[int],
    draw: random.Random,
    measured: Measurements,
) -> None:
    """Read the tokens again with a draft tree at every step, as an engine does."""
    automaton = Automaton(grammar)
    for position, token in enumerate(tokens):
        tokens_W, parents_W = _tree(tokens, position, draw)
        begin = time.perf_counter()
        legal = automaton.legal(tokens_W, parents_W)
        walked = time.perf_counter()
        branches = requested(automaton.root, tokens_W, parents_W, legal, 0)
        num_rows = sum(len(branch.nodes) for branch in branches)
        mask_RK = np.zeros((num_rows, vocabulary.num_mask_words), dtype=np.int32)
        first, *later = [branch.request for branch in branches]
        filling = Filling([first], [[request] for request in later], mask_RK, math.inf)
        filling.wait()
        if len(tokens_W) == NUM_NODES:
            measured.tree_walk.append(walked - begin)
            measured.tree_fill.append(time.perf_counter() - walked)
            measured.num_nodes += len(legal)
            measured.num_legal_nodes += sum(legal)
        measured.num_failures += sum(legal) - filling.num_masks
        try:
            automaton.advance([token])
        except ConstraintFailure:
            measured.num_failures += 1
            return


def _tree(tokens: Sequence[int], position: int, draw: random.Random) -> tuple[list[int], list[int]]:
    """Return the tokens and parents of a tree: the next tokens as a chain, with alternatives to
    each.

    The first alternative is followed by the next token. The tree has 64 nodes where the text is
    long enough.
    """
    nodes, parents = [0], [-1]
    above = 0
    for place in range(position, len(tokens)):
        around = tokens[max(0, place - _REACH) : place + _REACH]
        seen = {tokens[place]}
        above_next = len(nodes)
        nodes.append(tokens[place])
        parents.append(above)
        for other in _drawn(around, draw):
            if len(seen) > _NUM_ALTERNATIVES:
                break
            if other not in seen:
                seen.add(other)
                nodes.append(other)
                parents.append(above)
        above = above_next
        if len(nodes) >= NUM_NODES:
            break
    return nodes[:NUM_NODES], parents[:NUM_NODES]


def _drawn(around: Sequence[int], draw: random.Random) -> Iterator[int]:
    for _ in range(4 * _NUM_ALTERNATIVES):
        yield draw.choice(around)


def _percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {
        name: round((percentile(seconds, share) or 0.0) * 1e3, 4) for name, share in shares.items()
    }
