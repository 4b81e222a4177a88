"""Features on disk: shards of texts with the target's states, written once and streamed after that.

Promises: a shard is a safetensors file of bounded size; an index written last says that all are
there; shards that fit a budget stay in memory (on the device), others come and go.
Does not know: heads, losses.

Legend: T tokens of a shard, S tapped states side by side, D hidden size, B texts, L places.
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

from eyas.train.head.answers import Say, Text
from eyas.train.head.batches import Batch, cut_into_batches
from eyas.train.head.progress import Progress, Watch, unwatched
from eyas.train.head.target import Target

INDEX_FILE = "index.json"
_STATES = ("tapped", "final", "choice")


@dataclass(frozen=True, slots=True)
class States:
    """What a batch is trained on: tapped [B * L, S], final [P, D], choice [P] of the target."""

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
    say: Say,
    deadline: float,
    stamp: str,
    watch: Watch = unwatched,
) -> bool:
    """Run the target over all texts and store its states; whether all was done in time.

    stamp: of the texts and taps; features of another stamp are written anew.
    """
    index_file = directory / INDEX_FILE
    if index_file.exists() and json.loads(index_file.read_text())["stamp"] == stamp:
        return True
    directory.mkdir(parents=True, exist_ok=True)
    for old in (index_file, *directory.glob("*.safetensors")):
        old.unlink(missing_ok=True)
    width = target.decoder.spec.hidden_size * (len(target.taps) + 1)
    per_token = _stored_type(target).itemsize * width + 4 + 1 + 4
    most_tokens = max(1, shard_bytes // per_token)
    lengths: list[list[int]] = []
    files: list[str] = []
    started, done = time.monotonic(), 0
    total = sum(len(text.tokens) for text in texts)
    for members in _by_size(texts, most_tokens):
        if time.monotonic() > deadline:
            return False
        before = done

        def watched(in_shard: int, before: int = before) -> None:
            watch(Progress("features", before + in_shard, total, f"tokens of {directory.name}"))

        shard = _run(target, [texts[i] for i in members], batch_places, watched)
        name = f"features-{len(files):05d}.safetensors"
        save_file(shard, directory / name)
        files.append(name)
        lengths.append(shard["lengths"].tolist())
        done += sum(lengths[-1])
        speed = done / (time.monotonic() - started)
        say(f"features: {done}/{total} tokens in {len(files)} shards  {speed:.0f} tokens/s")
    record = {"stamp": stamp, "files": files, "lengths": lengths, "taps": list(target.taps)}
    index_file.write_text(json.dumps(record) + "\n")
    return True


def _stored_type(target: Target) -> torch.dtype:
    return torch.bfloat16 if target.dtype != torch.float32 else torch.float32


def _by_size(texts: Sequence[Text], most_tokens: int) -> list[list[int]]:
    """Consecutive texts that fit a shard together."""
    groups: list[list[int]] = [[]]
    used = 0
    for index, text in enumerate(texts):
        if groups[-1] and used + len(text.tokens) > most_tokens:
            groups.append([])
            used = 0
        groups[-1].append(index)
        used += len(text.tokens)
    return groups if groups[0] else []


def _run(
    target: Target, texts: Sequence[Text], batch_places: int, watched: Callable[[int], None]
) -> dict[str, Tensor]:
    """The tensors of one shard: texts end to end in the order given. watched: told of tokens done."""
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
        tapped_TS, final_TD = target.states(tokens.to(target.device))
        places = np.concatenate(
            [b * num_places + np.arange(lengths[i]) for b, i in enumerate(members)]
        )
        rows = np.concatenate([starts[i] + np.arange(lengths[i]) for i in members])
        asked = wanted[rows]
        place_T = torch.from_numpy(places).to(target.device)
        asked_P = torch.from_numpy(places[asked]).to(target.device)
        row_T = torch.from_numpy(rows)
        tapped[row_T] = tapped_TS[place_T].to("cpu", stored)
        final[row_T] = final_TD[place_T].to("cpu", stored)
        if len(asked_P):
            chosen = target.choices(final_TD[asked_P]).to("cpu", torch.int32)
            choice[torch.from_numpy(rows[asked])] = chosen
        num_done += len(rows)
        watched(num_done)
    return {
        "tokens": torch.from_numpy(np.concatenate([text.tokens for text in texts])),
        "is_answer": torch.from_numpy(is_answer),
        "lengths": torch.from_numpy(lengths.astype(np.int32)),
        "tapped": tapped,
        "final": final,
        "choice": choice,
    }


class StoredFeatures:
    """Shards of one directory as a source of batches.

    budget_bytes: how much may stay in memory; `together` shards are needed at a time in any case.
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
        self._keep = int(fitting)
        self._device = device
        self._at_hand: OrderedDict[int, _Shard] = OrderedDict()
        if self.is_resident:
            self._at_hand[0] = _joined(self._files, device)
            self.lengths = [[length for of_shard in self.lengths for length in of_shard]]

    @property
    def num_at_hand(self) -> int:
        return len(self._at_hand)

    def texts(self, members: Sequence[tuple[int, int]], needed: Sequence[int] = ()) -> list[Text]:
        """The texts of these (shard, text) pairs."""
        for shard in needed:
            self._shard(shard)
        return [self._shard(shard).text(i) for shard, i in members]

    def states(self, members: Sequence[tuple[int, int]], batch: Batch) -> States:
        """The states of the same texts; the batch is on the device."""
        num_places = batch.tokens_BL.shape[1]
        owners = [shard for shard, _ in members]
        parts: dict[str, list[Tensor]] = {name: [] for name in _STATES}
        order: list[int] = []
        for shard in dict.fromkeys(owners):
            held = self._shard(shard)
            rows = [b for b, owner in enumerate(owners) if owner == shard]
            order += rows
            at_T = held.places([members[b][1] for b in rows], num_places)
            for name, pieces in parts.items():
                piece = held.tensors[name][at_T].to(self._device, non_blocking=True)
                pieces.append(piece.unflatten(0, (len(rows), num_places)))
        joined = {name: torch.cat(pieces) for name, pieces in parts.items()}
        if order != sorted(order):
            back = torch.from_numpy(np.argsort(order)).to(self._device)
            joined = {name: tensor[back] for name, tensor in joined.items()}
        tapped, final, choice = (joined[name].flatten(0, 1) for name in _STATES)
        return States(tapped, final[batch.position_P], choice[batch.position_P].long())

    def _shard(self, number: int) -> _Shard:
        held = self._at_hand.get(number)
        if held is None:
            while len(self._at_hand) >= self._keep:
                self._at_hand.popitem(last=False)
            tensors = load_file(self._files[number])
            held = self._at_hand[number] = _Shard(tensors, self._device)
        self._at_hand.move_to_end(number)
        return held


