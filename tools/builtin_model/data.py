"""Generate packed training tokens of the built-in model with worker processes.

Promises: shard n of a seed does not depend on the number of workers; conversations are never cut;
roles mark the tokens that the model has to write. Does not know: torch, the model.
"""

import multiprocessing
import queue
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from builtin_model.families import Example, mixture
from builtin_model.template import render

PROMPT, ANSWER = 1, 2
_EXAMPLES_PER_SHARD = 64


@dataclass(frozen=True)
class Shard:
    """Concatenated conversations: token ids, the role of each token (0 padding, 1 prompt, 2
    answer), and the length of every conversation.
    """

    tokens: NDArray[np.uint16]
    roles: NDArray[np.uint8]
    lengths: NDArray[np.int32]


class Marker:
    """Finds the tokens of a rendered conversation that the model has to write.

    An answer that starts with reasoning counts from its first token. The empty reasoning of a
    prompt without thinking is part of the prompt, and so is the first token of an earlier answer,
    because the template removes the reasoning before it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        def ids(text: str) -> list[int]:
            return tokenizer.encode(text, add_special_tokens=False).ids

        self._head = np.array(ids("<|im_start|>assistant\n"), dtype=np.uint16)
        self._empty = np.array(ids("<think>\n\n</think>\n\n"), dtype=np.uint16)
        (self._start,) = ids("<|im_start|>")
        (self._end,) = ids("<|im_end|>")
        (self._think,) = ids("<think>")

    def roles(self, tokens: NDArray[np.uint16]) -> NDArray[np.uint8]:
        """Return the role of each token."""
        roles = np.full(len(tokens), PROMPT, dtype=np.uint8)
        ends = np.nonzero(tokens == self._end)[0]
        for start in np.nonzero(tokens == self._start)[0]:
            first = start + len(self._head)
            if not np.array_equal(tokens[start:first], self._head):
                continue
            end = ends[np.searchsorted(ends, first)]
            if np.array_equal(tokens[first : first + len(self._empty)], self._empty):
                first += len(self._empty)
            elif tokens[first] != self._think:
                first += 1
            roles[first : end + 1] = ANSWER
        return roles


def make_shard(
    tokenizer: Tokenizer, marker: Marker, seed: str, index: int, size: int, longest: int
) -> Shard:
    """Return shard `index` of a seed: `size` tokens, in conversations of at most `longest` tokens."""
    documents: list[NDArray[np.uint16]] = []
    used, part = 0, 0
    while True:
        examples = list(mixture(f"{seed}/{index}/{part}", "train", _EXAMPLES_PER_SHARD))
        part += 1
        for tokens in _encode(tokenizer, examples):
            if len(tokens) > longest:
                continue
            if used + len(tokens) > size:
                return _pack(documents, marker, size)
            documents.append(tokens)
            used += len(tokens)


def _encode(tokenizer: Tokenizer, examples: list[Example]) -> Iterator[NDArray[np.uint16]]:
    texts = [render(example.messages, example.tools).rstrip("\n") for example in examples]
    for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
        yield np.array(encoding.ids, dtype=np.uint16)


def _pack(documents: list[NDArray[np.uint16]], marker: Marker, size: int) -> Shard:
    tokens = np.zeros(size, dtype=np.uint16)
    roles = np.zeros(size, dtype=np.uint8)
    joined = np.concatenate(documents)
    tokens[: len(joined)] = joined
    roles[: len(joined)] = np.concatenate([marker.roles(document) for document in documents])
    lengths = [len(document) for document in documents]
    if len(joined) < size:
        lengths.append(size - len(joined))
    return Shard(tokens, roles, np.array(lengths, dtype=np.int32))


@dataclass(frozen=True)
class StreamSpec:
    """The shards to generate: tokenizer, seed, sizes in tokens, first shard."""

    tokenizer_file: Path
    seed: str
    shard_tokens: int
    longest: int
    first: int


def _work(spec: StreamSpec, worker: int, count: int, out: "Queue[Shard]") -> None:
    """Generate every `count`-th shard until the parent process has ended."""
    tokenizer = Tokenizer.from_file(str(spec.tokenizer_file))
    marker = Marker(tokenizer)
    parent = multiprocessing.parent_process()
    index = spec.first + worker
    while True:
        shard = make_shard(tokenizer, marker, spec.seed, index, spec.shard_tokens, spec.longest)
        index += count
        while True:
            if parent is not None and not parent.is_alive():
                return
            try:
                out.put(shard, timeout=5)
                break
            except queue.Full:
                continue


SHARDS_AHEAD = 16
"""The number of shards that each worker generates ahead."""


class ShardStream:
    """Shards in order, generated ahead by worker processes; call `close` to end them."""

    def __init__(self, spec: StreamSpec, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._queues: list[Queue[Shard]] = [context.Queue(SHARDS_AHEAD) for _ in range(workers)]
        self._processes = [
            context.Process(target=_work, args=(spec, i, workers, out), daemon=True)
            for i, out in enumerate(self._queues)
        ]
        self._next = 0
        for process in self._processes:
            process.start()

    def take(self) -> Shard:
        """Return the next shard. RuntimeError: its worker has died."""
        worker = self._next
        self._next = (worker + 1) % len(self._queues)
        while True:
            try:
                return self._queues[worker].get(timeout=10)
            except queue.Empty:
                if not self._processes[worker].is_alive():
                    raise RuntimeError(f"data worker {worker} has died") from None

    def close(self) -> None:
        """End the workers."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
