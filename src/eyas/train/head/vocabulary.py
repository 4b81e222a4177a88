"""Which tokens a head may propose: those answers consist of, and those it must never lack.

Promises: control tokens, end-of-text ids, digits, JSON punctuation, white space and the tags of
reasoning and tool calls are always in; the rest is filled up by how often answers hold them, ties by
id; ids ascend. Does not know: training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from eyas.text import Tokenizer
from eyas.train.head.answers import Text

DEFAULT_SIZE = 32000
BUILTIN_SIZE = 2048
TAGS = ("think", "/think", "tool_call", "/tool_call", "tool_response", "/tool_response")
_ALWAYS = frozenset(b'0123456789{}[]",:.-+ \t\n\r')
_LONGEST_ALWAYS = 8


def choose_vocabulary(
    sequences: Iterable[Text],
    tokenizer: Tokenizer,
    vocab_size: int,
    size: int,
    eos_ids: Iterable[int] = (),
) -> NDArray[np.int64]:
    """Ascending target ids of the draft vocabulary. ValueError where `size` is too small."""
    if not 1 <= size <= vocab_size:
        raise ValueError(
            f"draft_vocab_size: must be between 1 and the target's {vocab_size}, not {size}"
        )
    if size == vocab_size:
        return np.arange(vocab_size, dtype=np.int64)
    counts = np.zeros(vocab_size, dtype=np.int64)
    for sequence in sequences:
        chosen = sequence.tokens[sequence.is_answer.astype(bool)]
        counts += np.bincount(chosen, minlength=vocab_size)[:vocab_size]
    always = np.unique([*needed_ids(tokenizer, vocab_size), *eos_ids]).astype(np.int64)
    if len(always) > size:
        raise ValueError(
            f"draft_vocab_size: {size} is below the {len(always)} tokens that are always in "
            "(control tokens, digits, JSON punctuation, white space); raise it"
        )
    is_in = np.zeros(vocab_size, dtype=bool)
    is_in[always] = True
    by_count = np.lexsort((np.arange(vocab_size), -counts))
    rest = by_count[~is_in[by_count]][: size - len(always)]
    is_in[rest] = True
    return np.flatnonzero(is_in).astype(np.int64)


def coverage(sequences: Iterable[Text], ids: NDArray[np.int64], vocab_size: int) -> float:
    """The share of answer tokens that the draft vocabulary holds."""
    is_in = np.zeros(vocab_size, dtype=bool)
    is_in[ids] = True
    held = total = 0
    for sequence in sequences:
        chosen = sequence.tokens[sequence.is_answer.astype(bool)]
        held += int(is_in[chosen].sum())
        total += len(chosen)
    return held / max(1, total)


def needed_ids(tokenizer: Tokenizer, vocab_size: int) -> Iterator[int]:
    """Tokens that are always in, whatever the answers hold."""
    tags = {f"<{tag}>".encode() for tag in TAGS}
    for token in range(vocab_size):
        text = tokenizer.token_bytes(token)
        is_structure = 0 < len(text) <= _LONGEST_ALWAYS and _ALWAYS.issuperset(text)
        if is_structure or token in tokenizer.control_ids or text in tags:
            yield token
