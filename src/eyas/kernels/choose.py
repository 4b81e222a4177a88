"""The kernels of `ops.choose`: mask, temperature, keyed noise and argmax in one pass over the logits.

Promises: the logits are read once; the noise is that of `ops.noise` (Philox4x32-10, the same
words; the transform to float32 within a few units in the last place); lowest id wins a tie; a row that
cannot choose gives -1. A row's choice does not depend on the rows beside it. (Work is cut along the
vocabulary, and a maximum has no order, so the cut may follow the number of rows.)
Does not know: trees, what the parameters mean to a user.

Legend: R rows, V vocabulary, B sequences, K mask words, Z chunks of the vocabulary, X counters (four
neighbouring ids each).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import enter, launch_options

TILE = 1024
"""Ids that a program processes at a time."""
_MANY_ROWS = 16
_HIGHEST_UNIFORM = tl.constexpr(1.0 - 2.0**-24)
_NO_ID = tl.constexpr(2**31 - 1)
COLUMNS = ("sequence", "position", "temperature", "seed", "choice", "top_k", "top_p", "min_p")
"""Arguments that are read one number at a time, so their alignment needs no kernel of its own."""


def tiles_of_a_program(num_rows: int) -> int:
    """Return the tiles of a program: few rows are spread over more programs than many rows."""
    return 1 if num_rows < _MANY_ROWS else 4


@triton.jit
def allowed_ids(words, row, counter_X, num_words, stride):
    """[X, 4] whether the mask's bit of each id is set; ids past the mask have none."""
    at_X = counter_X // 8
    row_words = words + row.to(tl.int64) * stride
    word_X = tl.load(row_words + at_X, mask=at_X < num_words, other=0)
    shift_X4 = (counter_X % 8 * 4)[:, None] + tl.arange(0, 4)[None, :]
    return ((word_X[:, None] >> shift_X4) & 1) != 0


@triton.jit
def load_processed(
    logits, words, row, counter_X, vocab, num_words, stride, words_stride, temperature,
    HAS_MASK: tl.constexpr,
):  # fmt: skip
    """[X, 4] logits over the temperature (as they are at temperature 0), -inf where not allowed."""
    id_X4 = counter_X[:, None] * 4 + tl.arange(0, 4)[None, :]
    row_logits = logits + row.to(tl.int64) * stride
    x_X4 = tl.load(row_logits + id_X4, mask=id_X4 < vocab, other=float("-inf"))
    if HAS_MASK:
        is_allowed_X4 = allowed_ids(words, row, counter_X, num_words, words_stride)
        x_X4 = tl.where(is_allowed_X4, x_X4, float("-inf"))
    if (temperature > 0.0) & (temperature != 1.0):
        x_X4 = tl.div_rn(x_X4, temperature)
    return x_X4


@triton.jit
def philox_words(seed, position, choice, counter_X):
    """[X, 4] words of 32 bits for counters (position, counter_X, choice, 0)."""
    zero_X = tl.zeros_like(counter_X)
    position_X = zero_X + position.to(tl.int32)
    choice_X = zero_X + choice.to(tl.int32)
    a_X, b_X, c_X, d_X = tl.philox(seed, position_X, counter_X, choice_X, zero_X)
    pairs_X22 = tl.join(tl.join(a_X, c_X), tl.join(b_X, d_X))
    return tl.reshape(pairs_X22, (counter_X.shape[0], 4))


