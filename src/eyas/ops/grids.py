"""What the torch bodies share that turn trees into rows: ragged grids, depths, columns of
positions.

Promises: no result depends on a device's kernels.
Does not know: what a row is for.

Legend: B sequences, W nodes of a tree, A seats, C columns (positions).
"""

from __future__ import annotations

import torch


def ragged_rows(real_BW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return [B, W] the row of each entry of a ragged grid, -1 for padding, and the flat indices of
    the entries that are not padding; None where all are real. Waits for the device."""
    if not bool(real_BW.all()):
        rows_BW = torch.where(real_BW, (real_BW.view(-1).cumsum(0) - 1).view_as(real_BW), -1)
        return rows_BW, real_BW.view(-1).nonzero().squeeze(1)
    return torch.arange(real_BW.numel(), device=real_BW.device).view(real_BW.shape), None


def node_depths(parents_BW: torch.Tensor) -> torch.Tensor:
    """Return [B, W] the distance of each node from the root."""
    depths_BW = torch.zeros_like(parents_BW)
    for w in range(1, parents_BW.shape[1]):
        above = parents_BW[:, w : w + 1].clamp(min=0)
        depths_BW[:, w : w + 1] = depths_BW.gather(1, above) + 1
    return depths_BW


def place_chain(
    slots_AC: torch.Tensor,
    seats_B: torch.Tensor,
    roots_B: torch.Tensor,
    node_slots_BW: torch.Tensor,
) -> None:
    """Write the slots of nodes into the columns of their positions, as if all were one chain."""
    offsets_W = torch.arange(node_slots_BW.shape[1], device=slots_AC.device)
    columns_BW = roots_B.unsqueeze(1) + offsets_W
    slots_AC[seats_B.unsqueeze(1), columns_BW] = node_slots_BW
