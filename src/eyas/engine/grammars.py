"""The pool that compiles output grammars for an engine's model, and why there may be none.

Promises: a model whose outputs cannot be constrained has no pool, and the log says why.
Does not know: requests, the grammar libraries.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import psutil
import torch

from eyas.config import EngineConfig, EngineInfo
from eyas.constraint import CompilePool, Vocabulary, build_backend, process_allocator
from eyas.text import Tokenizer

log = logging.getLogger(__name__)


def compile_pool(
    config: EngineConfig, info: EngineInfo, tokenizer: Tokenizer | None
) -> CompilePool | None:
    """Return the pool that compiles grammars for this model's vocabulary.

    Returns None if outputs cannot be constrained (`obstacle`). Raises ValueError that names a grammar
    library that is not installed.
    """
    grammar = config.grammar
    reason = obstacle(tokenizer, info.eos_token_ids)
    if tokenizer is None:
        return None
    if reason is not None:
        log.warning("%s, so outputs cannot be constrained", reason)
        return None
    vocabulary = Vocabulary.of(tokenizer, info.vocab_size, info.eos_token_ids)
    backend = build_backend(
        grammar.backend,
        vocabulary,
        config.device.num_threads or _num_mask_threads(info.device),
        deadline_seconds=grammar.compile_seconds,
        spacing=grammar.spacing,
    )
    return CompilePool(
        backend,
        num_threads=grammar.num_threads,
        deadline_seconds=grammar.compile_seconds,
        max_cache_bytes=grammar.cache_bytes,
        allocator=process_allocator(),
    )


def obstacle(tokenizer: Tokenizer | None, eos_token_ids: Sequence[int]) -> str | None:
    """Return why a model's outputs cannot be constrained; None if they can."""
    if tokenizer is None:
        return "the model has no tokenizer"
    if tokenizer.puts_spaces:
        return "the model's tokenizer (tokenizer.json without a decoder) puts a space before each token"
    if not eos_token_ids:
        return "the model has no end-of-sequence token, with which an output would end"
    return None


def _num_mask_threads(device: str) -> int:
    """Return how many threads fill masks: on a CPU as many as torch has, with a GPU half of the cores
    and at most 8.

    The masks of one sequence are filled one after the other, so more threads do not finish sooner, and
    if all cores are busy the thread that launches steps waits for one.
    """
    if device == "cpu":
        return torch.get_num_threads()
    return max(1, min(8, (psutil.cpu_count(logical=False) or 1) // 2))
