"""A step under way: what was launched, and how to read its results once the device is done.

Promises: `read` waits for the device once, and is where results are waited for.
Does not know: what the results mean to a sequence.

Legend: B rooted sequences, W nodes, N top alternatives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from eyas.cache.transfer import HostCopy, Outbox
from eyas.core import DraftTree, TokenLogprob, Verdict
from eyas.draft import Drafter
from eyas.engine.masks import TreeMasks
from eyas.engine.scheduler import Plan
from eyas.runner.batch import Batch, PlannedBatch
from eyas.runner.rows import PackedRows
from eyas.runner.runner import Output

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class PromptRows:
    """Log-probabilities of one prompt chunk: entry i is that of position start + 1 + i."""

    token_ids: torch.Tensor
    own: torch.Tensor
    top_ids: torch.Tensor
    top: torch.Tensor


@dataclass(slots=True, eq=False)
class Landed:
    """A flight's results on the host, one entry a rooted sequence unless it says otherwise.

    parents: None for chains; sources: None where one drafter proposed everything. ended: what has ended
    a sequence before; sat_out: for whom nothing has changed; failures: what ends a sequence after this,
    since its automaton stays behind.
    """

    counts: list[int]
    tokens: list[list[int]]
    nodes: list[list[int]]
    sizes: list[int]
    parents: list[list[int]] | None
    sources: list[list[int]] | None
    logprobs: list[list[TokenLogprob]] | None
    prompt_logprobs: dict[int, list[TokenLogprob]]
    ended: dict[int, str] = field(default_factory=dict)
    sat_out: set[int] = field(default_factory=set)
    failures: dict[int, str] = field(default_factory=dict)

    def sources_of(self, b: int) -> list[int]:
        """The sources of the accepted nodes of sequence `b`, from the root down."""
        path = self.nodes[b][1 : max(1, self.counts[b])]
        return [0] * len(path) if self.sources is None else [self.sources[b][w] for w in path]


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
    """plan: whose step it is. prompt_rows: by index of the span. error: the launch itself failed.

    drafter: whose tree it is. started: when it was boarded (seconds of a monotonic clock).
    drafted: its tree, as it was proposed; tree: what is left of it. masks: what the automata said of
    it; None where nobody is constrained. sitting_out: for whom it changes nothing. num_failed: drafters
    with which it failed. planned: until it starts; forward: until it has its verdict. has_departed: its
    results are on their way to the host. landed: once read.
    """

    plan: Plan
    started: float = 0.0
    drafter: Drafter | None = None
    drafted: DraftTree | None = None
    masks: TreeMasks | None = None
    sitting_out: set[int] = field(default_factory=set)
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

    def depart(self, outbox: Outbox) -> None:
        """Start copying the results to the host, behind the work that makes them."""
        self.has_departed, self.forward = True, None
        if self.verdict is None or self.tree is None:
            return
        tensors = {"sizes": self.tree.sizes_B}
        if self.verdict.report_BX is not None:
            tensors["report"] = self.verdict.report_BX
        else:
            tensors["tokens"] = self.verdict.tokens_BW
            tensors["nodes"] = self.verdict.nodes_BW
            tensors["counts"] = self.verdict.counts_B
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
            return Landed([], [], [], [], None, None, None, prompt)
        num = len(self.plan.rooted)  # what comes after them filled up the batch
        host = {name: tensor[:num].tolist() for name, tensor in self._results.read().items()}
        if "report" in host:
            width = self.tree.width
            tokens = [row[:width] for row in host["report"]]
            nodes = [row[width : 2 * width] for row in host["report"]]
            counts = [row[2 * width] for row in host["report"]]
        else:
            tokens, nodes, counts = host["tokens"], host["nodes"], host["counts"]
        logprobs = None
        if "own" in host:
            own, ids, top = host["own"], host["top_ids"], host["top"]
            logprobs = [
                [
                    TokenLogprob(token, own[b][j], list(zip(ids[b][j], top[b][j], strict=True)))
                    for j, token in enumerate(tokens[b][: max(0, counts[b])])
                ]
                for b in range(len(counts))
            ]
        return Landed(
            counts,
            tokens,
            nodes,
            host["sizes"],
            host.get("parents"),
            host.get("sources"),
            logprobs,
            prompt,
        )


def _prompt_logprobs(rows: PromptRows) -> list[TokenLogprob]:
    columns = (rows.token_ids, rows.own, rows.top_ids, rows.top)
    return [
        TokenLogprob(token, own, list(zip(ids, top, strict=True)))
        for token, own, ids, top in zip(*(c.tolist() for c in columns), strict=True)
    ]
