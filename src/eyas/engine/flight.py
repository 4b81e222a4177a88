"""A flight: a step that was launched and has not landed, and its results.

Promises: `Flight.read` is the only place that waits for a step's results, and waits once.
Does not know: how results are applied to a sequence.

Legend: B rooted sequences, W nodes, E top alternatives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from eyas.core import TokenLogprob
from eyas.draft import Drafter
from eyas.draft_tree import DraftTree, Verdict
from eyas.engine.masks import TreeMasks
from eyas.engine.scheduler import StepPlan
from eyas.runner.batch import Batch, PlannedBatch
from eyas.runner.rows import PackedRows
from eyas.runner.runner import Output
from eyas.transfer import HostCopy, Outbox

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class PromptRows:
    """Log-probabilities of one prompt chunk, on the device: entry i is that of position start + 1 + i.

    token_ids: the prompt's tokens; own: their log-probabilities; top_ids, top: the most likely tokens.
    """

    token_ids: torch.Tensor
    own: torch.Tensor
    top_ids: torch.Tensor
    top: torch.Tensor


@dataclass(slots=True, eq=False)
class ProposedTree:
    """The nodes of a tree as its drafter proposed it, on the host, for requests that ask for it.

    sources, scores: None if the drafter gives none.
    """

    tokens: list[int]
    parents: list[int]
    sources: list[int] | None
    scores: list[float] | None


@dataclass(slots=True, eq=False)
class Outcome:
    """The result of a step for the rooted sequence with index `b` in the batch, on the host.

    count, tokens, nodes: its verdict (`draft_tree.Verdict`), up to the count. size, parents, sources:
    of its tree; parents is None for a chain, sources is None if one drafter proposed all nodes.
    proposed: the tree before grammars refused nodes of it, if the request asks for trees. ended: the
    error that ended the sequence before this step landed. failure: the error that ends it after these
    tokens, because its automaton could not move over them.
    """

    b: int
    count: int
    tokens: list[int]
    nodes: list[int]
    size: int
    parents: list[int] | None
    sources: list[int] | None
    logprobs: list[TokenLogprob] | None
    proposed: ProposedTree | None = None
    ended: str | None = None
    failure: str | None = None

    @property
    def accepted_sources(self) -> list[int]:
        """The sources (drafters) of the accepted nodes, from the root down."""
        path = self.nodes[1:]
        return [0] * len(path) if self.sources is None else [self.sources[w] for w in path]


@dataclass(slots=True, eq=False)
class Landed:
    """The results of a flight on the host.

    outcomes: of the rooted sequences, in order; empty if the flight has failed. prompt_logprobs: by
    index of the span.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    prompt_logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Forward:
    """The rows and the model output of a step whose verdict is still to be computed."""

    batch: Batch
    rows: PackedRows
    output: Output