@triton.jit
def gumbel_of_words(words_X4):
    """-log(-log1p(-u)). log1p(-u) is the logarithm of what 1 - u rounds to, and the rounding error
    (which is known exactly) over it; 1 + u stands for 1 / (1 - u), for an error is only where u is
    below a half."""
    uniform = (words_X4.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    uniform = tl.minimum(uniform, _HIGHEST_UNIFORM)
    rest = 1.0 - uniform
    error = uniform - (1.0 - rest)
    exponential = error * (1.0 + uniform) - tl.log(rest)
    return -tl.log(exponential)


@triton.jit(do_not_specialize=("num_words",), do_not_specialize_on_alignment=COLUMNS)
def _partial_kernel(
    logits, sequence, position, temperature, seed, choice, words, floor, values, ids,
    vocab, num_words, stride, words_stride, temperature_stride, seed_stride, choice_stride,
    HAS_MASK: tl.constexpr, HAS_FLOOR: tl.constexpr, ANY_NOISE: tl.constexpr,
    NUM_TILES: tl.constexpr, NUM_COUNTERS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The best token of one chunk of one row: its value (infinite for NaN) and its lowest id."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    enter(PDL)
    warmth, least = 0.0, 0.0
    b, row_seed, row_choice, row_position = 0, 0, 0, 0
    if ANY_NOISE or HAS_FLOOR:
        b = tl.load(sequence + row)
        warmth = tl.load(temperature + b * temperature_stride)
    if ANY_NOISE:
        row_seed = tl.load(seed + b * seed_stride)
        row_choice = tl.load(choice + b * choice_stride)
        row_position = tl.load(position + row)
    if HAS_FLOOR:
        least = tl.load(floor + row)
    best_X4 = tl.full((NUM_COUNTERS, 4), float("-inf"), tl.float32)
    best_id_X4 = tl.full((NUM_COUNTERS, 4), _NO_ID, tl.int32)
    for tile in tl.static_range(NUM_TILES):
        counter_X = (chunk * NUM_TILES + tile) * NUM_COUNTERS + tl.arange(0, NUM_COUNTERS)
        x_X4 = load_processed(
            logits, words, row, counter_X, vocab, num_words, stride, words_stride, warmth,
            HAS_MASK,
        )  # fmt: skip
        if HAS_FLOOR:
            x_X4 = tl.where(x_X4 < least, float("-inf"), x_X4)
        if ANY_NOISE:
            if warmth > 0.0:
                x_X4 += gumbel_of_words(philox_words(row_seed, row_position, row_choice, counter_X))
        x_X4 = tl.where(x_X4 != x_X4, float("inf"), x_X4)
        id_X4 = counter_X[:, None] * 4 + tl.arange(0, 4)[None, :]
        is_better_X4 = x_X4 > best_X4
        best_id_X4 = tl.where(is_better_X4, id_X4, best_id_X4)
        best_X4 = tl.where(is_better_X4, x_X4, best_X4)
    best = tl.max(best_X4)
    best_id = tl.min(tl.where(best_X4 == best, best_id_X4, _NO_ID))
    at = row * tl.num_programs(1) + chunk
    tl.store(values + at, best)
    tl.store(ids + at, best_id)


@triton.jit
def _combine_kernel(values, ids, chosen, num_chunks, BLOCK_C: tl.constexpr, PDL: tl.constexpr):
    """Choose a row's token from the best tokens of its chunks."""
    row = tl.program_id(0)
    enter(PDL)
    chunk_Z = tl.arange(0, BLOCK_C)
    at_Z = row * num_chunks + chunk_Z
    value_Z = tl.load(values + at_Z, mask=chunk_Z < num_chunks, other=float("-inf"))
    id_Z = tl.load(ids + at_Z, mask=chunk_Z < num_chunks, other=_NO_ID)
    best = tl.max(value_Z)
    best_id = tl.min(tl.where(value_Z == best, id_Z, _NO_ID))
    is_choice = (best > float("-inf")) & (best < float("inf"))
    tl.store(chosen + row, tl.where(is_choice, best_id, -1).to(tl.int64))


def choose(
    logits_RV: torch.Tensor,
    sequence_R: torch.Tensor,
    position_R: torch.Tensor,
    temperature_B: torch.Tensor,
    seed_B: torch.Tensor,
    choice_B: torch.Tensor,
    mask_RK: torch.Tensor | None = None,
    floor_R: torch.Tensor | None = None,
    *,
    any_noise: bool,
    pdl: bool = False,
) -> torch.Tensor:
    """[R] int64 token ids, -1 for a row that cannot choose.

    A row's logits lie without gaps. mask_RK: int32, id i at bit i % 32 of word i // 32. floor_R:
    float32, logits over the temperature that are below it are not allowed. any_noise: whether any
    temperature may be above 0; without it the parameters are not read (but for the temperature where
    there are floors).
    Torch: `ops.choose.by_torch`.
    """
    num_rows, vocab = logits_RV.shape
    chosen_R = torch.empty(num_rows, dtype=torch.int64, device=logits_RV.device)
    if not num_rows:
        return chosen_R
    num_tiles = tiles_of_a_program(num_rows)
    num_chunks = -(-vocab // (TILE * num_tiles))
    shape = (num_rows, num_chunks)
    values_RZ = torch.empty(shape, dtype=torch.float32, device=logits_RV.device)
    ids_RZ = torch.empty(shape, dtype=torch.int32, device=logits_RV.device)
    options = launch_options(pdl)
    _partial_kernel[(num_rows, num_chunks)](
        logits_RV,
        sequence_R,
        position_R,
        temperature_B,
        seed_B,
        choice_B,
        mask_RK,
        floor_R,
        values_RZ,
        ids_RZ,
        vocab,
        0 if mask_RK is None else mask_RK.shape[1],
        logits_RV.stride(0),
        0 if mask_RK is None else mask_RK.stride(0),
        temperature_B.stride(0),
        seed_B.stride(0),
        choice_B.stride(0),
        HAS_MASK=mask_RK is not None,
        HAS_FLOOR=floor_R is not None,
        ANY_NOISE=any_noise,
        NUM_TILES=num_tiles,
        NUM_COUNTERS=TILE // 4,
        PDL=pdl,
        num_warps=4,
        **options,
    )
    _combine_kernel[(num_rows,)](
        values_RZ,
        ids_RZ,
        chosen_R,
        num_chunks,
        BLOCK_C=triton.next_power_of_2(num_chunks),
        PDL=pdl,
        num_warps=1,
        **options,
    )
    return chosen_R
