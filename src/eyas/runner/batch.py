"""What one step works on: which part of which sequence, and the slots it was given.

Promises: a `Batch` is planned from what the host knows for sure (prompt chunks) and from upper bounds
(everything that a step under way may still change); its tensors are on the device.
Does not know: how a plan is made, whose sequences these are, what becomes of them.

Legend: B rooted spans, W width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from eyas.constraint.automaton import Automaton
from eyas.runner.table import SequenceTable
from eyas.sampling.params import BatchParams

_NO_SLOTS = np.empty(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class Span:
    """A sequence's part of a step: `context_count` positions to store from `context_start`, and, if
    it has node slots, a draft tree whose node 0 is the sequence's last token.

    wants_context_logits: prompt log-probabilities were asked for.
    stored_slots: slots of the positions that are stored or being stored, as far as the host knows.
    root_low, root_high: bounds of the root's position, equal where no step is under way.
    """

    seat: int
    context_start: int
    context_count: int
    context_slots: np.ndarray
    node_slots: np.ndarray | None
    wants_context_logits: bool = False
    stored_slots: np.ndarray = field(default_factory=lambda: _NO_SLOTS)
    root_low: int = 0
    root_high: int = 0


@dataclass(slots=True, eq=False)
class Batch:
    """spans: all; rooted: those with a root, in the order of every [B, ...] tensor of the step.

    width: how many nodes a tree may have. seats_B, roots_B (position of node 0) and node_slots_BW
    are on the device. max_length: upper bound of any sequence's length once this step has landed.
    automata: of the rooted sequences, standing at their roots (waits for the steps under way); None
    where no sequence is constrained.
    """

    table: SequenceTable
    spans: list[Span]
    params: BatchParams
    width: int
    max_length: int
    automata: Callable[[], Sequence[Automaton | None]] | None = None
    rooted: list[Span] = field(init=False)
    seats_B: torch.Tensor = field(init=False)
    roots_B: torch.Tensor = field(init=False)
    node_slots_BW: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        device = self.table.device
        self.rooted = [span for span in self.spans if span.node_slots is not None]
        seats = np.array([span.seat for span in self.rooted], dtype=np.int64)
        self.seats_B = torch.from_numpy(seats).to(device)
        self.roots_B = self.table.lengths_A[self.seats_B] - 1
        slots = [span.node_slots for span in self.rooted if span.node_slots is not None]
        stacked = np.stack(slots) if slots else np.empty((0, self.width), dtype=np.int64)
        self.node_slots_BW = torch.from_numpy(stacked).to(device)

    @property
    def history_BL(self) -> torch.Tensor:
        """Committed tokens of the rooted sequences, up to the longest's upper bound."""
        return self.table.tokens_AC[self.seats_B, : self.max_length]
