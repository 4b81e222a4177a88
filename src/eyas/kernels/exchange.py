"""The kernel of exchanges between ranks through symmetric memory: each rank writes its numbers into the
memory of every other one, and gathers or adds those that have come.

A number travels as a word of 64 bits: its own 32 bits, and the count of the exchange above them. Words
are written and read whole, so a word with the right count has its number: there are no flags and no
fences, and the way over NVLink is taken once. An inbox has a channel for each program of a launch, and
a channel two halves, which are used in turn. Each channel counts its exchanges in the device's memory,
so that graphs can contain them; the counts are the same on all ranks.

Why no word is overwritten that is still to be read: a rank writes to a half for exchange k + 2 of a
channel after it has seen all words of exchange k + 1, which the other rank sends after it has read all
of exchange k. That holds for each channel alone, whatever other channels, graphs or NCCL do in between.
Why no older word is taken for a new one: an exchange writes all words of a half, so that a word which
waits there has the count k - 2, also where counts start again from zero. Why waits end: programs start
in the order of their numbers, and send before they wait.

Promises: the bits of `ops.tree_sum` of the gathered numbers. A wait ends when the host asks for it, or
after a time; then `stop` is not zero, and what this launch and later ones return is no result.
Does not know: where the memory comes from, what is exchanged.

Legend: N ranks, X numbers of a channel, P channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from eyas.kernels.launch import enter, launch_options

BLOCK = 64
"""Numbers of a channel."""
NUM_WARPS = 1
NUM_POLLS = 1024
"""Reads of an inbox between two looks at the clock and at the word of the host."""
STOPPED, LATE = 1, 2
"""Why a wait has ended before the numbers came: the host asked for it, or it took too long."""


@triton.jit
def _sent(number_X, count):
    """Words of numbers, which have 32 bits."""
    return (number_X.to(tl.int64) & 0xFFFFFFFF) | (count.to(tl.int64) << 32)


@triton.jit
def _is_missing(words_NX, count):
    """Whether a word is not that of this exchange."""
    return tl.max(tl.max(((words_NX >> 32).to(tl.int32) != count).to(tl.int32), axis=0), axis=0)


@triton.jit(do_not_specialize=["most_ns"])
def exchange_kernel(
    own_X,
    out,
    inboxes_N,
    inbox,
    counts_P,
    over,
    stop,
    size,
    rank,
    most_ns,
    NUM_RANKS: tl.constexpr,
    ADDS: tl.constexpr,
    BLOCK: tl.constexpr,
    NUM_POLLS: tl.constexpr,
    LATE: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a channel. inboxes_N: addresses of all ranks' inboxes. inbox: this rank's. over: why
    waits of this rank have ended early, if they have. stop: the host's word. ADDS: returns the sum of
    float32 numbers, else the numbers [N, size], of 32 bits."""
    enter(PDL)
    channel = tl.program_id(0)
    at_X = tl.arange(0, BLOCK)
    x = channel * BLOCK + at_X
    is_inside = x < size
    count = tl.load(counts_P + channel) + 1
    half = (channel.to(tl.int64) * 2 + (count & 1)) * (NUM_RANKS * BLOCK)
    words_X = _sent(tl.load(own_X + x, mask=is_inside, other=0), count)
    mine = half + rank * BLOCK
    for n in tl.static_range(1, NUM_RANKS):
        address = tl.load(inboxes_N + (rank + n) % NUM_RANKS)
        there = tl.multiple_of(address.to(tl.pointer_type(tl.int64), bitcast=True), 16)
        tl.store(there + mine + at_X, words_X, cache_modifier=".wt")
    tl.store(inbox + mine + at_X, words_X, cache_modifier=".wt")

    n_N = tl.arange(0, NUM_RANKS)
    here_NX = inbox + half + n_N[:, None] * BLOCK + at_X[None, :]
    words_NX = tl.load(here_NX, volatile=True)
    is_missing = _is_missing(words_NX, count)
    num_polls, began = 0, tl.full((), 0, tl.int64)
    while is_missing != 0:
        words_NX = tl.load(here_NX, volatile=True)
        is_missing = _is_missing(words_NX, count)
        num_polls += 1
        if num_polls == NUM_POLLS:
            num_polls = 0
            now = globaltimer()
            began = tl.where(began == 0, now, began)
            is_late = now - began > most_ns
            tl.store(stop, LATE, mask=is_late)
            # threads may have seen different times and words: the answer of an atomic is one for all
            asked = tl.maximum(tl.load(stop, volatile=True), is_late.to(tl.int32) * LATE)
            before = tl.atomic_max(over, asked, sem="relaxed")
            is_missing = tl.where(before == 0, is_missing, 0)
    tl.store(counts_P + channel, count)

    numbers_NX = words_NX.to(tl.int32)
    if ADDS:
        sums_XN = tl.trans(numbers_NX.to(tl.float32, bitcast=True))
        for level in tl.static_range(3):
            if NUM_RANKS >> level > 1:
                pairs = tl.reshape(sums_XN, (BLOCK, NUM_RANKS >> (level + 1), 2))
                first_XN, second_XN = tl.split(pairs)
                sums_XN = first_XN + second_XN
        tl.store(out + x, tl.reshape(sums_XN, (BLOCK,)), mask=is_inside)
    else:
        gathered_NX = out + n_N[:, None].to(tl.int64) * size + x[None, :]
        tl.store(gathered_NX, numbers_NX, mask=is_inside[None, :])


