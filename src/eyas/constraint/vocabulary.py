"""The tokens of one model as automata see them: their bytes, and which of them are no text.

Promises: plain data; an id that has no bytes is never legal in a grammar.
Does not know: tokenizer files, grammars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eyas.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """tokens: the bytes of each id, b"" where no token has it. control_ids: tokens that no text spells.
    eos_token_ids: tokens that end the output. vocab_size: the width of the model's logits; the ids from
    len(tokens) on are padding. encode: the ids of a text that continues another."""

    tokens: Sequence[bytes]
    control_ids: frozenset[int]
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    encode: Callable[[str], list[int]]

    def __post_init__(self) -> None:
        if not self.eos_token_ids:
            raise ValueError(
                "the model has no end-of-sequence token, so a grammar could not end its output; name "
                "eos_token_id in its generation_config.json"
            )
        beyond = [token for token in self.eos_token_ids if not 0 <= token < self.vocab_size]
        if beyond:
            raise ValueError(f"eos_token_id {beyond[0]} is outside the {self.vocab_size} tokens")

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> Vocabulary:
        """Return the tokens of a tokenizer below a model's vocab_size."""
        size = min(tokenizer.vocab_size, vocab_size)
        return cls(
            tokens=[tokenizer.token_bytes(token) for token in range(size)],
            control_ids=frozenset(i for i in tokenizer.control_ids if i < size),
            eos_token_ids=tuple(dict.fromkeys(eos_token_ids)),
            vocab_size=vocab_size,
            encode=lambda text: tokenizer.encode_text(text, continues=True),
        )

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are no text: control tokens and those that end the output."""
        return self.control_ids | frozenset(self.eos_token_ids)

    @property
    def num_mask_words(self) -> int:
        """32-bit words of a mask row."""
        return -(-self.vocab_size // 32)
