"""The kernel of `ops.route`: the experts of each row and their weights, one program a row.

Promises: a row's result depends on its own logits alone; of equal scores the lowest index is chosen;
indices are always those of experts, no index twice in a row.
Does not know: what the experts compute.

Legend: T rows, E experts to choose from, K experts of a row, Z parts of a sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import enter, launch_options
from eyas.kernels.sort_keys import LOWEST, index_of, key_of, largest


@triton.jit
def route_kernel(
    logits_ZTE,
    bias_E,
    correction_E,
    fixed_TK,
    experts_TK,
    weights_TK,
    num_experts,
    part_stride,
    row_stride,
    scale,
    NUM_PARTS: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    PADDED: tl.constexpr,
    SCORING: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_CORRECTION: tl.constexpr,
    IS_FIXED: tl.constexpr,
    NORMALIZES: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    NUM_CHOSEN_GROUPS: tl.constexpr,
    GROUP_SIZE_SCORED: tl.constexpr,
    PADDED_GROUPS: tl.constexpr,
    NUM_SHARED: tl.constexpr,
    PADDED_SHARED: tl.constexpr,
    GATES_SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """PADDED, PADDED_GROUPS, PADDED_SHARED, BLOCK: the next powers of two of the numbers of chosen
    experts, of groups, of shared experts and of experts to choose from."""
    enter(PDL)
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    is_real = expert < num_experts
    at = logits_ZTE + row * row_stride + expert
    logits = tl.load(at, mask=is_real, other=float("-inf"))
    for _part in tl.static_range(1, NUM_PARTS):
        at += part_stride
        logits += tl.load(at, mask=is_real, other=0.0)
    if HAS_BIAS:
        logits += tl.load(bias_E + expert, mask=is_real, other=0.0)
    if SCORING == "softmax":
        powers = tl.exp(logits - tl.max(logits, 0))
        scores = powers / tl.sum(powers, 0)
    elif SCORING == "sqrtsoftplus":
        power = tl.exp(-tl.abs(logits))
        above = 1.0 + power  # log(1 + x) that keeps small x (Kahan)
        kept = tl.where(above == 1.0, 1.0, above - 1.0)
        rest = tl.where(above == 1.0, power, tl.log(above) * (power / kept))
        scores = tl.sqrt(tl.maximum(logits, 0.0) + rest)
        scores = tl.where(is_real, scores, 0.0)
    else:
        scores = 1.0 / (1.0 + tl.exp(-logits))
    choice = scores
    if HAS_CORRECTION:
        choice += tl.load(correction_E + expert, mask=is_real, other=0.0)
    choice = tl.where(choice == choice, choice, float("-inf"))
    if NUM_GROUPS > 1:
        group = expert // (num_experts // NUM_GROUPS)
        column = tl.arange(0, PADDED_GROUPS)
        group_keys = tl.full((PADDED_GROUPS,), LOWEST, tl.int64)
        for of in range(NUM_GROUPS):
            rest = tl.where(is_real & (group == of), key_of(choice, expert), LOWEST)
            best = tl.max(rest, 0)
            score = tl.sum(tl.where(expert == index_of(best), choice, 0.0), 0)
            for _rank in range(1, GROUP_SIZE_SCORED):
                rest = tl.where(rest == best, LOWEST, rest)
                best = tl.max(rest, 0)
                score += tl.sum(tl.where(expert == index_of(best), choice, 0.0), 0)
            group_keys = tl.where(column == of, key_of(score, column), group_keys)
        is_chosen = expert < 0
        for _rank in range(NUM_CHOSEN_GROUPS):
            best = tl.max(group_keys, 0)
            is_chosen = is_chosen | (group == index_of(best))
            group_keys = tl.where(group_keys == best, LOWEST, group_keys)
        choice = tl.where(is_chosen, choice, float("-inf"))
    keys = tl.where(is_real, key_of(choice, expert), LOWEST)
    rank = tl.arange(0, PADDED)
    is_rank = rank < NUM_CHOSEN
    if IS_FIXED:
        chosen = tl.load(fixed_TK + row * NUM_CHOSEN + rank, mask=is_rank, other=0)
    else:
        chosen = index_of(largest(keys, NUM_CHOSEN, PADDED))
    of_chosen = tl.where(expert[None, :] == chosen[:, None], scores[None, :], 0.0)
    weights = tl.sum(of_chosen, 1)
    if NORMALIZES:
        weights = weights / (tl.sum(tl.where(is_rank, weights, 0.0), 0) + 1e-20)
    first = row * (NUM_SHARED + NUM_CHOSEN)
    at = first + NUM_SHARED + rank
    tl.store(experts_TK + at, chosen, mask=is_rank)
    tl.store(weights_TK + at, weights * scale, mask=is_rank)
    if NUM_SHARED > 0:
        shared = tl.arange(0, PADDED_SHARED)
        is_shared = shared < NUM_SHARED
        weight = 1.0
        if GATES_SHARED:
            gate_at = logits_ZTE + row * row_stride + num_experts
            gate = tl.load(gate_at)
            for _part in tl.static_range(1, NUM_PARTS):
                gate_at += part_stride
                gate += tl.load(gate_at)
            weight = 1.0 / (1.0 + tl.exp(-gate))
        tl.store(experts_TK + first + shared, num_experts + shared, mask=is_shared)
        tl.store(weights_TK + first + shared, weight, mask=is_shared)


def warps_for(block: int) -> int:
    """Warps for so many experts: few, as each choice of an expert is a maximum over all of them, which
    within a warp needs no barrier."""
    return 1 if block <= 256 else 4


def route(
    logits: torch.Tensor,
    bias_E: torch.Tensor | None,
    correction_E: torch.Tensor | None,
    fixed_TK: torch.Tensor | None = None,
    *,
    num_chosen: int,
    scoring: str,
    normalizes: bool,
    scale: float,
    num_groups: int,
    num_chosen_groups: int,
    group_size_scored: int,
    num_shared: int = 0,
    gates_shared: bool = False,
    pdl: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each row int32 [T, K], and their weights float32 [T, K]; the reference is
    `ops.route.by_torch`, the facts are those of `ops.route.Routing`."""
    num_rows, num_experts = logits.shape[-2], logits.shape[-1] - gates_shared
    assert logits.dtype == torch.float32 and logits.stride(-1) == 1
    assert fixed_TK is None or (fixed_TK.dtype == torch.int32 and fixed_TK.is_contiguous())
    num_parts, part_stride = (len(logits), logits.stride(0)) if logits.dim() == 3 else (1, 0)
    experts_TK = logits.new_empty((num_rows, num_shared + num_chosen), dtype=torch.int32)
    weights_TK = torch.empty_like(experts_TK, dtype=torch.float32)
    if num_rows:
        block = triton.next_power_of_2(num_experts)
        route_kernel[(num_rows,)](
            logits,
            bias_E,
            correction_E,
            fixed_TK,
            experts_TK,
            weights_TK,
            num_experts,
            part_stride,
            logits.stride(-2),
            scale,
            NUM_PARTS=num_parts,
            NUM_CHOSEN=num_chosen,
            PADDED=triton.next_power_of_2(num_chosen),
            SCORING=scoring,
            HAS_BIAS=bias_E is not None,
            HAS_CORRECTION=correction_E is not None,
            IS_FIXED=fixed_TK is not None,
            NORMALIZES=normalizes,
            NUM_GROUPS=num_groups,
            NUM_CHOSEN_GROUPS=num_chosen_groups,
            GROUP_SIZE_SCORED=group_size_scored,
            PADDED_GROUPS=triton.next_power_of_2(num_groups),
            NUM_SHARED=num_shared,
            PADDED_SHARED=triton.next_power_of_2(num_shared),
            GATES_SHARED=gates_shared,
            BLOCK=block,
            num_warps=warps_for(block),
            PDL=pdl,
            **launch_options(pdl),
        )
    return experts_TK, weights_TK
