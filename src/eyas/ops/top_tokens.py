"""The best next tokens of logits rows, by probability or by probability and the target's noise.

Promises: best first; a row's result depends on its logits, its sequence's parameters and its
position. At temperature above 0 tokens are ranked by what the target would choose with its own
noise: log_softmax(beta * (q / T + g)), q the logits and g the noise of that position (the coupling
is Daliri, Musco, Suresh, arXiv 2408.07978; beta says how far q is trusted).
Does not know: trees, networks, penalties.

Legend: R rows, U candidates (a draft vocabulary), V vocabulary, J children, B sequences, E
shortlist.
"""

from __future__ import annotations

import torch

from eyas.native.steps import compiled_steps
from eyas.ops.dispatch import Operation
from eyas.ops.noise import gumbel_at
from eyas.ops.scale_and_filter import NEVER, Filters, scale_and_filter

SHORTLIST = 64
"""Candidates of a row that `by_torch` ranks with their noise; less likely ones are not tried."""


@Operation
def top_tokens(
    logits_RU: torch.Tensor,
    target_ids_U: torch.Tensor | None,
    num_children: int,
    vocab_size: int,
    sequence_R: torch.Tensor | None,
    position_R: torch.Tensor | None,
    temperature_B: torch.Tensor | None,
    seed_B: torch.Tensor,
    choice_B: torch.Tensor,
    beta_B: torch.Tensor | None,
    filters: Filters | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return target ids [R, J] and log-probabilities [R, J], best first; -inf for what may not be
    chosen.

    target_ids_U: the target's id of each candidate; None where they are the same. sequence_R,
    position_R: None where no parameter of sampling acts. temperature_B: None where no temperature
    is above 0. beta_B: None ranks without noise. filters: of the sequences. The kernel and compiled
    code rank all candidates with their noise instead of a shortlist. The kernel leaves the filters
    out: they remove what is unlikely, and a draft cannot change the output.
    """
    if sequence_R is None:
        scores_RJ, best_RJ = logits_RU.log_softmax(dim=1).topk(num_children, dim=1)
        return (best_RJ if target_ids_U is None else target_ids_U[best_RJ]), scores_RJ
    assert position_R is not None
    x_RV = at_target_ids(logits_RU, target_ids_U, vocab_size)
    if temperature_B is not None:
        x_RV = scale_and_filter.by_torch(x_RV, sequence_R, temperature_B, filters)
    x_RV = x_RV.log_softmax(dim=1)
    if beta_B is None or temperature_B is None:
        scores_RJ, ids_RJ = x_RV.topk(num_children, dim=1)
        return ids_RJ, scores_RJ
    values_RE, ids_RE = x_RV.topk(min(max(SHORTLIST, num_children), x_RV.shape[1]), dim=1)
    noise_RE = gumbel_at(seed_B[sequence_R], position_R, choice_B[sequence_R], ids_RE)
    is_noisy_R1 = (temperature_B[sequence_R] > 0).unsqueeze(1)
    seen_RE = (beta_B[sequence_R].unsqueeze(1) * (values_RE + noise_RE)).log_softmax(dim=1)
    scores_RE = torch.where(is_noisy_R1, seen_RE, values_RE)
    scores_RJ, best_RJ = scores_RE.topk(num_children, dim=1)
    return ids_RE.gather(1, best_RJ), scores_RJ


@top_tokens.native
def _by_native(
    logits_RU: torch.Tensor,
    target_ids_U: torch.Tensor | None,
    num_children: int,
    vocab_size: int,
    sequence_R: torch.Tensor | None,
    position_R: torch.Tensor | None,
    temperature_B: torch.Tensor | None,
    seed_B: torch.Tensor,
    choice_B: torch.Tensor,
    beta_B: torch.Tensor | None,
    filters: Filters | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    steps = compiled_steps(logits_RU.device)
    if steps is None or filters is not None:
        return NotImplemented
    if sequence_R is None or temperature_B is None:
        return steps.top_tokens(logits_RU, target_ids_U, num_children)
    assert position_R is not None
    return steps.top_tokens_with_noise(
        logits_RU,
        target_ids_U,
        (seed_B[sequence_R], position_R.contiguous(), choice_B[sequence_R]),
        temperature_B[sequence_R],
        None if beta_B is None else beta_B[sequence_R],
        num_children,
    )


@top_tokens.kernel
def _by_kernel(
    logits_RU: torch.Tensor,
    target_ids_U: torch.Tensor | None,
    num_children: int,
    vocab_size: int,
    sequence_R: torch.Tensor | None,
    position_R: torch.Tensor | None,
    temperature_B: torch.Tensor | None,
    seed_B: torch.Tensor,
    choice_B: torch.Tensor,
    beta_B: torch.Tensor | None,
    filters: Filters | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    from eyas.kernels.top_tokens import top

    if sequence_R is None:
        scores_RJ, ids_RJ = top(
            logits_RU, num_children, target_ids_U=target_ids_U, pdl=logits_RU.is_cuda
        )
        return ids_RJ, scores_RJ
    scores_RJ, ids_RJ = top(
        logits_RU,
        num_children,
        target_ids_U=target_ids_U,
        sequence_R=sequence_R,
        position_R=position_R,
        temperature_B=temperature_B,
        seed_B=seed_B,
        choice_B=choice_B,
        beta_B=beta_B,
        pdl=logits_RU.is_cuda,
    )
    return ids_RJ, scores_RJ


def at_target_ids(
    logits_RU: torch.Tensor, target_ids_U: torch.Tensor | None, vocab_size: int
) -> torch.Tensor:
    """Return the logits [R, V] at the target's ids, -inf where there is no candidate."""
    if target_ids_U is None:
        return logits_RU
    logits_RV = logits_RU.new_full((len(logits_RU), vocab_size), NEVER)
    return logits_RV.index_copy_(1, target_ids_U, logits_RU)