def _joined(files: Sequence[Path], device: torch.device) -> _Shard:
    """All shards as one."""
    parts = [load_file(file) for file in files]
    joined: dict[str, Tensor] = {}
    for name in list(parts[0]):
        total = sum(len(part[name]) for part in parts)
        first = parts[0][name]
        place = device if name in _STATES else torch.device("cpu")
        whole = torch.empty((total, *first.shape[1:]), dtype=first.dtype, device=place)
        start = 0
        for part in parts:
            piece = part.pop(name)
            whole[start : start + len(piece)] = piece.to(place)
            start += len(piece)
        joined[name] = whole
    return _Shard(joined, device)


class _Shard:
    def __init__(self, tensors: dict[str, Any], device: torch.device) -> None:
        self.lengths = tensors["lengths"].numpy().astype(np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        self._tokens = tensors["tokens"].numpy()
        self._is_answer = tensors["is_answer"].numpy()
        self.tensors = {name: tensors[name].to(device) for name in _STATES}

    def places(self, indices: Sequence[int], num_places: int) -> Tensor:
        """Where the tokens of these texts lie, each padded with its last one; nobody waits."""
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
    """Texts in memory as a source of batches; the target runs anew for every batch."""

    is_resident = True
    together = 1

    def __init__(self, target: Target, texts: Sequence[Text]) -> None:
        self._target = target
        self._texts = texts
        self.lengths: list[list[int]] = [[len(text.tokens) for text in texts]]

    def texts(self, members: Sequence[tuple[int, int]], needed: Sequence[int] = ()) -> list[Text]:
        """The texts of these (shard, text) pairs."""
        return [self._texts[i] for _, i in members]

    def states(self, members: Sequence[tuple[int, int]], batch: Batch) -> States:
        """The states of the same texts."""
        tapped, final = self._target.states(batch.tokens_BL)
        final_PD = final[batch.position_P]
        return States(tapped, final_PD, self._target.choices(final_PD))


Features = StoredFeatures | LiveFeatures
