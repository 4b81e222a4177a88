"""The kernels of `ops.lookup`: prompt lookup in two launches.

Promises: the same proposals as `ops.lookup.by_torch`: of all earlier places the
longest match wins, then the latest. Texts are read where they are, and past a text's end nothing is.
Does not know: drafters, what a proposal is good for.

Legend: A seats, C columns (positions), B sequences, Z chunks of columns, W nodes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import enter, launch_options

_BLOCK = 1024


@triton.jit
def find(
    history, seats, roots, keys, stride, num_columns, num_chunks,
    MAX_MATCH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (sequence, chunk): the best place of the chunk as (tokens that agree, column)."""
    enter(PDL)
    b, chunk = tl.program_id(0), tl.program_id(1)
    text = history + tl.load(seats + b) * stride
    root = tl.load(roots + b).to(tl.int32)
    column = chunk * BLOCK + tl.arange(0, BLOCK)
    length = tl.zeros((BLOCK,), tl.int32)
    if chunk * BLOCK < root:
        agrees = column < root
        for back in range(MAX_MATCH):
            wanted = tl.load(text + tl.maximum(root - back, 0))
            agrees = agrees & (column >= back)
            token = tl.load(text + column - back, mask=agrees, other=-1)
            agrees = agrees & (token == wanted)
            length += agrees.to(tl.int32)
    key = (length.to(tl.int64) << 32) | column.to(tl.int64)
    best = tl.max(tl.where(column < num_columns, key, -1), axis=0)
    tl.store(keys + b * num_chunks + chunk, best)


@triton.jit
def follow(
    history, seats, roots, keys, tokens, parents, sizes, stride, num_columns, num_chunks,
    min_match, width,
    CHUNKS_PADDED: tl.constexpr, WIDTH_PADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (sequence): the root and what followed the best place, as a chain; a match that runs
    into the end of the text goes on periodically."""
    enter(PDL)
    b = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, CHUNKS_PADDED)
    best = tl.max(tl.load(keys + b * num_chunks + chunk, mask=chunk < num_chunks, other=-1), axis=0)
    place = (best & 0x7FFFFFFF).to(tl.int32)
    is_found = (best >> 32) >= min_match
    text = history + tl.load(seats + b) * stride
    root = tl.load(roots + b).to(tl.int32)
    node = tl.arange(0, WIDTH_PADDED)
    after = place + 1 + tl.maximum(node - 1, 0) % tl.maximum(root - place, 1)
    source = tl.where(node == 0, root, tl.minimum(after, num_columns - 1))
    is_node = node < width
    token = tl.load(text + source, mask=is_node, other=0)
    tl.store(tokens + b * width + node, token, mask=is_node)
    tl.store(parents + b * width + node, (node - 1).to(tl.int64), mask=is_node)
    tl.store(sizes + b, tl.where(is_found, width, 1).to(tl.int64))


def propose(
    history_AC: torch.Tensor,
    seats_B: torch.Tensor,
    roots_B: torch.Tensor,
    num_columns: int,
    width: int,
    min_match: int,
    max_match: int,
    *,
    pdl: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens [B, W], parents [B, W] and sizes [B] (1 or W) of the chains that prompt lookup proposes.
    Reference: `ops.lookup.by_torch`.

    num_columns: bound of all lengths. roots_B: position of each sequence's last token.
    """
    num, device = len(seats_B), history_AC.device
    tokens_BW = torch.empty((num, width), dtype=torch.int64, device=device)
    parents_BW = torch.empty((num, width), dtype=torch.int64, device=device)
    sizes_B = torch.empty((num,), dtype=torch.int64, device=device)
    if not num:
        return tokens_BW, parents_BW, sizes_B
    num_chunks = triton.cdiv(num_columns, _BLOCK)
    keys_BZ = torch.empty((num, num_chunks), dtype=torch.int64, device=device)
    stride, options = history_AC.stride(0), launch_options(pdl)
    find[(num, num_chunks)](
        history_AC, seats_B, roots_B, keys_BZ, stride, num_columns, num_chunks,
        max_match, _BLOCK, pdl, num_warps=4, **options,
    )  # fmt: skip
    follow[(num,)](
        history_AC, seats_B, roots_B, keys_BZ, tokens_BW, parents_BW, sizes_B,
        stride, num_columns, num_chunks, min_match, width,
        triton.next_power_of_2(num_chunks), triton.next_power_of_2(width), pdl,
        num_warps=1, **options,
    )  # fmt: skip
    return tokens_BW, parents_BW, sizes_B
