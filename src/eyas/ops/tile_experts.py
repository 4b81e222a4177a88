"""Group the rows of each expert into tiles, for products whose weights differ from expert to expert.

Promises: every assignment of a row to an expert is in one tile; the number of tiles follows from the
shapes alone. Which tile an assignment is in changes no result.
Does not know: products.

Legend: T rows, K experts of a row, N = T x K assignments, P tiles, X assignments of a tile.
"""

from __future__ import annotations

import torch

from eyas.ops.dispatch import Operation


@Operation
def tile_experts(
    experts_TK: torch.Tensor, num_experts: int, tile_rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the expert of each tile int32 [P], and the tile's assignments int32 [P, X].

    experts_TK: the experts of each row; -1 is none, and its assignment is in no tile. An assignment's
    number is its place in experts_TK, row by row.
    tile_rows: X. A tile that is not used has expert -1; of a tile's assignments those that are not used
    come last and are -1.
    """
    experts_N = experts_TK.flatten().long()
    num, device = len(experts_N), experts_N.device
    num_tiles = min(num, num_experts + num // tile_rows)
    sorted_N, order_N = experts_N.sort(stable=True)
    borders = torch.arange(num_experts + 1, device=device)
    first_E1 = torch.searchsorted(sorted_N, borders)
    tiles_E = (first_E1.diff() + tile_rows - 1) // tile_rows
    end_E = tiles_E.cumsum(0)
    tile_P = torch.arange(num_tiles, device=device)
    expert_P = torch.searchsorted(end_E, tile_P, right=True)
    is_used_P = expert_P < num_experts
    expert_P = expert_P.clamp(max=num_experts - 1)
    start_P = first_E1[expert_P] + (tile_P - end_E[expert_P] + tiles_E[expert_P]) * tile_rows
    at_PX = start_P[:, None] + torch.arange(tile_rows, device=device)
    is_used_PX = is_used_P[:, None] & (at_PX < first_E1[expert_P + 1][:, None])
    rows_PX = torch.where(is_used_PX, order_N[at_PX.clamp(max=num - 1)], -1)
    return torch.where(is_used_P, expert_P, -1).int(), rows_PX.int()


@tile_experts.kernel
def _by_kernel(
    experts_TK: torch.Tensor, num_experts: int, tile_rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    from eyas.kernels.experts import MAX_TILED
    from eyas.kernels.experts import tile_experts as launch

    if experts_TK.numel() > MAX_TILED:
        return NotImplemented
    return launch(experts_TK, tile_rows, pdl=experts_TK.is_cuda)
