"""Thresholds of top-k, top-p and min-p without a sort: the least logit of each row that all three keep.

Every id stands in a histogram of its distance below the row's best: coarse bins up to 32 below it (what
is further down has less than 2^-46 of the best one's probability, and no noise lifts it), then fine
bins of the coarse one in which the threshold lies. A bin counts its ids and sums their probabilities,
both as whole numbers in one 64-bit word, so that the order of additions does not matter; a search from
the best down finds the bin where enough ids, or enough probability, have been met.

Promises: a row's threshold depends on its own logits and parameters; ties are kept, and ids whose
distances share a fine bin (2^-18) are ties. Every threshold is a logit of the row, or -inf where
all that could be chosen is kept. Rows without filters are not read twice.
Does not know: the choice.

Legend: R rows, V vocabulary, B sequences, K mask words, Z chunks, E bins, X counters (four ids each),
F facts of a search.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.choose import (
    COLUMNS,
    TILE,
    load_processed,
    tiles_of_a_program,
)
from eyas.kernels.launch import enter, launch_options

_MANY = 512
"""Rows that share one piece of scratch memory."""
NUM_COARSE = 2048
NUM_FINE = 4096
_COARSE = tl.constexpr(NUM_COARSE)
_FINE = tl.constexpr(NUM_FINE)
_PER_UNIT = tl.constexpr(64.0)
"""Coarse bins in a distance of 1."""
_COUNT_BIT = tl.constexpr(44)
_MASS_MASK = tl.constexpr(2**44 - 1)
_RELATIVE = tl.constexpr(2.0**24)
"""An id's word: 1 above bit 44, and 2^24 times its probability relative to its coarse bin's best."""
_ABSOLUTE = tl.constexpr(2.0**16)
"""A coarse bin's sum to units of 2^-40 of the best one's probability."""
_SLACK = tl.constexpr(1.0 - 2.0**-21)
"""A goal counts as reached if only float32 rounding separates a sum from it."""
_NONE = tl.constexpr(-1)
_UNKNOWN = tl.constexpr(-1)
_NUM_FACTS = 4
"""Of a search: its coarse bin (-1 for none), how much of that bin it needs (ids or relative mass), how
much mass is above the bin, and the mass that top-k left (-1 for all of it)."""


@triton.jit
def _best_of(maxima, row, num_chunks, BLOCK_C: tl.constexpr):
    """The best logit of a row from those of its chunks."""
    chunk_Z = tl.arange(0, BLOCK_C)
    at_Z = row * num_chunks + chunk_Z
    return tl.max(tl.load(maxima + at_Z, mask=chunk_Z < num_chunks, other=float("-inf")))


@triton.jit
def _is_filtered(top_k, top_p, min_p, temperature):
    return (temperature > 0.0) & ((top_k > 0) | (top_p < 1.0) | (min_p > 0.0))


@triton.jit(do_not_specialize=("num_words",), do_not_specialize_on_alignment=COLUMNS)
def _best_kernel(
    logits, sequence, temperature, top_k, top_p, min_p, words, maxima, coarse, fine, least,
    vocab, num_words, stride, words_stride, temperature_stride, top_k_stride, top_p_stride,
    min_p_stride,
    HAS_MASK: tl.constexpr, HAS_BINS: tl.constexpr, NUM_TILES: tl.constexpr,
    NUM_COUNTERS: tl.constexpr, BLOCK_N: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The best logit of one chunk of one row; also sets the row's bins to zero."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    enter(PDL)
    b = tl.load(sequence + row)
    warmth = tl.load(temperature + b * temperature_stride)
    k, p = tl.load(top_k + b * top_k_stride), tl.load(top_p + b * top_p_stride)
    if _is_filtered(k, p, tl.load(min_p + b * min_p_stride), warmth):
        best_X4 = tl.full((NUM_COUNTERS, 4), float("-inf"), tl.float32)
        for tile in tl.static_range(NUM_TILES):
            counter_X = (chunk * NUM_TILES + tile) * NUM_COUNTERS + tl.arange(0, NUM_COUNTERS)
            x_X4 = load_processed(
                logits, words, row, counter_X, vocab, num_words, stride, words_stride, warmth,
                HAS_MASK,
            )  # fmt: skip
            best_X4 = tl.where(x_X4 > best_X4, x_X4, best_X4)
        tl.store(maxima + row * tl.num_programs(1) + chunk, tl.max(best_X4))
        if HAS_BINS:
            bin_E = chunk * BLOCK_N + tl.arange(0, BLOCK_N)
            row_fine = row.to(tl.int64) * _FINE
            nothing_E = tl.zeros((BLOCK_N,), tl.int64)
            tl.store(coarse + row.to(tl.int64) * _COARSE + bin_E, nothing_E, mask=bin_E < _COARSE)
            tl.store(fine + row_fine + bin_E, nothing_E, mask=bin_E < _FINE)
            tl.store(least + row_fine + bin_E, float("inf"), mask=bin_E < _FINE)


@triton.jit
def _weight(below, bin_start):
    """The word of an id that stands `below` the best, in a bin that starts at `bin_start`."""
    mass = tl.exp(bin_start - below) * _RELATIVE + 0.5
    return (tl.full((), 1, tl.int64) << _COUNT_BIT) + mass.to(tl.int64)


@triton.jit(do_not_specialize=("num_words",), do_not_specialize_on_alignment=COLUMNS)
def _count_kernel(
    logits, sequence, temperature, top_k, top_p, words, maxima, facts, bins, least,
    vocab, num_words, stride, words_stride, temperature_stride, top_k_stride, top_p_stride,
    num_chunks,
    IS_COARSE: tl.constexpr, HAS_MASK: tl.constexpr, NUM_TILES: tl.constexpr,
    NUM_COUNTERS: tl.constexpr, BLOCK_C: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Put the ids of one chunk of one row into the row's coarse bins, or those of the coarse bin that
    is searched into its fine ones, with the least logit of each."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    enter(PDL)
    b = tl.load(sequence + row)
    warmth = tl.load(temperature + b * temperature_stride)
    if IS_COARSE:
        k, p = tl.load(top_k + b * top_k_stride), tl.load(top_p + b * top_p_stride)
        is_wanted = (warmth > 0.0) & ((k > 0) | (p < 1.0))
        searched = 0
    else:
        searched = tl.load(facts + row * 4).to(tl.int32)
        is_wanted = searched >= 0
    if is_wanted:
        best = _best_of(maxima, row, num_chunks, BLOCK_C)
        for tile in tl.static_range(NUM_TILES):
            counter_X = (chunk * NUM_TILES + tile) * NUM_COUNTERS + tl.arange(0, NUM_COUNTERS)
            x_X4 = load_processed(
                logits, words, row, counter_X, vocab, num_words, stride, words_stride, warmth,
                HAS_MASK,
            )  # fmt: skip
            below_X4 = best - x_X4  # not a number where nothing is finite: then in no bin
            is_near_X4 = (below_X4 >= 0.0) & (below_X4 < _COARSE / _PER_UNIT)
            place_X4 = tl.where(is_near_X4, below_X4, 0.0) * _PER_UNIT
            coarse_X4 = place_X4.to(tl.int32)
            start_X4 = coarse_X4.to(tl.float32) * (1.0 / _PER_UNIT)
            word_X4 = _weight(tl.where(is_near_X4, below_X4, 0.0), start_X4)
            if IS_COARSE:
                row_bins = bins + row.to(tl.int64) * _COARSE
                tl.atomic_add(row_bins + coarse_X4, word_X4, mask=is_near_X4, sem="relaxed")
            else:
                is_in_X4 = is_near_X4 & (coarse_X4 == searched)
                fine_X4 = ((place_X4 - coarse_X4.to(tl.float32)) * _FINE).to(tl.int32)
                at_X4 = row.to(tl.int64) * _FINE + fine_X4
                tl.atomic_add(bins + at_X4, word_X4, mask=is_in_X4, sem="relaxed")
                tl.atomic_min(least + at_X4, x_X4, mask=is_in_X4, sem="relaxed")


@triton.jit
def _masses(word_E, bin_E):
    """The mass of coarse bins, whole numbers of 2^-40 of the best id's."""
    scale_E = tl.exp(-(bin_E.to(tl.float64) / _PER_UNIT)) * _ABSOLUTE
    return ((word_E & _MASS_MASK).to(tl.float64) * scale_E + 0.5).to(tl.int64)


