"""A step under way: what was launched, and how to read its results once the device is done.

Promises: `read` is the only place that waits for the device; it waits once.
Does not know: what the results mean to a sequence.

Legend: B rooted sequences, W nodes, N top alternatives.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from eyas.core import DraftTree, TokenLogprob, Verdict
from eyas.draft import Drafter
from eyas.engine.prune import Refusals
from eyas.engine.scheduler import Plan


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

    parents: None for chains; sources: None where one drafter proposed everything.
    """

    counts: list[int]
    tokens: list[list[int]]
    nodes: list[list[int]]
    sizes: list[int]
    parents: list[list[int]] | None
    sources: list[list[int]] | None
    logprobs: list[list[TokenLogprob]] | None
    prompt_logprobs: dict[int, list[TokenLogprob]]

    def sources_of(self, b: int) -> list[int]:
        """The sources of the accepted nodes of sequence `b`, from the root down."""
        path = self.nodes[b][1 : max(1, self.counts[b])]
        return [0] * len(path) if self.sources is None else [self.sources[b][w] for w in path]


@dataclass(slots=True, eq=False)
class Flight:
    """plan: whose step it is. prompt_rows: by index of the span. error: the launch itself failed.

    drafter: whose tree it is. started: when it was launched (seconds of a monotonic clock).
    drafted: its tree, as it was proposed; tree: what is left of it. refusals: what the constraints left
    out; None where there are none. landed: once read.
    """

    plan: Plan
    started: float = 0.0
    drafter: Drafter | None = None
    drafted: DraftTree | None = None
    refusals: Refusals | None = None
    landed: Landed | None = None
    tree: DraftTree | None = None
    verdict: Verdict | None = None
    prompt_rows: dict[int, PromptRows] = field(default_factory=dict)
    error: str | None = None
    _event: torch.cuda.Event | None = None
    _host: dict[str, torch.Tensor] = field(default_factory=dict)

    def depart(self) -> None:
        """Start copying the results to the host, behind the work that makes them."""
        if self.verdict is None or self.tree is None:
            return
        tensors = {
            "counts": self.verdict.counts_B,
            "tokens": self.verdict.tokens_BW,
            "nodes": self.verdict.nodes_BW,
            "sizes": self.tree.sizes_B,
        }
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
        if self.verdict.counts_B.device.type == "cpu":
            self._host = tensors
            return
        for name, tensor in tensors.items():
            pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host[name] = pinned.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def read(self) -> Landed:
        """Wait for the device and turn the results into plain numbers."""
        if self._event is not None:
            self._event.synchronize()
        prompt = {i: _prompt_logprobs(rows) for i, rows in self.prompt_rows.items()}
        if not self._host:
            return Landed([], [], [], [], None, None, None, prompt)
        counts = self._host["counts"].tolist()
        tokens = self._host["tokens"].tolist()
        logprobs = None
        if "own" in self._host:
            own, ids, top = (self._host[k].tolist() for k in ("own", "top_ids", "top"))
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
            self._host["nodes"].tolist(),
            self._host["sizes"].tolist(),
            self._host["parents"].tolist() if "parents" in self._host else None,
            self._host["sources"].tolist() if "sources" in self._host else None,
            logprobs,
            prompt,
        )


def _prompt_logprobs(rows: PromptRows) -> list[TokenLogprob]:
    columns = (rows.token_ids, rows.own, rows.top_ids, rows.top)
    return [
        TokenLogprob(token, own, list(zip(ids, top, strict=True)))
        for token, own, ids, top in zip(*(c.tolist() for c in columns), strict=True)
    ]
