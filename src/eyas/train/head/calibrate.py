"""Fit the weight of the sampling noise in the ranking of a head's candidates.

Promises: for each temperature T, the weight beta that maximises the likelihood of the target's
choices under softmax(beta * (q / T + noise)), where q are the head's logits and noise is the Gumbel
noise that the target's choice is drawn with. Rows whose choice is outside the draft vocabulary are
omitted. Does not know: training.

Legend: R rows, U draft vocabulary, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

TEMPERATURES = (0.6, 1.0)
_MAX_SCORES = 1 << 26
_LOWEST, _HIGHEST = 1e-3, 64.0


def fit_beta(scores_RU: Tensor, choice_R: Tensor) -> float:
    """Return the beta of the highest likelihood, by bisection.

    There the mean score under the model, which rises with beta, equals the mean score of the
    choices.
    """
    chosen = scores_RU.gather(1, choice_R[:, None]).mean()
    low, high = _LOWEST, _HIGHEST
    for _ in range(40):
        middle = (low * high) ** 0.5
        expected = ((scores_RU * middle).softmax(-1) * scores_RU).sum(-1).mean()
        if expected < chosen:
            low = middle
        else:
            high = middle
    return round((low * high) ** 0.5, 4)


@torch.no_grad()
def calibrate(
    rows: Callable[[], Iterator[tuple[Tensor, Tensor]]], draft_of_V: Tensor, seed: int
) -> dict[float, float]:
    """Return temperature -> beta.

    rows: yields pairs of the head's logits [R, U] and the target's [R, V]. draft_of_V: draft id of
    each target id, -1 for none.
    """
    betas: dict[float, float] = {}
    ids_U = torch.nonzero(draft_of_V >= 0).squeeze(1)
    for temperature in TEMPERATURES:
        generator = torch.Generator(draft_of_V.device).manual_seed(seed)
        kept_scores, kept_choices, used = [], [], 0
        for own_RU, target_RV in rows():
            uniform = torch.rand(target_RV.shape, generator=generator, device=target_RV.device)
            noise_RV = -(-uniform.clamp(min=1e-20).log()).log()
            choice_R = draft_of_V[(target_RV / temperature + noise_RV).argmax(-1)]
            scores_RU = own_RU / temperature + noise_RV[:, ids_U]
            is_kept = choice_R >= 0
            kept_scores.append(scores_RU[is_kept])
            kept_choices.append(choice_R[is_kept])
            used += kept_scores[-1].numel()
            if used > _MAX_SCORES:
                break
        choices = torch.cat(kept_choices) if kept_choices else torch.empty(0)
        if len(choices):
            betas[temperature] = fit_beta(torch.cat(kept_scores), choices)
    return betas
