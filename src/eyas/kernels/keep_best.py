"""The kernel of `ops.keep_best`: one program a sequence.

Promises: the same candidates in the same order as the torch body finds; ties go to the candidate that
was found first; every entry of the results is written, padding included.
Does not know: logits, networks, where the pool's storage comes from.

Legend: B sequences, X entries of a pool, W nodes of the tree.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import block_of, enter, launch_options


@triton.jit
def _threshold(height, wanted):
    """The largest number that at least `wanted` of the heights (uint32) reach, found two bits a
    round."""
    found = wanted.to(tl.uint32) * 0
    for i in tl.static_range(16):
        first = found | (1 << (30 - 2 * i))
        second = found | (2 << (30 - 2 * i))
        third = found | (3 << (30 - 2 * i))
        reached = (height >= first).to(tl.int64)
        reached += (height >= second).to(tl.int64) << 20
        reached += (height >= third).to(tl.int64) << 40
        counts = tl.sum(reached, axis=0)
        found = tl.where((counts & 0xFFFFF) >= wanted, first, found)
        found = tl.where(((counts >> 20) & 0xFFFFF) >= wanted, second, found)
        found = tl.where((counts >> 40) >= wanted, third, found)
    return found


@triton.jit(do_not_specialize=("size", "capacity", "width"))
def keep_best_kernel(
    pool_tokens, pool_scores, pool_parents, roots, tokens, parents, sizes, node_scores,
    size, capacity, width,
    PADDED: tl.constexpr, WIDTH_PADDED: tl.constexpr, IS_CHAIN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (sequence): the root and the width - 1 best of the pool, in the pool's order."""
    enter(PDL)
    b = tl.program_id(0).to(tl.int64)
    entry = tl.arange(0, PADDED)
    stored = b * capacity + entry
    node = tl.arange(0, WIDTH_PADDED)
    out = b * width + node
    root = tl.load(roots + b)
    if IS_CHAIN:
        is_kept = entry < width - 1
        score = tl.load(pool_scores + stored, mask=is_kept, other=float("-inf"))
        num_kept = tl.sum((score > float("-inf")).to(tl.int32), axis=0)
        is_later = (node > 0) & (node < width)
        token = tl.load(pool_tokens + b * capacity + node - 1, mask=is_later, other=0)
        tl.store(tokens + out, tl.where(node > 0, token, root), mask=node < width)
        tl.store(parents + out, (node - 1).to(tl.int64), mask=node < width)
        own = tl.load(pool_scores + b * capacity + node - 1, mask=is_later, other=0.0)
        tl.store(node_scores + out, own, mask=node < width)
    else:
        is_real = entry < size
        score = tl.load(pool_scores + stored, mask=is_real, other=float("-inf"))
        token = tl.load(pool_tokens + stored, mask=is_real, other=0)
        place = tl.load(pool_parents + stored, mask=is_real, other=0).to(tl.int32)
        is_legal = is_real & (score > float("-inf"))
        bits = (tl.where(is_legal, score, 0.0) + 0.0).to(tl.uint32, bitcast=True)
        height = tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits ^ 0x80000000)
        height = tl.where(is_legal, height, 0)
        num_kept = tl.minimum(tl.sum(is_legal.to(tl.int32), axis=0), width - 1)
        least = _threshold(height, num_kept)
        is_above = is_legal & (height > least)
        is_equal = is_legal & (height == least)
        room = num_kept - tl.sum(is_above.to(tl.int32), axis=0)
        is_kept = is_above | (is_equal & (tl.cumsum(is_equal.to(tl.int32), axis=0) <= room))
        number = tl.cumsum(is_kept.to(tl.int32), axis=0)
        before = number - is_kept.to(tl.int32)
        above = tl.gather(before, tl.maximum(place, 0), axis=0) + 1
        above = tl.where(place < 0, 0, above)
        tl.store(tokens + b * width + number, token, mask=is_kept)
        tl.store(parents + b * width + number, above.to(tl.int64), mask=is_kept)
        # Read again: kept in registers until here, the scores of large pools would spill.
        own = tl.load(pool_scores + stored, mask=is_kept, other=0.0)
        tl.store(node_scores + b * width + number, own, mask=is_kept)
        last = tl.load(pool_tokens + b * capacity + size - 1)
        last_score = tl.load(pool_scores + b * capacity + size - 1)
        is_rest = ((node == 0) | (node > num_kept)) & (node < width)
        tl.store(tokens + out, tl.where(node == 0, root, last), mask=is_rest)
        tl.store(parents + out, tl.where(node == 0, -1, 0).to(tl.int64), mask=is_rest)
        tl.store(node_scores + out, tl.where(node == 0, 0.0, last_score), mask=is_rest)
    tl.store(sizes + b, (1 + num_kept).to(tl.int64))


def keep_best(
    pool: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    size: int,
    roots_B1: torch.Tensor,
    nodes: int,
    *,
    is_chain: bool,
    pdl: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens [B, W], parents [B, W], sizes [B] and scores [B, W] of the trees of the best `nodes` - 1
    of the first `size` entries of the pool. Reference: `ops.keep_best.by_torch`."""
    pool_tokens, pool_scores, pool_parents = pool
    num, capacity = pool_tokens.shape
    width, device = 1 + min(nodes - 1, size), pool_tokens.device
    tokens_BW = torch.empty((num, width), dtype=torch.int64, device=device)
    parents_BW = torch.empty((num, width), dtype=torch.int64, device=device)
    sizes_B = torch.empty((num,), dtype=torch.int64, device=device)
    score_BW = torch.empty((num, width), dtype=torch.float32, device=device)
    if num:
        padded = block_of(size)
        options = launch_options(pdl)
        keep_best_kernel[(num,)](
            pool_tokens, pool_scores, pool_parents, roots_B1.contiguous(),
            tokens_BW, parents_BW, sizes_B, score_BW, size, capacity, width,
            padded, block_of(width), is_chain, pdl,
            num_warps=1 if padded <= 64 else 4 if padded <= 1024 else 8, **options,
        )  # fmt: skip
    return tokens_BW, parents_BW, sizes_B, score_BW
