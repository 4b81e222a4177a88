"""Form batches of texts, and select the rows that are trained.

Promises: the schedule depends only on lengths, seed and epoch, so that a resumed run finds its next
batch without reading features; texts of similar length share a batch; only rows whose first
prediction is an answer token are trained (a server drafts only from those).
Does not know: features, models.

Row t of a text takes the target's state at position t and the token at t + 1. At level i of
training-time test it takes the token at t + 1 + i and predicts the token at t + 2 + i.

Legend: B texts of a batch, L padded length of a text, R trained rows, P positions whose target
distribution is used, T trained rows of a text at most, Z levels.
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
    """Padded texts and their trained rows; all tensors are on one device.

    row_R: index b * L + t of a row. time_R: t. cell_R: index of the row in a grid [B, T] of the
    trained rows of each text. cell_time_BT: t of each cell of that grid. tokens_ZR: token that the
    row takes at each level. is_trained_ZR: whether the level counts. target_ZR: index of its target
    distribution among the P positions. position_P: index b * L + s of these positions.
    """

    tokens_BL: torch.Tensor
    row_R: torch.Tensor
    time_R: torch.Tensor
    cell_R: torch.Tensor
    cell_time_BT: torch.Tensor
    tokens_ZR: torch.Tensor
    is_trained_ZR: torch.Tensor
    target_ZR: torch.Tensor
    position_P: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        """Return a copy on the device; the batch itself if that is the CPU."""
        if device.type != "cuda":
            return self
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return Batch(**{n: v.pin_memory().to(device, non_blocking=True) for n, v in values.items()})


def make_batch(texts: Sequence[Text], num_levels: int) -> Batch:
    """Return the batch of these texts, of which at least one must have a trained row."""
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
    trained_ZR = np.empty((num_levels, len(b_R)), dtype=bool)
    for level in range(num_levels):
        valid &= is_answer[b_R, t_R + 2 + level]
        trained_ZR[level] = valid
    levels = np.arange(num_levels)[:, None]
    tokens_ZR = tokens[b_R, t_R + 1 + levels]
    wanted = is_answer[:, 1 : num_places + 1]
    index_of = np.cumsum(wanted.reshape(-1)).reshape(wanted.shape) - 1
    target_ZR = index_of[b_R, np.minimum(t_R + 1 + levels, num_places - 1)]
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
        tokens_ZR,
        trained_ZR,
        np.where(trained_ZR, target_ZR, 0),
        np.flatnonzero(wanted),
    )
    return Batch(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))


def is_usable(text: Text) -> bool:
    """Whether the text has a row to train."""
    return bool(text.is_answer[2:].any())


def cut_into_batches(
    lengths: NDArray[np.int64], most_places: int, generator: np.random.Generator | None
) -> list[NDArray[np.int64]]:
    """Return the indices of the texts of each batch, of similar length.

    most_places: maximum number of tokens of a batch, padding included; a single longer text is a
    batch of its own. generator: shuffles texts and batches; None keeps the order of length.
    """
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
    """A batch of a schedule.

    shards: the shards to load for it. members: (shard, text) of each of its texts.
    """

    shards: tuple[int, ...]
    members: tuple[tuple[int, int], ...]


class BatchSchedule:
    """The batches of every epoch.

    lengths: of the texts of each shard. most_places: as in `cut_into_batches`. together: number of
    shards that are mixed at a time. per_epoch: number of batches of the first epoch.
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
        """Return the batches of an epoch, in order."""
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
