"""Walking through grammars token by token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from eyas.grammar import Node, OutputSpec
from eyas.text import Tokenizer

PADDING = 45
"""Ids of the model beyond its tokenizer; not a multiple of 32."""


def compiled(backend: Any, root: Node) -> Any:
    return backend.compile(OutputSpec(root=root))


def masks(backend: Any, states: Sequence[Any]) -> np.ndarray:
    """bool [N, 32 K]: what `fill` allows after each state."""
    mask_NK = np.zeros((len(states), backend.vocabulary.num_mask_words), dtype=np.int32)
    assert backend.fill(states, mask_NK) == []
    return np.unpackbits(mask_NK.view(np.uint8), axis=1, bitorder="little").astype(bool)


def legal_ids(backend: Any, state: Any) -> set[int]:
    return set(np.nonzero(masks(backend, [state])[0])[0].tolist())


def tokens_of(tokenizer: Tokenizer, *pieces: str | int) -> list[int]:
    """Texts and token ids."""
    tokens: list[int] = []
    for piece in pieces:
        tokens += (
            [piece] if isinstance(piece, int) else tokenizer.encode_text(piece, continues=True)
        )
    return tokens


@cache
def _tokens_by_bytes(tokenizer: Tokenizer) -> dict[bytes, int]:
    return {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}


def letters_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """The text in tokens of one byte each."""
    token_of = _tokens_by_bytes(tokenizer)
    return [token_of[bytes([byte])] for byte in text.encode()]


def walked(grammar: Any, tokens: Sequence[int]) -> list[Any]:
    """The states from the start on, up to the first token that is refused."""
    states = [grammar.start()]
    for token in tokens:
        state = states[-1].after(token)
        if state is None:
            break
        states.append(state)
    return states


def takes(grammar: Any, tokens: Sequence[int]) -> bool:
    """Is every token legal?"""
    return len(walked(grammar, tokens)) == len(tokens) + 1


def ends(grammar: Any, tokens: Sequence[int]) -> bool:
    """Is it a whole output?"""
    states = walked(grammar, tokens)
    eos = grammar.backend.vocabulary.eos_token_ids[0]
    return len(states) == len(tokens) + 1 and states[-1].after(eos) is not None
