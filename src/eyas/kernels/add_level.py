"""The kernel of `ops.add_level`: one program a sequence.

Promises: the same candidates in the same order as the torch body finds; ties go to the candidate that
was found first; every entry of the results is written, padding included.
Does not know: logits, networks, where the pool's storage comes from.

Legend: B sequences, Q frontier nodes, J children a node, E candidates of a level (Q * J), X entries of
a pool, P draft tokens from below the root to a node.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import enter, launch_options
from eyas.kernels.sort_keys import LOWEST, index_of, key_of, largest, score_of

_PATH_BLOCK = 16


@triton.jit(do_not_specialize=("start", "capacity", "depth"))
def add_level_kernel(
    tokens, scores, above_scores, above_places, above_paths,
    pool_tokens, pool_scores, pool_parents, places, next_scores, parents, paths,
    start, capacity, depth,
    WIDTH: tl.constexpr, CHILDREN: tl.constexpr, PADDED: tl.constexpr,
    KEEP: tl.constexpr, KEEP_PADDED: tl.constexpr, PATH_BLOCKS: tl.constexpr, PATH_BLOCK: tl.constexpr,
    IS_SORTED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (sequence): write candidates to the pool from `start` on; the KEEP best are the next
    frontier. Nodes without a path (PATH_BLOCKS is 0) are roots, whose score is 0 and whose place is
    -1."""
    enter(PDL)
    NUM: tl.constexpr = WIDTH * CHILDREN
    b = tl.program_id(0).to(tl.int64)
    entry = tl.arange(0, PADDED)
    is_real = entry < NUM
    node = entry // CHILDREN
    score = tl.load(scores + b * NUM + entry, mask=is_real, other=float("-inf"))
    token = tl.load(tokens + b * NUM + entry, mask=is_real, other=0)
    place = tl.full((PADDED,), -1, tl.int64)
    if PATH_BLOCKS > 0:
        score += tl.load(above_scores + b * WIDTH + node, mask=is_real, other=0.0)
        place = tl.load(above_places + b * WIDTH + node, mask=is_real, other=0)
    stored = b * capacity + start + entry
    tl.store(pool_tokens + stored, token, mask=is_real)
    tl.store(pool_scores + stored, score, mask=is_real)
    tl.store(pool_parents + stored, place, mask=is_real)

    column = tl.arange(0, KEEP_PADDED)
    is_kept = column < KEEP
    out = b * KEEP + column
    if IS_SORTED:
        best = column
        best_score = tl.load(scores + b * NUM + column, mask=is_kept, other=0.0)
        if PATH_BLOCKS > 0:
            best_score += tl.load(above_scores + b)
    else:
        known = tl.where(score == score, score, float("-inf"))
        keys = largest(tl.where(is_real, key_of(known, entry), LOWEST), KEEP, KEEP_PADDED)
        best = tl.where(is_kept, index_of(keys), 0)
        best_score = score_of(keys)
    parent = best // CHILDREN
    tl.store(places + out, (start + best).to(tl.int64), mask=is_kept)
    tl.store(next_scores + out, best_score, mask=is_kept)
    tl.store(parents + out, parent.to(tl.int64), mask=is_kept)
    own = tl.load(tokens + b * NUM + best, mask=is_kept, other=0)
    tl.store(paths + out * (depth + 1) + depth, own, mask=is_kept)
    for block in tl.static_range(PATH_BLOCKS):
        level = block * PATH_BLOCK + tl.arange(0, PATH_BLOCK)
        is_path = is_kept[:, None] & (level < depth)[None, :]
        source = (b * WIDTH + parent)[:, None] * depth + level[None, :]
        tl.store(
            paths + out[:, None] * (depth + 1) + level[None, :],
            tl.load(above_paths + source, mask=is_path, other=0),
            mask=is_path,
        )


def add_level(
    tokens_BQJ: torch.Tensor,
    scores_BQJ: torch.Tensor,
    frontier: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    pool: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    start: int,
    keep: int,
    *,
    pdl: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Children of a frontier into the pool. Reference: `ops.add_level.by_torch`.

    frontier: places [B, Q], scores [B, Q], paths [B, Q, P] as in `Frontier`; of roots (P = 0) only the
    shapes count. pool: tokens, scores and parents [B, X], filled up to `start`. Returns the next
    frontier's three, and [B, keep] the index of each one's parent in the old frontier.
    """
    num, width, num_children = tokens_BQJ.shape
    above_places, above_scores, above_paths = frontier
    pool_tokens, pool_scores, pool_parents = pool
    device, depth, entries = tokens_BQJ.device, above_paths.shape[2], width * num_children
    is_sorted = width == 1 and keep == num_children
    keep = min(keep, entries)
    places = torch.empty((num, keep), dtype=torch.int64, device=device)
    scores = torch.empty((num, keep), dtype=torch.float32, device=device)
    parents = torch.empty((num, keep), dtype=torch.int64, device=device)
    paths = torch.empty((num, keep, depth + 1), dtype=torch.int64, device=device)
    if num:
        padded = triton.next_power_of_2(entries)
        options = launch_options(pdl)
        add_level_kernel[(num,)](
            tokens_BQJ.contiguous(), scores_BQJ.contiguous(), above_scores.contiguous(),
            above_places.contiguous(), above_paths.contiguous(),
            pool_tokens, pool_scores, pool_parents, places, scores, parents, paths,
            start, pool_tokens.shape[1], depth,
            width, num_children, padded, keep, triton.next_power_of_2(keep),
            triton.cdiv(depth, _PATH_BLOCK), _PATH_BLOCK, is_sorted, pdl,
            num_warps=1 if padded <= 256 else 4 if padded <= 1024 else 8, **options,
        )  # fmt: skip
    return places, scores, paths, parents
