"""Choose the draft vocabulary: the tokens that a head may propose.

Promises: control tokens, end-of-text ids, digits, JSON punctuation, white space and the tags of
reasoning and tool calls are always in it; the remaining space goes to the most frequent tokens of
answers, ties by id; ids ascend. Does not know: training.
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
    """Return the ascending target ids of the draft vocabulary, int64 [size].

    ValueError: `size` is larger than the target's vocabulary, or too small for the required tokens.
    """
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
            f"draft_vocab_size: {size} is below the {len(always)} tokens that are always included "
            "(control tokens, digits, JSON punctuation, white space); raise it"
        )
    is_in = np.zeros(vocab_size, dtype=bool)
    is_in[always] = True
    by_count = np.lexsort((np.arange(vocab_size), -counts))
    rest = by_count[~is_in[by_count]][: size - len(always)]
    is_in[rest] = True
    return np.flatnonzero(is_in).astype(np.int64)


def coverage(sequences: Iterable[Text], ids: NDArray[np.int64], vocab_size: int) -> float:
    """Return the fraction of answer tokens that are in the draft vocabulary."""
    is_in = np.zeros(vocab_size, dtype=bool)
    is_in[ids] = True
    covered = total = 0
    for sequence in sequences:
        answer = sequence.tokens[sequence.is_answer.astype(bool)]
        covered += int(is_in[answer].sum())
        total += len(answer)
    return covered / max(1, total)


def needed_ids(tokenizer: Tokenizer, vocab_size: int) -> Iterator[int]:
    """Yield the tokens that are always in the draft vocabulary."""
    tags = {f"<{tag}>".encode() for tag in TAGS}
    for token in range(vocab_size):
        text = tokenizer.token_bytes(token)
        is_structure = 0 < len(text) <= _LONGEST_ALWAYS and _ALWAYS.issuperset(text)
        if is_structure or token in tokenizer.control_ids or text in tags:
            yield token
