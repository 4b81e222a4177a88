"""Find where the last tokens of a text stood before, and propose what followed them (prompt
lookup).

Promises: of all earlier places the one with the longest match wins, then the latest; a match that
runs into the end of the text continues periodically. (A. Saxena, "Prompt lookup decoding", 2023.)
Does not know: drafters, what a proposal is used for.

Legend: A seats, C columns (positions), B sequences, L positions that are searched, W nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from eyas.ops.dispatch import Operation


class Proposals(NamedTuple):
    """Tokens, parents and number of nodes (1 or W) of the chains that are proposed; rows of parents
    may be views of one row."""

    tokens_BW: torch.Tensor
    parents_BW: torch.Tensor
    sizes_B: torch.Tensor


@Operation
def lookup(
    tokens_AC: torch.Tensor,
    seats_B: torch.Tensor,
    roots_B: torch.Tensor,
    num_columns: int,
    width: int,
    min_match: int,
    max_match: int,
) -> Proposals:
    """Return a chain of `width` nodes, the root included, for each sequence; its root alone where
    fewer than `min_match` tokens agree anywhere.

    seats_B, roots_B: the row of `tokens_AC` of each sequence, and the position of its last token.
    num_columns: an upper bound of all lengths. max_match: agreeing tokens beyond which places count
    as equal. On a CPU the result is one node wide where no sequence has a match.
    """
    history_BL = tokens_AC[seats_B, :num_columns]
    num, device = len(seats_B), tokens_AC.device
    columns_L = torch.arange(num_columns, device=device)
    score_BL = torch.zeros_like(history_BL)
    agrees_BL = columns_L < roots_B.unsqueeze(1)
    for back in range(min(max_match, num_columns)):
        wanted_B1 = history_BL.gather(1, (roots_B - back).clamp(min=0).unsqueeze(1))
        shifted_BL = history_BL.roll(back, dims=1)
        agrees_BL = agrees_BL & (shifted_BL == wanted_B1) & (columns_L >= back)
        score_BL = score_BL + agrees_BL
    place_B = (score_BL * num_columns + columns_L).argmax(dim=1)
    is_found_B = score_BL.gather(1, place_B.unsqueeze(1)).squeeze(1) >= min_match
    root_B1 = tokens_AC[seats_B, roots_B].unsqueeze(1)
    if device.type == "cpu" and not bool(is_found_B.any()):
        return Proposals(root_B1, torch.full_like(root_B1, -1), torch.ones_like(roots_B))
    period_B1 = (roots_B - place_B).clamp(min=1).unsqueeze(1)
    offsets_W = torch.arange(width - 1, device=device)
    source_BW = place_B.unsqueeze(1) + 1 + offsets_W % period_B1
    drafted_BW = history_BL.gather(1, source_BW.clamp(max=num_columns - 1))
    parents_W = torch.arange(-1, width - 1, device=device)
    return Proposals(
        torch.cat([root_B1, drafted_BW], dim=1),
        parents_W.expand(num, -1),
        torch.where(is_found_B, width, 1),
    )


@lookup.kernel
def _by_kernel(
    tokens_AC: torch.Tensor,
    seats_B: torch.Tensor,
    roots_B: torch.Tensor,
    num_columns: int,
    width: int,
    min_match: int,
    max_match: int,
) -> Proposals:
    from eyas.kernels.lookup import propose

    return Proposals(
        *propose(
            tokens_AC,
            seats_B,
            roots_B,
            num_columns,
            width,
            min_match,
            min(max_match, num_columns),
        )
    )
