"""A step under way: what was launched, and how to read its results once the device is done.

Promises: `read` waits for the device once, and is where results are waited for.
Does not know: what the results mean to a sequence.

Legend: B rooted sequences, W nodes, N top alternatives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from eyas.core import DraftTree, TokenLogprob, Verdict
from eyas.draft import Drafter
from eyas.engine.masks import TreeMasks
from eyas.engine.scheduler import StepPlan
from eyas.runner.batch import Batch, PlannedBatch
from eyas.runner.rows import PackedRows
from eyas.runner.runner import Output
from eyas.transfer import HostCopy, Outbox

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class PromptRows:
    """Log-probabilities of one prompt chunk: entry i is that of position start + 1 + i."""

    token_ids: torch.Tensor
    own: torch.Tensor
    top_ids: torch.Tensor
    top: torch.Tensor


@dataclass(slots=True, eq=False)
class Outcome:
    """What a step has made of one rooted sequence, number `b` of its batch.

    count, tokens, nodes: its verdict, up to the count. size, parents, sources: of its tree; parents are
    None for chains, sources where one drafter proposed everything. ended: what had ended it before;
    failure: what ends it after these tokens, since its automaton stays behind.
    """

    b: int
    count: int
    tokens: list[int]
    nodes: list[int]
    size: int
    parents: list[int] | None
    sources: list[int] | None
    logprobs: list[TokenLogprob] | None
    ended: str | None = None
    failure: str | None = None

    @property
    def accepted_sources(self) -> list[int]:
        """The sources of the accepted nodes, from the root down."""
        path = self.nodes[1:]
        return [0] * len(path) if self.sources is None else [self.sources[w] for w in path]


@dataclass(slots=True, eq=False)
class Landed:
    """A flight's results on the host. outcomes: of the rooted sequences, in order; none where it has
    failed. prompt_logprobs: by index of the span."""

    outcomes: list[Outcome] = field(default_factory=list)
    prompt_logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Forward:
    """A draft and what the model makes of it, which wait for a verdict. masks: None where nobody is
    constrained."""

    batch: Batch
    tree: DraftTree
    rows: PackedRows
    output: Output
    masks: TreeMasks | None


@dataclass(slots=True, eq=False)
class Flight:
    """plan: whose step it is. prompt_rows: by index of the span. error: the step itself failed.

    started: when it was prepared (seconds of a monotonic clock). is_constrained: some sequence has a
    grammar. reads_automata: before its forward, so all steps before it must have landed. drafter: whose
    tree it is. drafted: its tree, as it was proposed; tree: what is left of it. masks: what automata
    said of it; None where nobody is constrained. num_failed: drafters with which it failed. planned:
    its batch, for the first of them; forward: until it has its verdict. has_departed: its results are
    on their way to the host, or it has failed. landed: once read.
    """

    plan: StepPlan
    started: float = 0.0
    is_constrained: bool = False
    reads_automata: bool = False
    drafter: Drafter | None = None
    drafted: DraftTree | None = None
    masks: TreeMasks | None = None
    landed: Landed | None = None
    tree: DraftTree | None = None
    verdict: Verdict | None = None
    prompt_rows: dict[int, PromptRows] = field(default_factory=dict)
    error: str | None = None
    num_failed: int = 0
    planned: PlannedBatch | None = None
    forward: Forward | None = None
    has_departed: bool = False
    _results: HostCopy | None = None

    @property
    def waits_for_masks(self) -> bool:
        """Has its forward gone out, and are its masks still to be begun?"""
        masks = None if self.forward is None else self.forward.masks
        return masks is not None and not masks.has_begun

    def depart(self, outbox: Outbox) -> None:
        """Start copying the results to the host, behind the work that makes them."""
        self.has_departed, self.forward = True, None
        if self.verdict is None or self.tree is None:
            return
        tensors = {"sizes": self.tree.sizes_B, "report": self.verdict.report_BX}
        if not self.tree.is_chain:
            tensors["parents"] = self.tree.parents_BW
        if self.tree.source_BW is not None:
            tensors["sources"] = self.tree.source_BW
        if self.verdict.chosen_logprobs_BW is not None:
            assert self.verdict.top_ids_BWN is not None
            assert self.verdict.top_logprobs_BWN is not None
            tensors["own"] = self.verdict.chosen_logprobs_BW
            tensors["top_ids"] = self.verdict.top_ids_BWN
            tensors["top"] = self.verdict.top_logprobs_BWN
        self._results = outbox.send(tensors)

    def note_masks(self) -> None:
        """What its masks have shown of its draft, once nothing waits for this thread."""
        if self.error is None:
            self._ask_masks(TreeMasks.note)

    def _ask_masks(self, what: Callable[[TreeMasks], None]) -> None:
        if self.masks is None:
            return
        try:
            what(self.masks)
        except Exception:
            log.exception("what a step's masks have shown is lost")
            self.masks = None

    def read(self) -> Landed:
        """Wait for the device and turn the results into plain numbers."""
        self._ask_masks(TreeMasks.learn)  # while the device is at work
        prompt = {i: _prompt_logprobs(rows) for i, rows in self.prompt_rows.items()}
        if self._results is None or self.tree is None:
            return Landed(prompt_logprobs=prompt)
        num = len(self.plan.rooted)  # what comes after them filled up the batch
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
        return Outcome(b, count, tokens, nodes, size, parents, sources, logprobs)


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
