"""Which texts make up a batch, and which of their rows are trained.

Promises: a plan is a function of lengths, seed and epoch alone, so that a run that goes on finds the
batch it stopped at without reading anything; texts of similar length share a batch; only rows whose
first prediction is an answer token are trained (those a server drafts from).
Does not know: features, models.

A row t of a text is made of the target's state at position t and the token at t + 1; at level i of
training-time test it sees the token at t + 1 + i and predicts the one at t + 2 + i.

Legend: B texts of a batch, L places of a text, R trained rows, P positions whose target distribution
is wanted, K levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray

from eyas.train.head.answers import Text

_PLACES_MULTIPLE = 32


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts padded to one length, and what is trained of them; all tensors on one device.

    tokens_BL. row_R: b * L + t. time_R: t. cell_R: place of the row among the trained rows of its
    text, in a grid [B, width]. cell_time_BA: t of each cell of that grid. tokens_KR: token the row
    sees at level i. is_trained_KR: whether level i counts. target_KR: index into the P positions.
    position_P: b * L + s, the states whose target distribution is wanted.
    """

    tokens_BL: torch.Tensor
    row_R: torch.Tensor
    time_R: torch.Tensor
    cell_R: torch.Tensor
    cell_time_BA: torch.Tensor
    tokens_KR: torch.Tensor
    is_trained_KR: torch.Tensor
    target_KR: torch.Tensor
    position_P: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        """A copy on the device."""
        if device.type != "cuda":
            return self
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return Batch(**{n: v.pin_memory().to(device, non_blocking=True) for n, v in values.items()})


def make_batch(texts: Sequence[Text], num_levels: int) -> Batch:
    """The batch of these texts; at least one must have a trained row."""
    longest = max(len(text.tokens) for text in texts)
    num_places = -(-longest // _PLACES_MULTIPLE) * _PLACES_MULTIPLE
    shape = (len(texts), num_places + num_levels + 2)
    tokens = np.zeros(shape, dtype=np.int64)
    is_answer = np.zeros(shape, dtype=bool)
    for b, text in enumerate(texts):
        tokens[b, : len(text.tokens)] = text.tokens
        is_answer[b, : len(text.tokens)] = text.is_answer
    trained = is_answer[:, 2 : num_places + 2].copy()
    b_R, t_R = np.nonzero(trained)
    assert len(b_R), "a batch needs a row to train"
    valid = np.ones(len(b_R), dtype=bool)
    trained_KR = np.empty((num_levels, len(b_R)), dtype=bool)
    for level in range(num_levels):
        valid &= is_answer[b_R, t_R + 2 + level]
        trained_KR[level] = valid
    levels = np.arange(num_levels)[:, None]
    tokens_KR = tokens[b_R, t_R + 1 + levels]
    wanted = is_answer[:, 1 : num_places + 1]
    index_of = np.cumsum(wanted.reshape(-1)).reshape(wanted.shape) - 1
    target_KR = index_of[b_R, np.minimum(t_R + 1 + levels, num_places - 1)]
    counts_B = trained.sum(1)
    width = max(1, int(counts_B.max()))
    first_B = np.cumsum(counts_B) - counts_B
    place_R = np.arange(len(b_R)) - np.repeat(first_B, counts_B)
    cell_R = b_R * width + place_R
    cell_time = np.zeros(len(texts) * width, dtype=np.int64)
    cell_time[cell_R] = t_R
    arrays = (
        tokens[:, :num_places],
        b_R * num_places + t_R,
        t_R,
        cell_R,
        cell_time.reshape(len(texts), width),
        tokens_KR,
        trained_KR,
        np.where(trained_KR, target_KR, 0),
        np.flatnonzero(wanted),
    )
    return Batch(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))


def is_usable(text: Text) -> bool:
    """Whether the text has a row to train."""
    return bool(text.is_answer[2:].any())


def cut_into_batches(
    lengths: NDArray[np.int64], most_places: int, generator: np.random.Generator | None
) -> list[NDArray[np.int64]]:
    """Indices of the texts of each batch: of similar length, at most `most_places` with padding
    (but for a single longer text). generator: shuffles; None keeps them in order of length."""
    padded = -(-lengths // _PLACES_MULTIPLE) * _PLACES_MULTIPLE
    if generator is None:
        order = np.argsort(padded, kind="stable")
    else:
        order = np.lexsort((generator.random(len(lengths)), padded))
    batches: list[NDArray[np.int64]] = []
    start = 0
    for stop in range(1, len(order) + 1):
        is_last = stop == len(order)
        if is_last or (stop + 1 - start) * padded[order[stop]] > most_places:
            batches.append(order[start:stop])
            start = stop
    if generator is not None:
        return [batches[i] for i in generator.permutation(len(batches))]
    return batches


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """A batch to come: the shards that must be at hand, and (shard, text) of each of its texts."""

    shards: tuple[int, ...]
    members: tuple[tuple[int, int], ...]


class BatchSchedule:
    """The batches of every epoch, from the lengths of each shard's texts.

    together: how many shards are mixed at a time.
    """

    def __init__(
        self, lengths: Sequence[Sequence[int]], most_places: int, together: int, seed: int
    ) -> None:
        self._lengths = [np.asarray(of_shard, dtype=np.int64) for of_shard in lengths]
        self._most_places = most_places
        self._together = max(1, together)
        self._seed = seed
        self.per_epoch = len(self.epoch(0))

    def epoch(self, number: int) -> list[ScheduledBatch]:
        """Every batch of an epoch, in order."""
        generator = np.random.default_rng((self._seed, number))
        order = generator.permutation(len(self._lengths))
        planned: list[ScheduledBatch] = []
        for start in range(0, len(order), self._together):
            group = tuple(int(s) for s in order[start : start + self._together])
            owners = [(s, i) for s in group for i in range(len(self._lengths[s]))]
            lengths = np.concatenate([self._lengths[s] for s in group])
            for batch in cut_into_batches(lengths, self._most_places, generator):
                planned.append(ScheduledBatch(group, tuple(owners[i] for i in batch)))
        return planned
