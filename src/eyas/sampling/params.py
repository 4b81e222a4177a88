"""The sampling parameters of a batch as tensors, one entry a sequence, and which of them act.

Promises: built once for a set of sequences and reused while the set does not change. A parameter at
its neutral value does not change a row's bits, whatever the other sequences use. A padded copy has
tensors at fixed addresses, which can be filled again; parameters of equal signatures run the same
operations.
Does not know: logits, trees.

Legend: B sequences.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch

from eyas.core import SamplingParams
from eyas.ops.scale_and_filter import Filters
from eyas.transfer import send

_NEUTRAL_FLOATS = (0.0, 1.0, 0.0, 1.0, 0.0, 0.0)
_NEUTRAL_INTEGERS = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class SequenceParams:
    """The sampling parameters of one sequence. barred: ids that are illegal before `min_tokens`."""

    params: SamplingParams
    seed: int
    choice: int
    num_prompt_tokens: int
    barred: frozenset[int]


class BatchParams:
    """The parameters of B sequences.

    Attributes ending in _B are tensors [B] on the device, the rows of floats_6B and integers_4B.
    `any_*`, `max_*` and the lists are known to the host. filters: None if no sequence has a filter
    that acts. signature: equal if the same operations run. is_capturable: whether they run on the
    device alone.
    """

    def __init__(
        self, sequences: Sequence[SequenceParams], vocab_size: int, device: torch.device
    ) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self._neutral: tuple[torch.Tensor, torch.Tensor] | None = None
        params = [s.params for s in sequences]
        floats = [
            [
                p.temperature,
                p.top_p,
                p.min_p,
                p.repetition_penalty,
                p.frequency_penalty,
                p.presence_penalty,
            ]
            for p in params
        ]
        integers = [
            [_signed(s.seed), s.choice, min(s.params.top_k, vocab_size), s.num_prompt_tokens]
            for s in sequences
        ]
        self._hold(_columns(floats, 6, np.float32), _columns(integers, 4, np.int64))
        self._note_on_host(sequences)

    def __len__(self) -> int:
        """Return the number of sequences; the tensors of a padded copy have more entries."""
        return len(self.sequences)

    def padded(self, num: int) -> BatchParams:
        """Return a copy with tensors of `num` entries; entries past the sequences are neutral."""
        assert self.is_capturable, "only capturable parameters have a padded copy"
        padded = copy(self)
        padded._hold(
            _columns([_NEUTRAL_FLOATS] * num, 6, np.float32),
            _columns([_NEUTRAL_INTEGERS] * num, 4, np.int64),
        )
        padded._neutral = (padded.floats_6B[:, :1].clone(), padded.integers_4B[:, :1].clone())
        padded.copy_(self)
        return padded

    def copy_(self, other: BatchParams) -> None:
        """Copy `other` into a padded copy without waiting for the device.

        other: of the same signature, with at most as many sequences as there are entries.
        """
        assert self._neutral is not None and other.signature == self.signature, "other operations"
        num = len(other)
        mine, theirs = (self.floats_6B, self.integers_4B), (other.floats_6B, other.integers_4B)
        for own, given, neutral in zip(mine, theirs, self._neutral, strict=True):
            own[:, :num].copy_(given[:, :num])
            own[:, num:].copy_(neutral.expand(-1, own.shape[1] - num))
        self._note_on_host(other.sequences)

    def _hold(self, floats: np.ndarray, integers: np.ndarray) -> None:
        """Send the numbers to the device and set the attributes ending in _B."""
        self.floats_6B, self.integers_4B = send(floats, self.device), send(integers, self.device)
        (
            self.temperature_B,
            self.top_p_B,
            self.min_p_B,
            self.repetition_B,
            self.frequency_B,
            self.presence_B,
        ) = self.floats_6B.unbind(0)
        self.seed_B, self.choice_B, self.top_k_B, self.num_prompt_B = self.integers_4B.unbind(0)

    def _note_on_host(self, sequences: Sequence[SequenceParams]) -> None:
        """Set the attributes that the host knows."""
        self.sequences = tuple(sequences)
        params = [s.params for s in sequences]
        self.noisy = [p.temperature > 0 for p in params]
        self.filtered = [
            p.temperature > 0 and (p.top_k > 0 or p.top_p < 1 or p.min_p > 0) for p in params
        ]
        self.penalised = [
            p.repetition_penalty != 1 or p.frequency_penalty != 0 or p.presence_penalty != 0
            for p in params
        ]
        acting = [p for p in params if p.temperature > 0]
        largest = max((min(p.top_k, self.vocab_size) for p in acting), default=0)
        # A bound, so that few signatures differ by it.
        self.max_top_k = min(self.vocab_size, 1 << (largest - 1).bit_length()) if largest else 0
        self.any_top_p = any(p.top_p < 1 for p in acting)
        self.any_min_p = any(p.min_p > 0 for p in acting)
        self.filters: Filters | None = None
        if any(self.filtered):
            self.filters = Filters(
                self.top_k_B,
                self.top_p_B,
                self.min_p_B,
                self.max_top_k,
                self.any_top_p,
                self.any_min_p,
                all(self.filtered),
            )
        self.biased = {
            b: (
                send(np.array(list(p.logit_bias.keys()), dtype=np.int64), self.device),
                send(np.array(list(p.logit_bias.values()), dtype=np.float32), self.device),
            )
            for b, p in enumerate(params)
            if p.logit_bias
        }
        self.barred = {
            b: (s.params.min_tokens, send(sorted(s.barred), self.device))
            for b, s in enumerate(sequences)
            if s.params.min_tokens > 0 and s.barred
        }
        self.num_logprobs = max(
            (p.logprobs for p in params if p.logprobs is not None), default=None
        )
        self.is_changed_before_temperature = bool(any(self.penalised) or self.biased or self.barred)
        self.is_plain = not (any(self.noisy) or self.is_changed_before_temperature)
        self.is_capturable = not self.is_changed_before_temperature and self.num_logprobs is None
        # torch's operations are recorded with the bound, and for rows that all have a filter; kernels
        # read each sequence's own numbers.
        by_torch = self.device.type == "cpu"
        self.signature: Hashable = (
            any(self.noisy),
            self.max_top_k if by_torch else self.max_top_k > 0,
            by_torch and all(self.filtered),
            self.any_top_p,
            self.any_min_p,
            self.is_changed_before_temperature,
            self.num_logprobs,
        )


def _columns(rows: Sequence[Sequence[float]], width: int, dtype: type) -> np.ndarray:
    """Return B rows of numbers as [width, B]."""
    return np.ascontiguousarray(np.array(rows, dtype=dtype).reshape(len(rows), width).T)


def _signed(seed: int) -> int:
    """Return the 64 bits of a seed as a signed number."""
    seed &= 2**64 - 1
    return seed - 2**64 if seed >= 2**63 else seed