@dataclass(slots=True, eq=False)
class Flight:
    """A launched step. The fields are in the order in which they are set.

    started: when it was prepared, in seconds of `time.perf_counter`. num_captured: graphs that had been
    captured by then.
    is_constrained: whether a sequence of the step has a grammar.
    reads_automata: whether drafting or pruning reads automata before the forward pass, so that all
    earlier steps must have landed by then.
    planned: the batch for the first drafter that is tried; None if it has to be planned again.
    proposed: the tree as the drafter proposed it.
    tree: the verified tree, which may lack proposed nodes that a grammar refused.
    masks: None if no sequence has a grammar.
    forward: set from the forward pass until the verdict.
    drafter: the drafter that proposed the tree.
    prompt_rows: by index of the span.
    error: why the whole step failed.
    is_sent: the copy of the results to the host has been started, or the step has failed.
    landed: the results, once `read`.
    """

    plan: StepPlan
    started: float = 0.0
    num_captured: int = 0
    is_constrained: bool = False
    reads_automata: bool = False
    planned: PlannedBatch | None = None
    proposed: DraftTree | None = None
    tree: DraftTree | None = None
    masks: TreeMasks | None = None
    forward: Forward | None = None
    drafter: Drafter | None = None
    prompt_rows: dict[int, PromptRows] = field(default_factory=dict)
    verdict: Verdict | None = None
    error: str | None = None
    is_sent: bool = False
    landed: Landed | None = None
    _results: HostCopy | None = None

    @property
    def waits_for_masks(self) -> bool:
        """Whether the forward pass was launched and the filling of its masks was not started."""
        if self.forward is None or self.masks is None:
            return False
        return not self.masks.has_begun

    def send_results(self, outbox: Outbox) -> None:
        """Start copying the results to the host, ordered after the work that computes them."""
        self.is_sent, self.forward = True, None
        if self.verdict is None or self.tree is None:
            return
        tensors = {"sizes": self.tree.sizes_B, "report": self.verdict.report_BX}
        if not self.tree.is_chain:
            tensors["parents"] = self.tree.parents_BW
        if self.tree.source_BW is not None:
            tensors["sources"] = self.tree.source_BW
        if self.verdict.chosen_logprobs_BW is not None:
            assert self.verdict.top_ids_BWE is not None
            assert self.verdict.top_logprobs_BWE is not None
            tensors["own"] = self.verdict.chosen_logprobs_BW
            tensors["top_ids"] = self.verdict.top_ids_BWE
            tensors["top"] = self.verdict.top_logprobs_BWE
        if any(sequence.request.with_draft_trees for sequence in self.plan.rooted):
            tensors |= _proposed_tensors(self.proposed)
        self._results = outbox.send(tensors)

    def note_masks(self) -> None:
        """Collect the refused nodes and statistics of the masks, off the critical path of the step."""
        if self.error is None:
            self._call_masks(TreeMasks.note)

    def _call_masks(self, method: Callable[[TreeMasks], None]) -> None:
        """Call a method of the masks, which are dropped if it fails: no output depends on it."""
        if self.masks is None:
            return
        try:
            method(self.masks)
        except Exception:
            log.exception("what the masks of a step teach for the next ones is lost")
            self.masks = None

    def read(self) -> Landed:
        """Wait for the device and return the results as plain numbers."""
        self._call_masks(TreeMasks.learn)  # while the device is still working
        prompt = {i: _prompt_logprobs(rows) for i, rows in self.prompt_rows.items()}
        if self._results is None or self.tree is None:
            return Landed(prompt_logprobs=prompt)
        num = len(self.plan.rooted)  # the rows after them are padding
        host = {name: tensor[:num].tolist() for name, tensor in self._results.read().items()}
        return Landed([self._outcome(b, host) for b in range(num)], prompt)

    def _outcome(self, b: int, host: Mapping[str, list[Any]]) -> Outcome:
        assert self.tree is not None
        *report, count = host["report"][b]
        width, num = self.tree.width, max(0, count)
        tokens, nodes = report[:num], report[width : width + num]
        logprobs = None
        if "own" in host:
            logprobs = _logprobs(
                tokens, *(host[name][b][:num] for name in ("own", "top_ids", "top"))
            )
        parents, sources = (
            host[name][b] if name in host else None for name in ("parents", "sources")
        )
        size = host["sizes"][b]
        proposed = None
        if self.plan.rooted[b].request.with_draft_trees and "proposed_tokens" in host:
            proposed = _proposed_tree(host, b)
        return Outcome(b, count, tokens, nodes, size, parents, sources, logprobs, proposed)


def _proposed_tensors(tree: DraftTree | None) -> dict[str, torch.Tensor]:
    """Return the tensors of a proposed tree by their names in a flight's results."""
    if tree is None:
        return {}
    tensors = {
        "tokens": tree.tokens_BW,
        "parents": tree.parents_BW,
        "sizes": tree.sizes_B,
        "sources": tree.source_BW,
        "scores": tree.score_BW,
    }
    return {f"proposed_{name}": each for name, each in tensors.items() if each is not None}


def _proposed_tree(host: Mapping[str, list[Any]], b: int) -> ProposedTree:
    size = host["proposed_sizes"][b]
    return ProposedTree(
        host["proposed_tokens"][b][:size],
        host["proposed_parents"][b][:size],
        host["proposed_sources"][b][:size] if "proposed_sources" in host else None,
        host["proposed_scores"][b][:size] if "proposed_scores" in host else None,
    )


def _prompt_logprobs(rows: PromptRows) -> list[TokenLogprob]:
    columns = (rows.token_ids, rows.own, rows.top_ids, rows.top)
    return _logprobs(*(column.tolist() for column in columns))


def _logprobs(
    tokens: list[int], own: list[float], top_ids: list[list[int]], top: list[list[float]]
) -> list[TokenLogprob]:
    return [
        TokenLogprob(token, value, list(zip(ids, values, strict=True)))
        for token, value, ids, values in zip(tokens, own, top_ids, top, strict=True)
    ]
