"""Keyed Gumbel noise: what makes a chosen token a function of (prefix, parameters, seed, position).

Promises: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011); key =
the 64-bit seed, counter = (position, token id // 4, choice index, 0), lane = id % 4. The same counter
gives the same float32 on any call of the same machine, whatever else is in the call.
Does not know: logits, drafters.

Legend: R rows, V vocabulary, Q counters a row (V / 4).
"""

from __future__ import annotations

import torch

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_ROUNDS = 10
_HIGHEST_UNIFORM = 1.0 - 2.0**-24


GUMBEL_SPAN = 26.0
"""More than the largest value of the noise less the smallest: a logit that is further below the best
one than this cannot win."""


def philox(
    seeds_R: torch.Tensor, positions_R: torch.Tensor, choices_R: torch.Tensor, id_RQ: torch.Tensor
) -> torch.Tensor:
    """[R, Q, 4] words of 32 bits (in int64) for counters (position, id_RQ, choice, 0); a first
    dimension of 1 in id_RQ serves all rows."""
    device = seeds_R.device
    rows, num_counters = seeds_R.shape[0], id_RQ.shape[1]
    # Words 0 and 2 are multiplied, words 1 and 3 pass through. The pair to multiply is kept swapped
    # (2, 0), since each product's high half belongs to the other word.
    swapped = torch.empty((2, rows, num_counters), dtype=torch.int64, device=device)
    odd = torch.empty_like(swapped)
    swapped[0], swapped[1] = choices_R.unsqueeze(1) & _MASK, positions_R.unsqueeze(1) & _MASK
    odd[0], odd[1] = id_RQ, 0
    multipliers = torch.tensor(_MULTIPLIERS[::-1], device=device).view(2, 1, 1)
    even = swapped
    for key in _key_schedule(seeds_R).unbind(0):
        product = swapped * multipliers
        even = (product >> 32).bitwise_and_(_MASK).bitwise_xor_(odd).bitwise_xor_(key)
        odd = product.bitwise_and_(_MASK)
        swapped = even.flip(0)
    return torch.stack((even[0], odd[0], even[1], odd[1]), dim=-1)


def _key_schedule(seeds_R: torch.Tensor) -> torch.Tensor:
    """[rounds, 2, R, 1] the key words of every round."""
    words = torch.stack((seeds_R & _MASK, (seeds_R >> 32) & _MASK)).unsqueeze(-1)
    weyl = torch.tensor(_WEYL, device=seeds_R.device).view(1, 2, 1, 1)
    rounds = torch.arange(_ROUNDS, device=seeds_R.device).view(-1, 1, 1, 1)
    return (words + rounds * weyl) & _MASK


def gumbel(
    seeds_R: torch.Tensor, positions_R: torch.Tensor, choices_R: torch.Tensor, vocab_size: int
) -> torch.Tensor:
    """Standard Gumbel noise [R, V] float32 for the token chosen at each row's position."""
    counters_1Q = torch.arange(-(-vocab_size // 4), device=seeds_R.device).unsqueeze(0)
    words = philox(seeds_R, positions_R, choices_R, counters_1Q)
    return _to_gumbel(words.view(words.shape[0], -1)[:, :vocab_size])


def gumbel_at(
    seeds_R: torch.Tensor, positions_R: torch.Tensor, choices_R: torch.Tensor, ids_RK: torch.Tensor
) -> torch.Tensor:
    """[R, K] the entries of `gumbel` at the given token ids."""
    words = philox(seeds_R, positions_R, choices_R, ids_RK // 4)
    return _to_gumbel(words.gather(2, (ids_RK % 4).unsqueeze(2)).squeeze(2))


def _to_gumbel(words: torch.Tensor) -> torch.Tensor:
    """E = -log1p(-u) is exponential and -log(E) is the noise: exact to float32 where it matters, in
    the large values (-log(-log(u)) would be infinite at one in 2^24 uniforms)."""
    uniform = words.to(torch.float32).add_(0.5).mul_(2.0**-32).clamp_(max=_HIGHEST_UNIFORM)
    exponential = uniform.neg_().log1p_().neg_()
    return exponential.log_().neg_()
