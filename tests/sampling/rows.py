"""Rows for the sampler, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from eyas.core import SamplingParams
from eyas.ops.choose import choose_processed
from eyas.sampling import BatchParams, SequenceParams
from eyas.sampling.process import SamplingRows

CPU = torch.device("cpu")


@dataclass
class Row:
    """One node row: its logits, what came before it, and whose it is.

    prompt, output: committed tokens, the root last; path: draft tokens from below the root to the
    row's own; others: draft tokens of the tree that are not on the way.
    """

    logits: list[float]
    params: SamplingParams
    prompt: list[int] = field(default_factory=lambda: [0])
    output: list[int] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    barred: frozenset[int] = frozenset()
    seed: int = 0
    choice: int = 0
    mask: list[bool] | None = None

    @property
    def position(self) -> int:
        """Of the row's own token, the last on its path."""
        return len(self.prompt) + len(self.output) + len(self.path) - 1


def assemble(
    made: Sequence[Row],
) -> tuple[torch.Tensor, SamplingRows, BatchParams, torch.Tensor | None]:
    """Each row as a sequence of its own in one batch; the mask where any row has one."""
    vocab_size = len(made[0].logits)
    sources = [SequenceParams(r.params, r.seed, r.choice, len(r.prompt), r.barred) for r in made]
    params = BatchParams(sources, vocab_size, CPU)
    histories = [r.prompt + r.output for r in made]
    longest = max(len(h) for h in histories) + 3
    history = torch.full((len(made), longest), vocab_size - 1)
    for b, tokens in enumerate(histories):
        history[b, : len(tokens)] = torch.tensor(tokens)
    depth = 1 + max(len(r.path) + len(r.others) for r in made)
    tokens_RD = torch.zeros((len(made), depth), dtype=torch.int64)
    ancestor_RD = torch.zeros((len(made), depth), dtype=torch.bool)
    for b, row in enumerate(made):
        drafted = row.path + row.others
        tokens_RD[b, 1 : 1 + len(drafted)] = torch.tensor(drafted, dtype=torch.int64)
        ancestor_RD[b, 1 : 1 + len(row.path)] = True
    rows = SamplingRows(
        sequence_R=torch.arange(len(made)),
        position_R=torch.tensor([r.position for r in made]),
        tokens_RD=tokens_RD if depth > 1 else None,
        is_ancestor_RD=ancestor_RD if depth > 1 else None,
        history_BL=history,
        length_B=torch.tensor([len(h) for h in histories]),
    )
    logits = torch.tensor([r.logits for r in made], dtype=torch.float32)
    mask = None
    if any(r.mask is not None for r in made):
        mask = torch.stack([pack(r.mask or [True] * vocab_size) for r in made])
    return logits, rows, params, mask


def choose(processed_RV: torch.Tensor, rows: SamplingRows, params: BatchParams) -> torch.Tensor:
    """The tokens [R] of processed logits."""
    keys = (params.temperature_B, params.seed_B, params.choice_B)
    given = (processed_RV, rows.sequence_R, rows.position_R)
    return choose_processed(*given, *keys, params.noisy)


def pack(allowed: Sequence[bool]) -> torch.Tensor:
    """int32 words, token i at bit i % 32 of word i // 32."""
    words = []
    for start in range(0, len(allowed), 32):
        word = sum(1 << i for i, bit in enumerate(allowed[start : start + 32]) if bit)
        words.append(word - 2**32 if word >= 2**31 else word)
    return torch.tensor(words, dtype=torch.int32)
