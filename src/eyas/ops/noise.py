"""Keyed Gumbel noise: what makes a chosen token a function of (prefix, parameters, seed, position).

Promises: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011); key
= the 64-bit seed, counter = (position, token id // 4, choice index, 0), lane = id % 4. The same
counter gives the same float32 on any call of the same machine, whatever else is in the call.
Does not know: logits, drafters.

Legend: R rows, V vocabulary, X counters a row (V / 4).
"""

from __future__ import annotations

from typing import Any

import torch

from eyas.native.steps import compiled_steps
from eyas.ops.dispatch import Operation

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_ROUNDS = 10
_HIGHEST_UNIFORM = 1.0 - 2.0**-24


GUMBEL_SPAN = 26.0
"""More than the largest value of the noise less the smallest: a logit that is further below the
best one than this cannot win."""


def philox(
    seeds_R: torch.Tensor, positions_R: torch.Tensor, choices_R: torch.Tensor, id_RX: torch.Tensor
) -> torch.Tensor:
    """[R, X, 4] words of 32 bits (in int64) for counters (position, id_RX, choice, 0); a first
    dimension of 1 in id_RX serves all rows."""
    shape = (len(seeds_R), id_RX.shape[1])
    given = (
        positions_R.unsqueeze(1) & _MASK,
        id_RX,
        choices_R.unsqueeze(1) & _MASK,
        seeds_R.unsqueeze(1) & _MASK,
        (seeds_R.unsqueeze(1) >> 32) & _MASK,
    )
    if seeds_R.device.type == "cpu":  # the same operations, each of them cheaper on small arrays
        words = [torch.from_numpy(word) for word in _rounds(*(each.numpy() for each in given))]
    else:
        words = _rounds(*given)
    return torch.stack([word.expand(shape) for word in words], dim=-1)


def _rounds(word0: Any, word1: Any, word2: Any, key0: Any, key1: Any) -> list[Any]:
    """Ten rounds over arrays or tensors of 64-bit integers that hold 32-bit words."""
    word3 = 0
    for _ in range(_ROUNDS):
        product0, product2 = word0 * _MULTIPLIERS[0], word2 * _MULTIPLIERS[1]
        word0 = ((product2 >> 32) & _MASK) ^ word1 ^ key0
        word2 = ((product0 >> 32) & _MASK) ^ word3 ^ key1
        word1, word3 = product2 & _MASK, product0 & _MASK
        key0, key1 = (key0 + _WEYL[0]) & _MASK, (key1 + _WEYL[1]) & _MASK
    return [word0, word1, word2, word3]


@Operation
def gumbel(
    seeds_R: torch.Tensor, positions_R: torch.Tensor, choices_R: torch.Tensor, vocab_size: int
) -> torch.Tensor:
    """Standard Gumbel noise [R, V] float32 for the token chosen at each row's position."""
    counters_1X = torch.arange(-(-vocab_size // 4), device=seeds_R.device).unsqueeze(0)
    words = philox(seeds_R, positions_R, choices_R, counters_1X)
    return _to_gumbel(words.view(words.shape[0], -1)[:, :vocab_size])


@gumbel.native
def _by_native(
    seeds_R: torch.Tensor, positions_R: torch.Tensor, choices_R: torch.Tensor, vocab_size: int
) -> torch.Tensor:
    steps = compiled_steps(seeds_R.device)
    if steps is None:
        return NotImplemented
    return steps.all_gumbel(_keys(seeds_R, positions_R, choices_R), vocab_size)


@Operation
def gumbel_at(
    seeds_R: torch.Tensor, positions_R: torch.Tensor, choices_R: torch.Tensor, ids_RK: torch.Tensor
) -> torch.Tensor:
    """[R, K] the entries of `gumbel` at the given token ids."""
    words = philox(seeds_R, positions_R, choices_R, ids_RK // 4)
    return _to_gumbel(words.gather(2, (ids_RK % 4).unsqueeze(2)).squeeze(2))


@gumbel_at.native
def _at_by_native(
    seeds_R: torch.Tensor, positions_R: torch.Tensor, choices_R: torch.Tensor, ids_RK: torch.Tensor
) -> torch.Tensor:
    steps = compiled_steps(seeds_R.device)
    if steps is None:
        return NotImplemented
    return steps.gumbel(_keys(seeds_R, positions_R, choices_R), ids_RK)


def _keys(*keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    seeds_R, positions_R, choices_R = (key.to(torch.int64).contiguous() for key in keys)
    return seeds_R, positions_R, choices_R


def _to_gumbel(words: torch.Tensor) -> torch.Tensor:
    """E = -log1p(-u) is exponential and -log(E) is the noise: exact to float32 where it matters, in
    the large values (-log(-log(u)) would be infinite at one in 2^24 uniforms)."""
    uniform = words.to(torch.float32).add_(0.5).mul_(2.0**-32).clamp_(max=_HIGHEST_UNIFORM)
    exponential = uniform.neg_().log1p_().neg_()
    return exponential.log_().neg_()
