"""Sequences of the sequence table, as the operations read them that turn trees into rows.

Does not know: who seats a sequence.

Legend: B sequences, W nodes, A seats, C columns (positions).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TableSequences:
    """Some sequences of the table, each with a tree.

    tokens_AC, slots_AC: the table. seats_B: their rows in it. roots_B: the positions of their last
    tokens. node_slots_BW: the slots of the nodes of their trees; a tree may have fewer. last_position:
    the last of a rotary table, to which later positions are limited.
    """

    tokens_AC: torch.Tensor
    slots_AC: torch.Tensor
    seats_B: torch.Tensor
    roots_B: torch.Tensor
    node_slots_BW: torch.Tensor
    last_position: int