@triton.jit
def _before(amount_E, goal):
    """The number of leading entries whose sum is below `goal`, and that sum."""
    met_E = tl.cumsum(amount_E, 0)
    is_short_E = met_E < goal
    return tl.sum(is_short_E.to(tl.int32)), tl.max(tl.where(is_short_E, met_E, 0))


@triton.jit
def _search_count(facts_row, word_E, bin_E, goal):
    """The coarse bin of the `goal`-th id, and how many of its ids it takes to get there."""
    found, num_above = _before(word_E >> _COUNT_BIT, goal)
    mass_above = tl.sum(tl.where(bin_E < found, _masses(word_E, bin_E), 0))
    tl.store(facts_row, tl.where(found < _COARSE, found, _NONE).to(tl.int64))
    tl.store(facts_row + 1, goal - num_above)
    tl.store(facts_row + 2, mass_above)
    tl.store(facts_row + 3, tl.full((), _UNKNOWN, tl.int64))


@triton.jit
def _search_mass(facts_row, word_E, bin_E, top_p, left):
    """The coarse bin in which the likeliest ids' mass reaches top_p of what is left, and how much of
    its own mass that takes."""
    mass_E = _masses(word_E, bin_E)
    whole = tl.where(left < 0, tl.sum(mass_E), left)
    goal = (whole.to(tl.float64) * top_p.to(tl.float64) * _SLACK).to(tl.int64)
    found, mass_above = _before(mass_E, tl.maximum(goal, 1))
    scale = tl.exp(-(found.to(tl.float64) / _PER_UNIT)) * _ABSOLUTE
    need = ((tl.maximum(goal, 1) - mass_above).to(tl.float64) / scale).to(tl.int64)
    tl.store(facts_row, tl.where(found < _COARSE, found, _NONE).to(tl.int64))
    tl.store(facts_row + 1, tl.maximum(need, 1))
    tl.store(facts_row + 2, mass_above)


