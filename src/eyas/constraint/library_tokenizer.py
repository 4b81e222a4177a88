"""A vocabulary in the form that llguidance takes.

Promises: padding and nameless ids have no bytes; tokens whose legality can be decided at once are in
one class.
Does not know: grammars.
"""

from __future__ import annotations

import llguidance

from eyas.constraint.vocabulary import Vocabulary

_PLAIN = r'"\\\x00-\x1F\x7F'
_OPENERS = r"<\["
SLICES = (
    r"[A-Za-z0-9]{1,10}",
    r" [A-Za-z0-9]{1,9}",
    r"[\u00c0-\u1679\u3040-\ufdff\u{10000}-\u{10ffff}]{1,10}",
    rf"[^{_PLAIN}{_OPENERS}/|][^{_PLAIN}{_OPENERS}]{{0,9}}",
    rf"[^{_PLAIN}{_OPENERS}/|][^{_PLAIN}{_OPENERS}]{{0,29}}",
    rf"[^{_PLAIN}{_OPENERS}/|][^{_PLAIN}{_OPENERS}]*",
    rf"[^{_OPENERS}/|][^{_OPENERS}]*",
    rf"[^{_OPENERS}]+",
    *llguidance.LLTokenizer.general_slices(),
)
"""Classes of tokens whose legality the library may decide at once: its own; before them those in which
no marker begins (the first mask of free text up to a marker takes 30 microseconds with them and 1,200
without; 152k tokens), and words, alone, behind a space and in other scripts, which patterns such as
`^[a-zA-Z_]\\w*$` and `^[^\\s/]+$` take or refuse as a whole (140 and 340 in place of 340 and 920)."""


def library_tokenizer(vocabulary: Vocabulary) -> llguidance.LLTokenizer:
    """Return the library's tokenizer with the vocabulary's tokens and end-of-sequence tokens."""
    return llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(_Tokens(vocabulary)),
        eos_token=list(vocabulary.eos_token_ids),
        slices=list(SLICES),
    )


class _Tokens:
    """A vocabulary with the attributes that the library's wrapper reads."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        padding = vocabulary.vocab_size - len(vocabulary.tokens)
        self.tokens = [*vocabulary.tokens, *[b""] * padding]
        self.special_token_ids = sorted(vocabulary.special_ids)
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self._encode = vocabulary.encode

    def __call__(self, text: bytes) -> list[int]:
        return self._encode(text.decode("utf-8", "replace"))
