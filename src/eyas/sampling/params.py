"""The sampling parameters of a batch as tensors, one entry a sequence, and which of them act at all.

Promises: built once for a set of sequences and reused while the set stays; a parameter at its neutral
value leaves a row's bits alone, whoever its neighbours are.
Does not know: logits, trees.

Legend: B sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eyas.core import SamplingParams


@dataclass(frozen=True, slots=True)
class RowSource:
    """What the rows of one sequence are sampled with. barred: ids that `min_tokens` holds back."""

    params: SamplingParams
    seed: int
    choice: int
    num_prompt_tokens: int
    barred: frozenset[int]


class BatchParams:
    """Parameters of B sequences. Attributes ending in _B are tensors [B] on the device; `any_*` and
    the lists of sequence indices are known to the host."""

    def __init__(self, sources: Sequence[RowSource], vocab_size: int, device: torch.device) -> None:
        self.sources = tuple(sources)
        self.vocab_size = vocab_size
        params = [s.params for s in sources]
        floats = torch.tensor(
            [
                [
                    p.temperature,
                    p.top_p,
                    p.min_p,
                    p.repetition_penalty,
                    p.frequency_penalty,
                    p.presence_penalty,
                ]
                for p in params
            ],
            dtype=torch.float32,
        ).view(len(params), 6)
        (
            self.temperature_B,
            self.top_p_B,
            self.min_p_B,
            self.repetition_B,
            self.frequency_B,
            self.presence_B,
        ) = floats.to(device).unbind(1)
        integers = torch.tensor(
            [
                [_signed(s.seed), s.choice, min(s.params.top_k, vocab_size), s.num_prompt_tokens]
                for s in sources
            ],
            dtype=torch.int64,
        ).view(len(params), 4)
        self.seed_B, self.choice_B, self.top_k_B, self.num_prompt_B = integers.to(device).unbind(1)
        self.noisy = [p.temperature > 0 for p in params]
        self.filtered = [
            p.temperature > 0 and (p.top_k > 0 or p.top_p < 1 or p.min_p > 0) for p in params
        ]
        self.penalised = [
            p.repetition_penalty != 1 or p.frequency_penalty != 0 or p.presence_penalty != 0
            for p in params
        ]
        self.max_top_k = max((min(p.top_k, vocab_size) for p in params), default=0)
        self.any_top_p = any(p.top_p < 1 for p in params)
        self.any_min_p = any(p.min_p > 0 for p in params)
        self.biased = {
            b: (
                torch.tensor(list(p.logit_bias.keys())).to(device),
                torch.tensor(list(p.logit_bias.values()), dtype=torch.float32).to(device),
            )
            for b, p in enumerate(params)
            if p.logit_bias
        }
        self.barred = {
            b: (s.params.min_tokens, torch.tensor(sorted(s.barred)).to(device))
            for b, s in enumerate(sources)
            if s.params.min_tokens > 0 and s.barred
        }
        self.num_logprobs = max(
            (p.logprobs for p in params if p.logprobs is not None), default=None
        )
        self.is_changed_before_temperature = bool(any(self.penalised) or self.biased or self.barred)
        self.is_plain = not (any(self.noisy) or self.is_changed_before_temperature)

    def __len__(self) -> int:
        return len(self.sources)


def _signed(seed: int) -> int:
    """The 64 bits of a seed as a signed number."""
    seed &= 2**64 - 1
    return seed - 2**64 if seed >= 2**63 else seed