@dataclass(frozen=True, slots=True, eq=False)
class Inbox:
    """A rank's inbox, and what its exchanges need.

    rank, size: the rank's number, and how many there are. words: `num_words` int64, zero before the
    first exchange. addresses_N: of all ranks' words, int64. counts_P: of the exchanges of each channel,
    int32. over: int32 [1]. stop: int32 [1] in memory of the host that the device reads and writes; the
    host writes STOPPED to end the waits, a launch that has waited too long writes LATE.
    """

    rank: int
    size: int
    words: torch.Tensor
    addresses_N: torch.Tensor
    counts_P: torch.Tensor
    over: torch.Tensor
    stop: torch.Tensor
    block: int = BLOCK
    num_warps: int = NUM_WARPS


def num_channels(most_numbers: int, block: int = BLOCK) -> int:
    """Return how many channels exchanges of at most this many numbers have."""
    return triton.cdiv(most_numbers, block)


def num_words(num_channels: int, num_ranks: int, block: int = BLOCK) -> int:
    """Return the length of an inbox."""
    return num_channels * 2 * num_ranks * block


def exchange(
    inbox: Inbox, own: torch.Tensor, *, adds: bool, most_ns: int, pdl: bool = False
) -> torch.Tensor:
    """Return the numbers of all ranks [N, ...], or their sum [...] in the order of `ops.tree_sum`.

    own: this rank's, contiguous, of 32 bits each; float32 if they are added. All ranks make the same
    exchanges in the same order. most_ns: how long a rank is waited for.
    """
    assert own.is_contiguous() and own.element_size() == 4
    size = own.numel()
    shape = own.shape if adds else (inbox.size, *own.shape)
    out = torch.empty(shape, dtype=own.dtype, device=own.device)
    if size:
        exchange_kernel[(num_channels(size, inbox.block),)](
            own.view(torch.int32),
            out if adds else out.view(torch.int32),
            inbox.addresses_N,
            inbox.words,
            inbox.counts_P,
            inbox.over,
            inbox.stop,
            size,
            inbox.rank,
            most_ns,
            NUM_RANKS=inbox.size,
            ADDS=adds,
            BLOCK=inbox.block,
            NUM_POLLS=NUM_POLLS,
            LATE=LATE,
            PDL=pdl,
            num_warps=inbox.num_warps,
            **launch_options(pdl),
        )
    return out