@triton.jit(do_not_specialize_on_alignment=COLUMNS)
def _begin_kernel(
    sequence, temperature, top_k, top_p, min_p, maxima, coarse, facts, floor,
    temperature_stride, top_k_stride, top_p_stride, min_p_stride, num_chunks,
    BY_COUNT: tl.constexpr, BY_MASS: tl.constexpr, BLOCK_C: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row: min-p's threshold, and where the first search goes."""
    row = tl.program_id(0)
    enter(PDL)
    b = tl.load(sequence + row)
    warmth = tl.load(temperature + b * temperature_stride)
    k, p = tl.load(top_k + b * top_k_stride), tl.load(top_p + b * top_p_stride)
    low = tl.load(min_p + b * min_p_stride)
    least = float("-inf")
    if (low > 0.0) & (warmth > 0.0):
        best = _best_of(maxima, row, num_chunks, BLOCK_C)
        least = tl.where(best < float("inf"), best + tl.log(low), float("-inf"))
    tl.store(floor + row, least)
    facts_row = facts + row * 4
    if BY_COUNT or BY_MASS:
        tl.store(facts_row, tl.full((), _NONE, tl.int64))
        tl.store(facts_row + 3, tl.full((), _UNKNOWN, tl.int64))
        bin_E = tl.arange(0, _COARSE)
        row_coarse = coarse + row.to(tl.int64) * _COARSE
        if BY_COUNT:
            if (k > 0) & (warmth > 0.0):
                _search_count(facts_row, tl.load(row_coarse + bin_E), bin_E, k)
        elif (p < 1.0) & (warmth > 0.0):
            left = tl.full((), _UNKNOWN, tl.int64)
            _search_mass(facts_row, tl.load(row_coarse + bin_E), bin_E, p, left)


@triton.jit(do_not_specialize_on_alignment=COLUMNS)
def _settle_kernel(
    sequence, temperature, top_p, coarse, fine, least, facts, floor,
    temperature_stride, top_p_stride,
    BY_COUNT: tl.constexpr, THEN_BY_MASS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row: the fine bin that a search ends in, its least logit as the floor; then where the search
    by mass goes, with the fine bins emptied for it."""
    row = tl.program_id(0)
    enter(PDL)
    facts_row = facts + row * 4
    found = tl.load(facts_row)
    left = tl.full((), _UNKNOWN, tl.int64)
    if found >= 0:
        bin_E = tl.arange(0, _FINE)
        row_fine = row.to(tl.int64) * _FINE
        word_E = tl.load(fine + row_fine + bin_E)
        own_E = word_E & _MASS_MASK
        amount_E = (word_E >> _COUNT_BIT) if BY_COUNT else own_E
        need = tl.minimum(tl.load(facts_row + 1), tl.sum(amount_E))
        settled, _ = _before(amount_E, need)
        threshold = tl.load(least + row_fine + settled)
        tl.store(floor + row, tl.maximum(tl.load(floor + row), threshold))
        if THEN_BY_MASS:
            scale = tl.exp(-(found.to(tl.float64) / _PER_UNIT)) * _ABSOLUTE
            kept = tl.sum(tl.where(bin_E <= settled, own_E, 0)).to(tl.float64) * scale
            left = tl.load(facts_row + 2) + (kept + 0.5).to(tl.int64)
            tl.debug_barrier()
            tl.store(fine + row_fine + bin_E, tl.zeros((_FINE,), tl.int64))
            tl.store(least + row_fine + bin_E, tl.full((_FINE,), float("inf"), tl.float32))
    if THEN_BY_MASS:
        tl.debug_barrier()
        b = tl.load(sequence + row)
        warmth = tl.load(temperature + b * temperature_stride)
        p = tl.load(top_p + b * top_p_stride)
        tl.store(facts_row, tl.full((), _NONE, tl.int64))
        if (p < 1.0) & (warmth > 0.0):
            coarse_E = tl.arange(0, _COARSE)
            row_coarse = coarse + row.to(tl.int64) * _COARSE
            _search_mass(facts_row, tl.load(row_coarse + coarse_E), coarse_E, p, left)


def floors(
    logits_RV: torch.Tensor,
    sequence_R: torch.Tensor,
    temperature_B: torch.Tensor,
    top_k_B: torch.Tensor,
    top_p_B: torch.Tensor,
    min_p_B: torch.Tensor,
    mask_RK: torch.Tensor | None = None,
    *,
    any_top_k: bool = True,
    any_top_p: bool = True,
    pdl: bool = False,
) -> torch.Tensor:
    """[R] float32: the least logit over the temperature that top-k, then top-p of what it left, then
    min-p of what they left keep; -inf where a row keeps all that could be chosen.

    any_top_k, any_top_p: whether any sequence has one at all; without it, fewer kernels are launched.
    Torch: `ops.scale_and_filter.by_torch`, which keeps the ids that are not below the floor.
    """
    num_rows = len(logits_RV)
    floor_R = torch.empty(num_rows, dtype=torch.float32, device=logits_RV.device)
    scratch = None
    for start in range(0, num_rows, _MANY):
        rows = slice(start, start + _MANY)
        part_RV = logits_RV[rows]
        if scratch is None:
            scratch = _scratch(part_RV)
        _floors(
            part_RV,
            sequence_R[rows],
            (temperature_B, top_k_B, top_p_B, min_p_B),
            None if mask_RK is None else mask_RK[rows],
            floor_R[rows],
            scratch,
            (any_top_k, any_top_p),
            pdl,
        )
    return floor_R


def _scratch(logits_RV: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """maxima_RZ, coarse_RE, fine_RE, least_RE, facts_RP."""
    num_rows, vocab = logits_RV.shape
    device = logits_RV.device
    num_chunks = -(-vocab // TILE)
    return (
        torch.empty((num_rows, num_chunks), dtype=torch.float32, device=device),
        torch.empty((num_rows, NUM_COARSE), dtype=torch.int64, device=device),
        torch.empty((num_rows, NUM_FINE), dtype=torch.int64, device=device),
        torch.empty((num_rows, NUM_FINE), dtype=torch.float32, device=device),
        torch.empty((num_rows, _NUM_FACTS), dtype=torch.int64, device=device),
    )


def _floors(
    logits_RV: torch.Tensor,
    sequence_R: torch.Tensor,
    params: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    mask_RK: torch.Tensor | None,
    floor_R: torch.Tensor,
    scratch: tuple[torch.Tensor, ...],
    acting: tuple[bool, bool],
    pdl: bool,
) -> None:
    """The floors of as many rows as there is scratch memory for."""
    temperature_B, top_k_B, top_p_B, min_p_B = params
    maxima_RZ, coarse_RE, fine_RE, least_RE, facts_RP = scratch
    any_top_k, any_top_p = acting
    num_rows, vocab = logits_RV.shape
    num_tiles = tiles_of_a_program(num_rows)
    num_chunks = -(-vocab // (TILE * num_tiles))
    grid, row_grid = (num_rows, num_chunks), (num_rows,)
    block_c = triton.next_power_of_2(num_chunks)
    num_words = 0 if mask_RK is None else mask_RK.shape[1]
    words_stride = 0 if mask_RK is None else mask_RK.stride(0)
    stride = logits_RV.stride(0)
    t_stride, k_stride = temperature_B.stride(0), top_k_B.stride(0)
    p_stride, m_stride = top_p_B.stride(0), min_p_B.stride(0)
    has_mask, counters = mask_RK is not None, TILE // 4
    options = launch_options(pdl)
    _best_kernel[grid](
        logits_RV, sequence_R, temperature_B, top_k_B, top_p_B, min_p_B, mask_RK, maxima_RZ,
        coarse_RE, fine_RE, least_RE, vocab, num_words, stride, words_stride, t_stride, k_stride,
        p_stride, m_stride, has_mask, any_top_k or any_top_p, num_tiles, counters,
        triton.next_power_of_2(-(-NUM_FINE // num_chunks)), pdl, num_warps=4, **options,
    )  # fmt: skip

    def count(bins_RE: torch.Tensor, is_coarse: bool) -> None:
        _count_kernel[grid](
            logits_RV, sequence_R, temperature_B, top_k_B, top_p_B, mask_RK, maxima_RZ, facts_RP,
            bins_RE, least_RE, vocab, num_words, stride, words_stride, t_stride, k_stride,
            p_stride, num_chunks, is_coarse, has_mask, num_tiles, counters, block_c, pdl,
            num_warps=4, **options,
        )  # fmt: skip

    def settle(by_count: bool, then_by_mass: bool) -> None:
        _settle_kernel[row_grid](
            sequence_R, temperature_B, top_p_B, coarse_RE, fine_RE, least_RE, facts_RP, floor_R,
            t_stride, p_stride, by_count, then_by_mass, pdl, num_warps=8, **options,
        )  # fmt: skip

    if any_top_k or any_top_p:
        count(coarse_RE, True)
    _begin_kernel[row_grid](
        sequence_R, temperature_B, top_k_B, top_p_B, min_p_B, maxima_RZ, coarse_RE, facts_RP,
        floor_R, t_stride, k_stride, p_stride, m_stride, num_chunks, any_top_k, any_top_p, block_c,
        pdl, num_warps=8, **options,
    )  # fmt: skip
    if any_top_k:
        count(fine_RE, False)
        settle(True, any_top_p)
    if any_top_p:
        count(fine_RE, False)
        settle(False, False)
