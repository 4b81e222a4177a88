"""llguidance over one vocabulary: the library's calls that grammars, states and masks need.

Promises: only this module uses the library's tokenizer, limits and threads. Masks are filled by the
library's threads, or by the caller's where that is quicker.
Does not know: how outputs become grammars, when masks are wanted.

Legend: R mask rows, K 32-bit words of a row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import llguidance
import numpy as np

from eyas.constraint.base import Backend, Grammar
from eyas.constraint.deep import on_deep_stack
from eyas.constraint.library_calls import when_free, without_panic
from eyas.constraint.library_tokenizer import library_tokenizer
from eyas.constraint.threads import give_way
from eyas.constraint.vocabulary import Vocabulary
from eyas.grammar import Node

MAX_ITEMS_IN_ROW = 20_000
"""Ten times the library's own, for objects with thousands of optional properties. The other limits
stay: they count work and memory, never time, so a fresh automaton hits them at the same token again."""
MAX_LEXER_STATES = 50_000
"""A fifth of the library's own. Each takes 1 to 2 KiB, all outputs of a replica share them, and none is
ever forgotten. At the limit the replica gets a new matcher; its outputs go on with lexers of their
own."""
_CONTROL = b"\xff"
"""Begins a control token, b"\xff[id]", in the library's bytes; no UTF-8 has this byte."""
MAX_REPLICAS = 8
"""Of a grammar; each takes the grammar's memory once more."""


class LlguidanceLibrary(Backend):
    """A backend without the compilation of outputs."""

    def __init__(self, vocabulary: Vocabulary, *, num_threads: int = 1) -> None:
        self.vocabulary = vocabulary
        self.eos_token_ids = frozenset(vocabulary.eos_token_ids)
        self.end = list(vocabulary.eos_token_ids[:1])
        self._tokenizer = library_tokenizer(vocabulary)
        self._limits = llguidance.LLParserLimits(
            verbose_errors=False,
            max_items_in_row=MAX_ITEMS_IN_ROW,
            max_lexer_states=MAX_LEXER_STATES,
        )
        # A thread that waits for another of its pool helps out with whatever the pool has to do.
        self._executor = llguidance.LLExecutor(num_threads)
        self._is_threaded = num_threads > 1
        self.max_replicas = max(1, min(MAX_REPLICAS, num_threads))
        self._num_words = vocabulary.num_mask_words
        self._nameless = frozenset(
            token for token, data in enumerate(vocabulary.tokens) if not data
        )
        self._background = ThreadPoolExecutor(
            1, thread_name_prefix="eyas-later", initializer=give_way
        )

    def close(self) -> None:
        """End the background thread after what it compiles now."""
        self._background.shutdown(wait=False, cancel_futures=True)

    def is_nameless(self, token: int) -> bool:
        """Whether a token has no bytes: padding, or an id that the tokenizer leaves out."""
        return not 0 <= token < len(self.vocabulary.tokens) or token in self._nameless

    def spelled(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens up to the end or the first token without bytes, which the library must not
        be shown."""
        for place, token in enumerate(tokens):
            if token in self.eos_token_ids or self.is_nameless(token):
                return list(tokens[:place])
        return list(tokens)

    def matcher(self, text: str) -> llguidance.LLMatcher:
        """Return a matcher that shares nothing with others; it may be in error."""
        return on_deep_stack(
            lambda: llguidance.LLMatcher(self._tokenizer, text, log_level=0, limits=self._limits)
        )

    def is_used_up(self, matcher: llguidance.LLMatcher) -> bool:
        """Whether the lexer that a matcher's copies share has hit a limit, which a mask shows."""
        with without_panic:
            copy = when_free(matcher.deep_copy)
            when_free(copy.compute_bitmask)
            return when_free(copy.is_error)

    @abstractmethod
    def compile_alone(self, root: Node) -> Grammar:
        """Compile a canonical grammar, whose states read other white space as the grammar's."""

    def later(self, work: Callable[[], None]) -> None:
        """Do some work in the background, after earlier work; not at all once this is closed."""
        with suppress(RuntimeError):
            self._background.submit(work)

    def forced_tokens(self, data: bytes) -> list[int]:
        """Return the usual tokens of a text in bytes, which may end in the middle of a character, and
        in which the library writes control tokens by their ids."""
        tokens: list[int] = []
        text, *rest = data.split(_CONTROL)
        tokens += self._tokenizer.tokenize_bytes(text)
        for part in rest:
            number, closing, text = part.removeprefix(b"[").partition(b"]")
            if not (closing and number.isdigit()):
                break  # cut off
            tokens.append(int(number))
            tokens += self._tokenizer.tokenize_bytes(text)
        return tokens

    def fill_drafts(
        self, asked: list[tuple[llguidance.LLMatcher, int, list[int]]], mask_RK: np.ndarray
    ) -> None:
        """Write the mask of each matcher to its row, and to the rows behind it the masks after each of
        its tokens, of which it needs at least one. The library rolls the matchers back."""
        if asked:
            target = (mask_RK.ctypes.data, self._num_words * 4, len(mask_RK))
            self._executor.unsafe_compute_mask_ptr_with_draft_token(asked, *target)

    def fill_rows(self, asked: list[tuple[llguidance.LLMatcher, int]], mask_RK: np.ndarray) -> None:
        """Write the mask of each matcher to its row."""
        begin, num_bytes = mask_RK.ctypes.data, self._num_words * 4
        if len(asked) > 1 and self._is_threaded:
            call = self._executor.unsafe_compute_mask_ptr
            when_free(lambda: call(asked, begin, num_bytes, len(mask_RK)))
            return
        for matcher, row in asked:  # the calling thread is quicker than waking another
            at = begin + row * num_bytes
            when_free(lambda matcher=matcher, at=at: matcher.unsafe_compute_mask_ptr(at, num_bytes))
