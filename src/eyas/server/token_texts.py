"""Divides the text of one choice among its tokens.

Promises: the texts of the tokens and the rest add up to the whole text, and do not depend on how the
stream is cut into deltas. Does not know: what a token means, HTTP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from eyas.core import ENDING_FIELDS, Delta, Mark
from eyas.text import Detokenizer, Tokenizer


class TokenText(NamedTuple):
    """One token, the text that became final with it, and its mark if it is a control token."""

    token_id: int
    text: str
    marks: list[Mark]


class TokenTexts:
    """The texts of the tokens of one choice. Text that arrives before its token is kept until the
    token arrives; this happens where the end of a token may begin a stop string."""

    def __init__(self, tokenizer: Tokenizer | None, *, skip_special: bool) -> None:
        """skip_special: as of the request. tokenizer: None if the model has none; no token has a text
        then."""
        self._detokenizer = None
        if tokenizer is not None:
            self._detokenizer = Detokenizer(tokenizer, skip_special, continues=True)
        self._text = ""
        self._marks: deque[Mark] = deque()

    def push(self, text: str, token_ids: Sequence[int], marks: Sequence[Mark]) -> list[TokenText]:
        """Add a delta. Return its tokens with their texts."""
        self._text += text
        self._marks.extend(marks)
        tokens: list[TokenText] = []
        begin = 0
        for token_id in token_ids:
            num_chars = len(self._detokenizer.push(token_id)) if self._detokenizer else 0
            part = self._text[begin : begin + num_chars]  # shorter if a stop string has cut it off
            token_marks: list[Mark] = []
            if self._marks and self._marks[0].token_id == token_id:
                token_marks.append(Mark(0, token_id, self._marks.popleft().length))
            begin += len(part)
            tokens.append(TokenText(token_id, part, token_marks))
        self._text = self._text[begin:]
        return tokens

    def finish(self) -> str:
        """Return the text that no token has: that of an incomplete character at the end."""
        rest, self._text = self._text, ""
        return rest


def split_by_token(delta: Delta, texts: TokenTexts) -> list[Delta]:
    """Return a delta of one choice as one delta per token; the last has what ends the choice.

    texts: those of the choice, which has read all earlier deltas. A delta without tokens stays one.
    """
    tokens = texts.push(delta.text, delta.token_ids, delta.marks)
    parts = [
        Delta(
            request_id=delta.request_id,
            index=delta.index,
            token_ids=[token.token_id],
            text=token.text,
            marks=token.marks,
            logprobs=None if delta.logprobs is None else delta.logprobs[place : place + 1],
        )
        for place, token in enumerate(tokens)
    ]
    if not parts:
        parts = [Delta(request_id=delta.request_id, index=delta.index, logprobs=delta.logprobs)]
    parts[0].prompt_logprobs = delta.prompt_logprobs
    parts[0].draft_trees = delta.draft_trees
    rest = "" if delta.finish_reason is None else texts.finish()
    ending = {name: getattr(delta, name) for name in ENDING_FIELDS}
    parts[-1] = msgspec.structs.replace(parts[-1], text=parts[-1].text + rest, **ending)
    return parts
