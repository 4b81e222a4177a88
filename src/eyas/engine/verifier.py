"""The verdict of a step: each node row chooses a token, then each tree is walked along the choices.

The walk starts at the root. At each node it goes to the child that carries the chosen token, and stops
if there is none. The chosen tokens on the way are the tokens of the verdict.

Promises: a token is a function of its prefix, parameters, seed and position. The tree decides only how
many tokens one step yields. Log-probabilities are computed from raw logits, at the row that chose. On a
device with kernels the host does not wait for the device if the parameters are capturable.
The verifier does not know what a drafter is.

Legend: R rows, V vocabulary, B sequences, W nodes, E top alternatives, K mask words.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from eyas.draft_tree import DraftTree, Verdict
from eyas.ops.walk import walk
from eyas.runner.batch import Batch
from eyas.runner.rows import PackedRows
from eyas.sampling import sample

ALIGNED = 4
"""Float32 numbers that a device reads with one instruction."""


Verify = Callable[[torch.Tensor, DraftTree, PackedRows, Batch, torch.Tensor | None], Verdict]
"""(logits [R, V] of the node rows, trees, rows, batch, bitmask [R, K] or None) -> verdicts of a
step."""


def verify(
    logits_RV: torch.Tensor,
    tree: DraftTree,
    rows: PackedRows,
    batch: Batch,
    mask_RK: torch.Tensor | None,
) -> Verdict:
    """Return the verdicts of a step.

    logits_RV: float32, of the node rows in the order of `rows`. mask_RK: int32 bitmask of the tokens
    that are legal; None if no row is constrained.
    """
    params = batch.params
    chosen_R = sample(logits_RV, rows.sampling, params, mask_RK)
    chosen_BW = _to_grid(chosen_R, tree, rows, fill=-1)
    verdict = Verdict(walk(chosen_BW, tree))
    if params.num_logprobs is not None:
        _attach_logprobs(verdict, logits_RV, chosen_R, tree, rows, params.num_logprobs)
    return verdict


def raw_logprobs(
    logits_RV: torch.Tensor, tokens_R: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the log-probabilities [R] of the given tokens, and ids [R, E] and log-probabilities [R, E]
    of the most likely ones, the lower id first among equal ones. Entries below 0 of tokens_R are read
    as 0."""
    vocab_size = logits_RV.shape[1]
    if vocab_size % ALIGNED:
        # A device sums a row in an order that depends on its alignment: pad, so that all rows have one.
        logits_RV = F.pad(logits_RV, (0, -vocab_size % ALIGNED), value=float("-inf"))
    logprobs_RV = logits_RV.log_softmax(dim=1)[:, :vocab_size]
    own_R = logprobs_RV.gather(1, tokens_R.clamp(min=0).unsqueeze(1)).squeeze(1)
    if num_top == 0:
        nothing = logprobs_RV[:, :0]
        return own_R, nothing.long(), nothing
    return own_R, *_likeliest(logprobs_RV, num_top)


def _likeliest(x_RV: torch.Tensor, num_top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids [R, E] and values [R, E] of the largest entries, the lower id first among equal ones,
    without sorting the other entries."""
    last_id = x_RV.shape[1] - 1
    least_R1 = x_RV.topk(num_top, dim=1).values[:, -1:]
    above_RV, tied_RV = x_RV > least_R1, x_RV == least_R1
    room_R1 = num_top - above_RV.sum(dim=1, keepdim=True)
    picked_RV = above_RV | (tied_RV & (tied_RV.cumsum(dim=1, dtype=torch.int32) <= room_R1))
    backwards_V = torch.arange(last_id, -1, -1, dtype=torch.int32, device=x_RV.device)
    rank_RE = torch.where(picked_RV, backwards_V, -1).topk(num_top, dim=1).values
    ids_RE = last_id - rank_RE.clamp(min=0).long()
    ordered = x_RV.gather(1, ids_RE).sort(dim=1, descending=True, stable=True)
    return ids_RE.gather(1, ordered.indices), ordered.values


def _to_grid(
    values_R: torch.Tensor, tree: DraftTree, rows: PackedRows, *, fill: float
) -> torch.Tensor:
    """Scatter values [R, ...] of node rows to [B, W, ...]; padding nodes get `fill`."""
    num, width = tree.tokens_BW.shape
    shape = (num, width, *values_R.shape[1:])
    if values_R.shape[0] == num * width:
        return values_R.view(shape)
    grid = values_R.new_full(shape, fill)
    grid[rows.sampling.sequence_R, rows.node_R] = values_R
    return grid


def _attach_logprobs(
    verdict: Verdict,
    logits_RV: torch.Tensor,
    chosen_R: torch.Tensor,
    tree: DraftTree,
    rows: PackedRows,
    num_top: int,
) -> None:
    """Set the log-probabilities of a verdict, of the rows that its tokens were chosen at."""
    own_R, top_ids_RE, top_RE = raw_logprobs(logits_RV, chosen_R, num_top)
    nodes_BW = verdict.nodes_BW
    picked_BWE = nodes_BW.unsqueeze(-1).expand(-1, -1, num_top)
    verdict.chosen_logprobs_BW = _to_grid(own_R, tree, rows, fill=0.0).gather(1, nodes_BW)
    verdict.top_ids_BWE = _to_grid(top_ids_RE, tree, rows, fill=0).gather(1, picked_BWE)
    verdict.top_logprobs_BWE = _to_grid(top_RE, tree, rows, fill=0.0).gather(1, picked_BWE)
