"""Streaming detokenization: token ids in, text without incomplete characters out.

Promises: the concatenation of what `push` and `finish` return equals `Tokenizer.decode` of all ids.
Each token takes constant time. Does not know: stop strings, requests.
"""

from __future__ import annotations

import codecs

from eyas.text.tokenizer import Tokenizer


class Detokenizer:
    """The decoder of one growing sequence of tokens.

    continues: the text follows a prompt, so a leading space that the tokenizer adds at a word
    boundary is kept, as in `Tokenizer.decode(..., continues=True)`.
    """

    __slots__ = ("_bytes_of", "_decode", "_has_started", "_leading_bytes", "_skipped", "_tokenizer")

    def __init__(
        self, tokenizer: Tokenizer, skip_special: bool = True, *, continues: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._bytes_of = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._has_started = continues or tokenizer.num_leading_spaces == 0
        self._leading_bytes = b""

    def push(self, token_id: int) -> str:
        """Add a token and return the text that is now final."""
        if token_id in self._skipped:
            return ""
        data = self._bytes_of(token_id)
        return self._decode(data) if self._has_started else self._start(data)

    def finish(self) -> str:
        """Return the rest of the text. Bytes of an incomplete character become U+FFFD."""
        head, self._has_started = self._leading_bytes, True
        return self._decode(head[self._tokenizer.num_leading_spaces_of(head) :], True)

    def _start(self, data: bytes) -> str:
        self._leading_bytes += data
        if (
            len(self._leading_bytes.lstrip(b" ")) == 0
            and len(self._leading_bytes) < self._tokenizer.num_leading_spaces
        ):
            return ""
        head, self._leading_bytes, self._has_started = self._leading_bytes, b"", True
        return self._decode(head[self._tokenizer.num_leading_spaces_of(head) :])
