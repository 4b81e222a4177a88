"""Choose the experts of each row from the router's logits, and the weight of each chosen expert.

Promises: a row's choice depends on its own logits alone, with the same bits in any call. Of experts
with equal scores the one with the lowest index is chosen. Experts that all rows share come first.
Does not know: what the experts compute.

Legend: T rows, E experts to choose from, K experts of a row, shared ones included, J groups of experts,
Z parts of a sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from eyas.ops.add_norm import summed
from eyas.ops.dispatch import Operation
from eyas.ops.row_functions import sigmoid, softplus, sqrt

Scoring = Literal["softmax", "sigmoid", "sqrtsoftplus"]


@dataclass(frozen=True, slots=True)
class Routing:
    """How a router chooses.

    num_chosen: experts a row. scoring: what turns logits into scores. normalizes: whether the scores of
    the chosen experts are divided by their sum. scale: multiplies the weights. num_groups,
    num_chosen_groups: experts are chosen from the best groups of consecutive experts alone.
    group_size_scored: a group's score is the sum of that many of its best experts' scores
    (DeepSeek-V2, 2405.04434: 1; DeepSeek-V3, 2412.19437: 2).
    num_shared: experts that every row has besides, whose numbers follow those of the others.
    gates_shared: their weight is the sigmoid of one more logit; else it is 1.
    """

    num_chosen: int
    scoring: Scoring = "softmax"
    normalizes: bool = True
    scale: float = 1.0
    num_groups: int = 1
    num_chosen_groups: int = 1
    group_size_scored: int = 1
    num_shared: int = 0
    gates_shared: bool = False


@Operation
def route(
    logits: torch.Tensor,
    bias_E: torch.Tensor | None,
    correction_E: torch.Tensor | None,
    routing: Routing,
    fixed_TK: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's experts int32 [T, K], shared ones first, then the chosen ones, best first; and
    their weights, float32 [T, K].

    logits: float32 [T, E], or parts [Z, T, E] of their sum; with `gates_shared` the gate's follows
    them. bias_E: float32, added to the logits. correction_E: float32, added to the scores for the
    choice, not for the weights. fixed_TK: what each row chooses, where scores only weigh it.
    """
    logits_TE, gate_T1 = summed(logits), None
    if routing.gates_shared:
        logits_TE, gate_T1 = logits_TE.tensor_split([-1], 1)
    if bias_E is not None:
        logits_TE = logits_TE + bias_E
    scores_TE = _scores(logits_TE, routing.scoring)
    choice_TE = scores_TE if correction_E is None else scores_TE + correction_E
    if routing.num_groups > 1:
        choice_TE = choice_TE.masked_fill(~_in_chosen_groups(choice_TE, routing), -torch.inf)
    experts_TK = _best(choice_TE, routing.num_chosen) if fixed_TK is None else fixed_TK.long()
    weights_TK = scores_TE.gather(1, experts_TK)
    if routing.normalizes:
        total_T1 = weights_TK[:, :1]
        for rank in range(1, routing.num_chosen):
            total_T1 = total_T1 + weights_TK[:, rank : rank + 1]
        weights_TK = weights_TK / (total_T1 + 1e-20)
    weights_TK = weights_TK * routing.scale
    if routing.num_shared:
        shared_TK = torch.ones_like(weights_TK[:, :1]) if gate_T1 is None else sigmoid(gate_T1)
        weights_TK = torch.cat([shared_TK.expand(-1, routing.num_shared), weights_TK], 1)
        experts_TK = _after_shared(experts_TK, logits_TE.shape[1], routing.num_shared)
    return experts_TK.int(), weights_TK


@route.kernel
def _by_kernel(
    logits: torch.Tensor,
    bias_E: torch.Tensor | None,
    correction_E: torch.Tensor | None,
    routing: Routing,
    fixed_TK: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    from eyas.kernels.route import route as launch

    return launch(
        logits,
        bias_E,
        correction_E,
        fixed_TK,
        num_chosen=routing.num_chosen,
        scoring=routing.scoring,
        normalizes=routing.normalizes,
        scale=routing.scale,
        num_groups=routing.num_groups,
        num_chosen_groups=routing.num_chosen_groups,
        group_size_scored=routing.group_size_scored,
        num_shared=routing.num_shared,
        gates_shared=routing.gates_shared,
        pdl=logits.is_cuda,
    )


def _scores(logits_TE: torch.Tensor, scoring: Scoring) -> torch.Tensor:
    if scoring == "softmax":
        return logits_TE.softmax(1)
    return sigmoid(logits_TE) if scoring == "sigmoid" else sqrt(softplus(logits_TE))


def _best(scores_TE: torch.Tensor, count: int) -> torch.Tensor:
    """Return the indices of the highest scores, best first; of equal ones the lowest index."""
    return scores_TE.sort(dim=1, descending=True, stable=True).indices[:, :count]


def _after_shared(experts_TK: torch.Tensor, num_experts: int, num_shared: int) -> torch.Tensor:
    """Return each row's experts behind the shared ones, whose numbers begin at `num_experts`."""
    shared_S = torch.arange(num_experts, num_experts + num_shared, device=experts_TK.device)
    return torch.cat([shared_S.expand(len(experts_TK), -1), experts_TK], 1)


def _in_chosen_groups(choice_TE: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Return whether each expert is in one of its row's best groups, bool [T, E]."""
    num_rows, num_experts = choice_TE.shape
    groups_TJX = choice_TE.view(num_rows, routing.num_groups, num_experts // routing.num_groups)
    best_TJX = groups_TJX.sort(dim=2, descending=True).values
    scores_TJ = best_TJX[:, :, 0]
    for rank in range(1, routing.group_size_scored):
        scores_TJ = scores_TJ + best_TJX[:, :, rank]
    chosen_TJ = torch.zeros_like(scores_TJ, dtype=torch.bool)
    chosen_TJ.scatter_(1, _best(scores_TJ, routing.num_chosen_groups), True)
    return chosen_TJ.repeat_interleave(num_experts // routing.num_groups, dim=1)
