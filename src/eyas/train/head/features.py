"""Store the target's hidden states on disk in shards, and read them as features of batches.

Promises: a shard is a safetensors file of bounded size; the index is written last, when all shards
are complete; shards within a memory budget stay loaded (on the device), others are loaded as
needed. Does not know: heads, losses.

Legend: T tokens of a shard, I concatenated tapped states, D hidden size, B texts, L padded length,
P positions whose target distribution is used.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eyas.train.head.answers import Text
from eyas.train.head.batches import Batch, cut_into_batches
from eyas.train.head.progress import Progress, Reporter
from eyas.train.head.target import Target

INDEX_FILE = "index.json"
_STATES = ("tapped", "final", "choice")


@dataclass(frozen=True, slots=True)
class States:
    """The target's states of a batch: tapped states [B * L, I], final states, greedy choices."""

    tapped: Tensor
    final_PD: Tensor
    choice_P: Tensor


def write_features(
    target: Target,
    texts: Sequence[Text],
    directory: Path,
    *,
    shard_bytes: int,
    batch_places: int,
    reporter: Reporter,
    deadline: float,
    stamp: str,
) -> bool:
    """Run the target over all texts and store its states. Return whether it finished in time.

    shard_bytes: maximum size of a file. batch_places: maximum tokens of a forward pass, padding
    included. deadline: monotonic time in seconds. stamp: identifies model, taps and texts; features
    of another stamp are replaced.
    """
    index_file = directory / INDEX_FILE
    if _is_complete(index_file, stamp):
        return True
    directory.mkdir(parents=True, exist_ok=True)
    for old in (index_file, *directory.glob("*.safetensors")):
        old.unlink(missing_ok=True)
    width = target.decoder.spec.hidden_size * (len(target.taps) + 1)
    per_token = _stored_type(target).itemsize * width + 4 + 1 + 4
    max_tokens = max(1, shard_bytes // per_token)
    lengths: list[list[int]] = []
    files: list[str] = []
    started, done = time.monotonic(), 0
    total = sum(len(text.tokens) for text in texts)
    for members in _split_into_shards(texts, max_tokens):
        if time.monotonic() > deadline:
            return False
        before = done

        def report(in_shard: int, before: int = before) -> None:
            reporter.progress(
                Progress("features", before + in_shard, total, f"tokens of {directory.name}")
            )

        shard = _make_shard(target, [texts[i] for i in members], batch_places, report)
        name = f"features-{len(files):05d}.safetensors"
        save_file(shard, directory / name)
        files.append(name)
        lengths.append(shard["lengths"].tolist())
        done += sum(lengths[-1])
        speed = done / (time.monotonic() - started)
        reporter.log(
            f"features: {done}/{total} tokens in {len(files)} shards  {speed:.0f} tokens/s"
        )
    sizes = [(directory / name).stat().st_size for name in files]
    record = {"stamp": stamp, "files": files, "sizes": sizes, "lengths": lengths}
    record["taps"] = list(target.taps)
    index_file.write_text(json.dumps(record) + "\n")
    return True


def _is_complete(index_file: Path, stamp: str) -> bool:
    """Whether all features of this stamp are stored, in files of the sizes that were written."""
    try:
        index = json.loads(index_file.read_text())
        files = [index_file.parent / name for name in index["files"]]
        sizes = [file.stat().st_size for file in files]
        return index["stamp"] == stamp and sizes == index["sizes"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _stored_type(target: Target) -> torch.dtype:
    return torch.bfloat16 if target.dtype != torch.float32 else torch.float32


def _split_into_shards(texts: Sequence[Text], max_tokens: int) -> list[list[int]]:
    """Return the indices of the texts of each shard, in order."""
    groups: list[list[int]] = [[]]
    used = 0
    for index, text in enumerate(texts):
        if groups[-1] and used + len(text.tokens) > max_tokens:
            groups.append([])
            used = 0
        groups[-1].append(index)
        used += len(text.tokens)
    return groups if groups[0] else []


def _make_shard(
    target: Target, texts: Sequence[Text], batch_places: int, report: Callable[[int], None]
) -> dict[str, Tensor]:
    """Return the tensors of a shard, texts concatenated in order.

    report: called with the number of tokens done after each forward pass.
    """
    lengths = np.array([len(text.tokens) for text in texts], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    hidden = target.decoder.spec.hidden_size
    stored = _stored_type(target)
    tapped = torch.empty(total, len(target.taps) * hidden, dtype=stored)
    final = torch.empty(total, hidden, dtype=stored)
    choice = torch.zeros(total, dtype=torch.int32)
    is_answer = np.concatenate([text.is_answer for text in texts])
    wanted = np.zeros(total, dtype=bool)
    wanted[:-1] = is_answer[1:] != 0
    num_done = 0
    for members in cut_into_batches(lengths, batch_places, None):
        num_places = int(lengths[members].max())
        tokens = torch.zeros(len(members), num_places, dtype=torch.int64)
        for b, i in enumerate(members):
            tokens[b, : lengths[i]] = torch.from_numpy(texts[i].tokens.astype(np.int64))
        tapped_TI, final_TD = target.states(tokens.to(target.device))
        places = np.concatenate(
            [b * num_places + np.arange(lengths[i]) for b, i in enumerate(members)]
        )
        rows = np.concatenate([starts[i] + np.arange(lengths[i]) for i in members])
        is_wanted = wanted[rows]
        place_T = torch.from_numpy(places).to(target.device)
        wanted_P = torch.from_numpy(places[is_wanted]).to(target.device)
        row_T = torch.from_numpy(rows)
        tapped[row_T] = tapped_TI[place_T].to("cpu", stored)
        final[row_T] = final_TD[place_T].to("cpu", stored)
        if len(wanted_P):
            chosen = target.choices(final_TD[wanted_P]).to("cpu", torch.int32)
            choice[torch.from_numpy(rows[is_wanted])] = chosen
        num_done += len(rows)
        report(num_done)
    return {
        "tokens": torch.from_numpy(np.concatenate([text.tokens for text in texts])),
        "is_answer": torch.from_numpy(is_answer),
        "lengths": torch.from_numpy(lengths.astype(np.int32)),
        "tapped": tapped,
        "final": final,
        "choice": choice,
    }


class StoredFeatures:
    """Stored features as a source of batches.

    budget_bytes: maximum size of the loaded shards. together: number of shards that an epoch mixes
    at a time, limited by the budget. lengths: tokens of the texts of each shard. is_resident:
    whether all shards stay loaded; they then count as one.
    """

    def __init__(
        self, directory: Path, device: torch.device, budget_bytes: int, together: int = 4
    ) -> None:
        record = json.loads((directory / INDEX_FILE).read_text())
        self._files = [directory / name for name in record["files"]]
        self.lengths: list[list[int]] = record["lengths"]
        sizes = [file.stat().st_size for file in self._files]
        self.is_resident = sum(sizes) <= budget_bytes
        fitting = max(1, budget_bytes // max(sizes, default=1))
        self.together = 1 if self.is_resident else int(min(together, fitting))
        self._max_loaded = int(fitting)
        self._device = device
        self._loaded: OrderedDict[int, _Shard] = OrderedDict()
        if self.is_resident:
            self._loaded[0] = _joined(self._files, device)
            self.lengths = [[length for of_shard in self.lengths for length in of_shard]]

    @property
    def num_loaded(self) -> int:
        return len(self._loaded)

    def texts(self, members: Sequence[tuple[int, int]], needed: Sequence[int] = ()) -> list[Text]:
        """Return the texts of (shard, text) pairs. needed: shards to load first."""
        for shard in needed:
            self._shard(shard)
        return [self._shard(shard).text(i) for shard, i in members]

    def states(self, members: Sequence[tuple[int, int]], batch: Batch) -> States:
        """Return the states of the texts of a batch. members: its (shard, text) pairs."""
        num_places = batch.tokens_BL.shape[1]
        owners = [shard for shard, _ in members]
        parts: dict[str, list[Tensor]] = {name: [] for name in _STATES}
        order: list[int] = []
        for shard in dict.fromkeys(owners):
            loaded = self._shard(shard)
            rows = [b for b, owner in enumerate(owners) if owner == shard]
            order += rows
            at_T = loaded.token_indices([members[b][1] for b in rows], num_places)
            for name, pieces in parts.items():
                piece = loaded.tensors[name][at_T].to(self._device, non_blocking=True)
                pieces.append(piece.unflatten(0, (len(rows), num_places)))
        joined = {name: torch.cat(pieces) for name, pieces in parts.items()}
        if order != sorted(order):
            back = torch.from_numpy(np.argsort(order)).to(self._device)
            joined = {name: tensor[back] for name, tensor in joined.items()}
        tapped, final, choice = (joined[name].flatten(0, 1) for name in _STATES)
        return States(tapped, final[batch.position_P], choice[batch.position_P].long())

    def _shard(self, number: int) -> _Shard:
        shard = self._loaded.get(number)
        if shard is None:
            while len(self._loaded) >= self._max_loaded:
                self._loaded.popitem(last=False)
            tensors = load_file(self._files[number])
            shard = self._loaded[number] = _Shard(tensors, self._device)
        self._loaded.move_to_end(number)
        return shard


def _joined(files: Sequence[Path], device: torch.device) -> _Shard:
    """Load all files into one shard."""
    parts = [load_file(file) for file in files]
    joined: dict[str, Tensor] = {}
    for name in list(parts[0]):
        total = sum(len(part[name]) for part in parts)
        first = parts[0][name]
        storage = device if name in _STATES else torch.device("cpu")
        whole = torch.empty((total, *first.shape[1:]), dtype=first.dtype, device=storage)
        start = 0
        for part in parts:
            piece = part.pop(name)
            whole[start : start + len(piece)] = piece.to(storage)
            start += len(piece)
        joined[name] = whole
    return _Shard(joined, device)


class _Shard:
    """A loaded shard: states on the device, tokens on the CPU."""

    def __init__(self, tensors: dict[str, Any], device: torch.device) -> None:
        self.lengths = tensors["lengths"].numpy().astype(np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        self._tokens = tensors["tokens"].numpy()
        self._is_answer = tensors["is_answer"].numpy()
        self.tensors = {name: tensors[name].to(device) for name in _STATES}

    def token_indices(self, indices: Sequence[int], num_places: int) -> Tensor:
        """Return the rows of these texts in the shard [B * L], each text padded with its last row.

        The host does not wait for the device.
        """
        spans = torch.from_numpy(np.stack((self.starts[indices], self.lengths[indices])))
        device = self.tensors["final"].device
        if device.type == "cuda":
            spans = spans.pin_memory().to(device, non_blocking=True)
        starts, lengths = spans[:, :, None]
        offsets = torch.arange(num_places, device=device)
        return (starts + torch.minimum(offsets, lengths - 1)).flatten()

    def text(self, index: int) -> Text:
        part = slice(self.starts[index], self.starts[index] + self.lengths[index])
        return Text(self._tokens[part], self._is_answer[part])


class LiveFeatures:
    """Texts in memory as a source of batches; the target runs for every batch."""

    is_resident = True
    together = 1

    def __init__(self, target: Target, texts: Sequence[Text]) -> None:
        self._target = target
        self._texts = texts
        self.lengths: list[list[int]] = [[len(text.tokens) for text in texts]]

    def texts(self, members: Sequence[tuple[int, int]], needed: Sequence[int] = ()) -> list[Text]:
        """Return the texts of (shard, text) pairs."""
        return [self._texts[i] for _, i in members]

    def states(self, members: Sequence[tuple[int, int]], batch: Batch) -> States:
        """Return the states of the texts of a batch."""
        tapped, final = self._target.states(batch.tokens_BL)
        final_PD = final[batch.position_P]
        return States(tapped, final_PD, self._target.choices(final_PD))


Features = StoredFeatures | LiveFeatures
