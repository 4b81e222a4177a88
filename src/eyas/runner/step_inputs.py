"""What the host writes for a step at fixed addresses, and the sizes of steps that share a CUDA graph.

Does not know: what a step computes.

Legend: B sequences with a tree, W nodes of a tree, A seats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

SMALLEST_LENGTH = 512
"""Sequences up to this length share graphs. Longer ones share them up to each power of two."""
MOST_ROWS_WITH_PROMPTS = 1024
"""Rows of the largest forward pass with prompt chunks that runs from a graph: a device takes longer for
larger ones than a host for launching their kernels."""
MOST_DRAFTING_WITH_PROMPTS = 4
"""Sequences with drafts of the largest such forward pass: with more, steps of a loaded server have so
many sizes that few occur twice."""
FEWEST_CHUNKS = 4
"""Prompt chunks of the smallest graph. Chunks without rows cost nothing."""


@dataclass(frozen=True, slots=True)
class StepSizes:
    """Sizes of a step. num_prompt_rows: rows of all prompt chunks."""

    num_sequences: int
    width: int
    num_prompt_rows: int = 0
    num_chunks: int = 0


@dataclass(slots=True, eq=False)
class StepInputs:
    """The seats and node slots of a step at fixed addresses.

    staged: the inputs of the next step, sent from staged_from. packed: the inputs of the current step,
    whose views seats_B and node_slots_BW are. roots_B: positions of the roots. taken: recorded once
    `staged` is copied to `packed`.
    """

    staged: torch.Tensor
    packed: torch.Tensor
    seats_B: torch.Tensor
    node_slots_BW: torch.Tensor
    roots_B: torch.Tensor
    taken: torch.cuda.Event | None = None
    staged_from: np.ndarray | None = None

    @classmethod
    def empty(cls, num: int, width: int, device: torch.device) -> StepInputs:
        packed = torch.zeros(num * (1 + width), dtype=torch.int64, device=device)
        roots_B = torch.zeros(num, dtype=torch.int64, device=device)
        parts = packed[:num], packed[num:].view(num, width)
        return cls(torch.zeros_like(packed), packed, *parts, roots_B)

    def take(self, lengths_A: torch.Tensor) -> None:
        """Copy the staged inputs to the step's, and set the roots to the last position of each
        sequence."""
        self.packed.copy_(self.staged)
        torch.index_select(lengths_A, 0, self.seats_B, out=self.roots_B)
        self.roots_B.sub_(1)


def bucket_of(num: int) -> int:
    """Return the rows of the graph that serves `num` sequences: 1, 2, 3, 4, 6, 8, 12, ..., 48, 64; then
    multiples of 32 up to 256, then of 64, since there a row of padding takes as long as another."""
    if num <= 4:
        return max(1, num)
    if num > 64:
        multiple = 32 if num <= 256 else 64
        return -(-num // multiple) * multiple
    power = 1 << ((num - 1).bit_length() - 1)
    return power + power // 2 if num <= power + power // 2 else 2 * power


def length_of(length: int) -> int:
    """Return the sequence length of the graph that serves sequences of up to `length`."""
    return max(SMALLEST_LENGTH, 1 << (length - 1).bit_length())


def sizes_with_prompts(step: StepSizes, most_rows: int) -> StepSizes | None:
    """Return the sizes of the graph that serves a step with prompt chunks; None if its forward pass
    would have more than `most_rows` rows, or if many sequences draft.

    There are powers of two of sequences up to 64, then multiples of 64. All rows together are a
    multiple of 64, above 512 of 128. One more chunk has the rows of padding.
    """
    if step.width > 1 and step.num_sequences > MOST_DRAFTING_WITH_PROMPTS:
        return None
    num = 1 << (step.num_sequences - 1).bit_length()
    if num > 64:
        num = -(-step.num_sequences // 64) * 64
    nodes = num * step.width
    rows = nodes + step.num_prompt_rows
    multiple = 64 if rows <= 512 else 128
    rows = -(-rows // multiple) * multiple
    if rows > most_rows:
        return None
    chunks = max(FEWEST_CHUNKS, 1 << step.num_chunks.bit_length())
    return StepSizes(num, step.width, rows - nodes, chunks)
