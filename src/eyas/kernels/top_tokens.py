"""The kernels of `ops.top_tokens`: the best next tokens, by probability or by probability and noise.

Promises: best first, ties to the lowest id; a row's result depends on its logits, its sequence's
parameters and its position, whatever else is in the call; ids are always ids of the vocabulary.
Does not know: trees, networks, penalties.

One pass over the logits leaves the best score of every group of neighbouring ids. The J best ids lie in
the J groups whose best score is highest (of equal groups the first), so a second kernel ranks groups,
looks at their ids again, and ranks those.

Legend: R rows, U candidates (a draft vocabulary), J children, B sequences, Z groups, E entries.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.choose import gumbel_of_words, philox_words
from eyas.kernels.launch import enter, launch_options
from eyas.kernels.sort_keys import LOWEST, index_of, key_of, largest, score_of

_BLOCK = 1024
_LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit
def _noise(
    target_ids, first_J, id_JZ, is_real_JZ, position, seed, choice,
    HAS_TARGET: tl.constexpr, J: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """[J, GROUP] noise of groups of ids that begin at first_J: Philox4x32-10 with counter (position,
    id // 4, choice, 0); where ids are the target's own, four neighbours share one call."""
    if HAS_TARGET:
        target_JZ = tl.load(target_ids + id_JZ, mask=is_real_JZ, other=0).to(tl.int32)
        zero = tl.zeros_like(target_JZ)
        position_JZ, choice_JZ = zero + position.to(tl.int32), zero + choice.to(tl.int32)
        w0, w1, w2, w3 = tl.philox(seed, position_JZ, target_JZ // 4, choice_JZ, zero)
        lane = target_JZ % 4
        low = tl.where(lane == 0, w0, w1)
        high = tl.where(lane == 2, w2, w3)
        words = tl.where(lane < 2, low, high)
    else:
        counter = first_J[:, None] // 4 + tl.arange(0, GROUP // 4)[None, :]
        counter_Q = tl.reshape(counter, (J * GROUP // 4,))
        words = tl.reshape(philox_words(seed, position, choice, counter_Q), (J, GROUP))
    return gumbel_of_words(words)


@triton.jit
def _scores(
    logits, target_ids, sequence, position, temperature, seed, choice, beta,
    row, num_candidates, stride, temperature_stride, seed_stride, choice_stride, beta_stride,
    first_J, is_real_J,
    HAS_TEMPERATURE: tl.constexpr, HAS_NOISE: tl.constexpr, HAS_TARGET: tl.constexpr,
    J: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Scores [J, GROUP] of a row before their softmax, the ids, and which of them exist. What is not
    a number may never be chosen."""
    id_JZ = first_J[:, None] + tl.arange(0, GROUP)[None, :]
    is_real_JZ = is_real_J[:, None] & (id_JZ < num_candidates)
    start = logits + row.to(tl.int64) * stride
    x_JZ = tl.load(start + id_JZ, mask=is_real_JZ, other=float("-inf")).to(tl.float32)
    x_JZ = tl.where(x_JZ == x_JZ, x_JZ, float("-inf"))
    if HAS_TEMPERATURE:
        of = tl.load(sequence + row)
        heat = tl.load(temperature + of * temperature_stride).to(tl.float32)
        if heat > 0:
            x_JZ = x_JZ / heat
            if HAS_NOISE:
                noise_JZ = _noise(
                    target_ids, first_J, id_JZ, is_real_JZ, tl.load(position + row),
                    tl.load(seed + of * seed_stride), tl.load(choice + of * choice_stride),
                    HAS_TARGET, J, GROUP,
                )  # fmt: skip
                trust = tl.load(beta + of * beta_stride).to(tl.float32)
                never = x_JZ == float("-inf")
                x_JZ = tl.where(never, x_JZ, trust * (x_JZ + noise_JZ))
    return tl.minimum(x_JZ, _LARGEST), id_JZ, is_real_JZ


@triton.jit
def survey(
    logits, target_ids, sequence, position, temperature, seed, choice, beta, maxima, sums,
    num_candidates, num_groups,
    stride, temperature_stride, seed_stride, choice_stride, beta_stride,
    HAS_TEMPERATURE: tl.constexpr, HAS_NOISE: tl.constexpr, HAS_TARGET: tl.constexpr,
    GROUP: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (row, chunk): the best score of each group of ids and the sum of exponentials to it."""
    enter(PDL)
    J: tl.constexpr = BLOCK // GROUP
    row = tl.program_id(0)
    group_J = tl.program_id(1) * J + tl.arange(0, J)
    is_real_J = group_J < num_groups
    x_JZ, _, _ = _scores(
        logits, target_ids, sequence, position, temperature, seed, choice, beta,
        row, num_candidates, stride, temperature_stride, seed_stride, choice_stride, beta_stride,
        group_J * GROUP, is_real_J,
        HAS_TEMPERATURE, HAS_NOISE, HAS_TARGET, J, GROUP,
    )  # fmt: skip
    max_J = tl.max(x_JZ, axis=1)
    base_J = tl.where(max_J == float("-inf"), 0.0, max_J)
    sum_J = tl.sum(tl.exp(x_JZ - base_J[:, None]), axis=1)
    place_J = row.to(tl.int64) * num_groups + group_J
    tl.store(maxima + place_J, max_J, mask=is_real_J)
    tl.store(sums + place_J, sum_J, mask=is_real_J)


@triton.jit
def select(
    logits, target_ids, sequence, position, temperature, seed, choice, beta, maxima, sums,
    scores, ids, num_candidates, num_groups,
    stride, temperature_stride, seed_stride, choice_stride, beta_stride,
    HAS_TEMPERATURE: tl.constexpr, HAS_NOISE: tl.constexpr, HAS_TARGET: tl.constexpr,
    GROUP: tl.constexpr, GROUPS_PADDED: tl.constexpr, LOOKED_AT: tl.constexpr,
    NUM: tl.constexpr, NUM_PADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (row): of the LOOKED_AT best groups the NUM best ids, their scores normalised."""
    enter(PDL)
    row = tl.program_id(0)
    group_Z = tl.arange(0, GROUPS_PADDED)
    is_group_Z = group_Z < num_groups
    place_Z = row.to(tl.int64) * num_groups + group_Z
    max_Z = tl.load(maxima + place_Z, mask=is_group_Z, other=float("-inf"))
    sum_Z = tl.load(sums + place_Z, mask=is_group_Z, other=0.0)
    highest = tl.max(max_Z, axis=0)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.sum(sum_Z * tl.exp(max_Z - base), axis=0)
    norm = tl.log(tl.maximum(total, 1.0))  # less where nothing may be chosen, and only there
    groups = largest(tl.where(is_group_Z, key_of(max_Z, group_Z), LOWEST), LOOKED_AT, NUM_PADDED)
    column = tl.arange(0, NUM_PADDED)
    is_looked_at = column < LOOKED_AT
    first = tl.where(is_looked_at, index_of(groups), 0) * GROUP
    x, member, is_real = _scores(
        logits, target_ids, sequence, position, temperature, seed, choice, beta,
        row, num_candidates, stride, temperature_stride, seed_stride, choice_stride, beta_stride,
        first, is_looked_at,
        HAS_TEMPERATURE, HAS_NOISE, HAS_TARGET, NUM_PADDED, GROUP,
    )  # fmt: skip
    keys = tl.where(is_real, key_of(x, member), LOWEST)
    best = largest(tl.ravel(keys, can_reorder=True), NUM, NUM_PADDED)
    is_wanted = column < NUM
    value = score_of(best)
    score = tl.where(value == float("-inf"), value, tl.minimum(value - base - norm, 0.0))
    found = tl.where(is_wanted, index_of(best), 0)
    if HAS_TARGET:
        found_id = tl.load(target_ids + found, mask=is_wanted, other=0)
    else:
        found_id = found.to(tl.int64)
    out = row.to(tl.int64) * NUM + column
    tl.store(scores + out, score, mask=is_wanted)
    tl.store(ids + out, found_id, mask=is_wanted)


def top(
    logits_RU: torch.Tensor,
    num: int,
    *,
    target_ids_U: torch.Tensor | None = None,
    sequence_R: torch.Tensor | None = None,
    position_R: torch.Tensor | None = None,
    temperature_B: torch.Tensor | None = None,
    seed_B: torch.Tensor | None = None,
    choice_B: torch.Tensor | None = None,
    beta_B: torch.Tensor | None = None,
    pdl: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `num` best of each row: float32 log-probabilities [R, J] and target ids [R, J].

    Reference: `ops.top_tokens.by_torch`. Rows of sequences with a temperature above 0 are divided
    by it, and with beta_B scored log_softmax(beta * (x / T + noise)) over all U; the reference adds
    noise to a shortlist alone. Other rows, and all rows if no temperature is given: log_softmax(x).
    num: at most U; the time grows with it.
    """
    num_rows, num_candidates = logits_RU.shape
    device = logits_RU.device
    scores_RJ = torch.empty((num_rows, num), dtype=torch.float32, device=device)
    ids_RJ = torch.empty((num_rows, num), dtype=torch.int64, device=device)
    if not num_rows:
        return scores_RJ, ids_RJ
    assert num <= num_candidates, "more children than there are candidates"
    if logits_RU.stride(1) != 1:
        logits_RU = logits_RU.contiguous()
    group = 64 if num_candidates <= 65536 else 128
    num_groups = triton.cdiv(num_candidates, group)
    maxima_RZ = torch.empty((num_rows, num_groups), dtype=torch.float32, device=device)
    sums_RZ = torch.empty((num_rows, num_groups), dtype=torch.float32, device=device)
    options = launch_options(pdl)
    given = (
        logits_RU,
        target_ids_U,
        sequence_R,
        position_R,
        temperature_B,
        seed_B,
        choice_B,
        beta_B,
        maxima_RZ,
        sums_RZ,
    )
    has_temperature, has_target = temperature_B is not None, target_ids_U is not None
    has_noise = has_temperature and beta_B is not None
    of_sequences = (temperature_B, seed_B, choice_B, beta_B)
    strides = [0 if each is None else each.stride(0) for each in of_sequences]
    survey[(num_rows, triton.cdiv(num_candidates, _BLOCK))](
        *given, num_candidates, num_groups, logits_RU.stride(0), *strides,
        has_temperature, has_noise, has_target, group, _BLOCK, pdl,
        num_warps=4, **options,
    )  # fmt: skip
    groups_padded, padded = triton.next_power_of_2(num_groups), triton.next_power_of_2(num)
    entries = max(groups_padded, padded * group)
    num_warps = 4 if entries <= 1024 else 8 if entries <= 2048 else 16
    select[(num_rows,)](
        *given, scores_RJ, ids_RJ, num_candidates, num_groups, logits_RU.stride(0), *strides,
        has_temperature, has_noise, has_target, group, groups_padded, min(num, num_groups),
        num, padded, pdl, num_warps=num_warps, **options,
    )  # fmt: skip
    return scores_RJ, ids_RJ
