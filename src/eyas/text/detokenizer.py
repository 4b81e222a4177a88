"""From a stream of token ids to a stream of text, never half a character.

Promises: what `push` and `finish` return, put together, is `Tokenizer.decode` of all the ids;
constant time a token. Does not know: stop strings, requests.
"""

from __future__ import annotations

import codecs

from eyas.text.tokenizer import Tokenizer


class Detokenizer:
    """The text of one growing sequence of tokens.

    continues: the text goes on from a prompt, so a leading space that the tokenizer means as a word
    border stays (as `Tokenizer.decode(..., continues=True)`).
    """

    __slots__ = ("_bytes_of", "_decode", "_head", "_is_started", "_skipped", "_tokenizer")

    def __init__(
        self, tokenizer: Tokenizer, skip_special: bool = True, *, continues: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._bytes_of = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._is_started = continues or tokenizer.num_leading_spaces == 0
        self._head = b""

    def push(self, token_id: int) -> str:
        """The text that is final now that this token came."""
        if token_id in self._skipped:
            return ""
        data = self._bytes_of(token_id)
        return self._decode(data) if self._is_started else self._start(data)

    def finish(self) -> str:
        """The rest: U+FFFD where the last bytes are no whole character."""
        head, self._is_started = self._head, True
        return self._decode(head[self._tokenizer.num_leading_spaces_of(head) :], True)

    def _start(self, data: bytes) -> str:
        self._head += data
        if (
            len(self._head.lstrip(b" ")) == 0
            and len(self._head) < self._tokenizer.num_leading_spaces
        ):
            return ""
        head, self._head, self._is_started = self._head, b"", True
        return self._decode(head[self._tokenizer.num_leading_spaces_of(head) :])
