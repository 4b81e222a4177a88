"""The default backend: llguidance, which refuses what it cannot enforce.

Promises: padding and nameless ids are never legal; masks allow every spelling of a forced text and
never call the tokenizer, so they need no interpreter.
Does not know: who compiles when, budgets, drafts.

Legend: R mask rows, K 32-bit words of a row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import llguidance
import numpy as np

from eyas.constraint.base import Backend, ConstraintFailure, MaskJob, State
from eyas.constraint.borrowed import when_free, without_panic
from eyas.constraint.canonical import canonical_trees
from eyas.constraint.deep import on_deep_stack
from eyas.constraint.faults import described, named, refused_leaf
from eyas.constraint.lark import to_llguidance
from eyas.constraint.library_tokenizer import library_tokenizer
from eyas.constraint.llguidance_grammar import LlguidanceGrammar
from eyas.constraint.llguidance_masks import LlguidanceMasks
from eyas.constraint.llguidance_states import LlguidanceState
from eyas.constraint.priority import give_way
from eyas.constraint.vocabulary import Vocabulary
from eyas.core import GrammarError
from eyas.grammar import SPACING, Node, OutputSpec, Source, Spacing, leaves

MAX_ITEMS_IN_ROW = 20_000
"""Ten times the library's own, for objects with thousands of optional properties. The other limits
stay: they count work and memory, never time, so a fresh automaton hits them at the same token again."""
MAX_LEXER_STATES = 50_000
"""A fifth of the library's own. Each takes 1 to 2 KiB, all outputs of a lane share them, and none is
ever forgotten. At the limit the lane is made anew; who was in it goes on with a lexer of its own."""
MAX_LANES = 8
"""Of a grammar; each takes its memory once more."""


class LlguidanceBackend(Backend):
    """llguidance over one vocabulary."""

    name = "llguidance"

    def __init__(
        self, vocabulary: Vocabulary, *, num_threads: int = 1, spacing: Spacing = SPACING
    ) -> None:
        """spacing: of schemas that say nothing of it."""
        self.vocabulary = vocabulary
        self._spacing = spacing
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
        self.max_lanes = max(1, min(MAX_LANES, num_threads))
        self._num_words = vocabulary.num_mask_words
        self._nameless = frozenset(
            token for token, data in enumerate(vocabulary.tokens) if not data
        )
        self._background = ThreadPoolExecutor(
            1, thread_name_prefix="eyas-later", initializer=give_way
        )

    def compile(self, spec: OutputSpec) -> LlguidanceGrammar:
        try:
            canonical = canonical_trees(spec.root, self._spacing)
        except GrammarError as error:
            raise named(error, spec.param) from None
        return self._compile(spec.root, spec.param, canonical)

    def expect(self, states: Sequence[State], *, once: bool = False) -> None:
        for state in states:
            if isinstance(state, LlguidanceState) and state.matcher is not None:
                with suppress(ConstraintFailure):  # it comes again when the masks are asked for
                    state.expect_draft(once=once)

    def job(
        self,
        states: Sequence[State],
        mask_RK: np.ndarray,
        rows: Sequence[int] | None = None,
        drafts: Sequence[Sequence[int]] | None = None,
    ) -> MaskJob:
        job = LlguidanceMasks(self, states, mask_RK, rows, drafts)
        return MaskJob(job.run, job.settle)

    def close(self) -> None:
        """End the background thread; what it compiles now it finishes."""
        self._background.shutdown(wait=False, cancel_futures=True)

    def is_nameless(self, token: int) -> bool:
        """Has no bytes: padding, or an id that the tokenizer leaves out."""
        return not 0 <= token < len(self.vocabulary.tokens) or token in self._nameless

    def spelled(self, tokens: Sequence[int]) -> list[int]:
        """Tokens up to the end or the first one without bytes, which the library is not shown."""
        for place, token in enumerate(tokens):
            if token in self.eos_token_ids or self.is_nameless(token):
                return list(tokens[:place])
        return list(tokens)

    def matcher(self, text: str) -> llguidance.LLMatcher:
        """A matcher that shares nothing with others; it may be in error."""
        return on_deep_stack(
            lambda: llguidance.LLMatcher(self._tokenizer, text, log_level=0, limits=self._limits)
        )

    def is_used_up(self, matcher: llguidance.LLMatcher) -> bool:
        """Has the lexer that its copies share hit a limit? It tells when it is asked for a mask."""
        with without_panic:
            copy = when_free(matcher.deep_copy)
            when_free(copy.compute_bitmask)
            return when_free(copy.is_error)

    def compile_alone(self, root: Node) -> LlguidanceGrammar:
        """A grammar that nobody's outputs are held to."""
        return self._compile(root, None, ())

    def later(self, work: Callable[[], None]) -> None:
        """In the background, one after the other; not at all once this is closed."""
        with suppress(RuntimeError):
            self._background.submit(work)

    def forced_tokens(self, data: bytes) -> list[int]:
        """The usual tokens of a text in bytes, which may end in the middle of a character."""
        return self._tokenizer.tokenize_bytes(data)

    def fill_drafts(
        self, asked: list[tuple[llguidance.LLMatcher, int, list[int]]], mask_RK: np.ndarray
    ) -> None:
        """The mask of each matcher in its row, and in the rows behind it those after each of its
        tokens, of which it needs one; the matchers come back."""
        if asked:
            place = (mask_RK.ctypes.data, self._num_words * 4, len(mask_RK))
            self._executor.unsafe_compute_mask_ptr_with_draft_token(asked, *place)

    def fill_rows(self, asked: list[tuple[llguidance.LLMatcher, int]], mask_RK: np.ndarray) -> None:
        """The mask of each matcher in its row."""
        begin, num_bytes = mask_RK.ctypes.data, self._num_words * 4
        if len(asked) > 1 and self._is_threaded:
            call = self._executor.unsafe_compute_mask_ptr
            when_free(lambda: call(asked, begin, num_bytes, len(mask_RK)))
            return
        for matcher, row in asked:  # the calling thread is quicker than waking another
            at = begin + row * num_bytes
            when_free(lambda matcher=matcher, at=at: matcher.unsafe_compute_mask_ptr(at, num_bytes))

    def _compile(
        self, root: Node, param: str | None, canonical: Sequence[Node]
    ) -> LlguidanceGrammar:
        """A library that panics has refused the grammar."""
        try:
            with without_panic:
                return self._compiled(root, param, canonical)
        except ConstraintFailure:
            error = refused_leaf(root, self._refusal) or described(None, _FAILED)
            raise named(error, param) from None

    def _compiled(
        self, root: Node, param: str | None, canonical: Sequence[Node]
    ) -> LlguidanceGrammar:
        begin = time.perf_counter()
        try:
            text = to_llguidance(root, self._spacing)
        except GrammarError as error:
            raise named(error, param) from None
        except RecursionError:
            error = GrammarError("the output is nested too deeply; flatten it", "too_complex")
            raise named(error, param) from None
        matcher = self.matcher(text)
        if matcher.is_error():
            error = refused_leaf(root, self._refusal) or described(None, matcher.get_error())
            raise named(error, param)
        compiled = time.perf_counter()
        grammar = LlguidanceGrammar(self, text, matcher, canonical)
        for leaf in leaves(root):
            if isinstance(leaf, Source) and leaf is not root:  # it may be empty behind other parts
                self._warm(self.matcher(to_llguidance(leaf, self._spacing)), grammar, param)
        self._warm(matcher, grammar, param)
        grammar.compile_seconds = compiled - begin
        grammar.first_mask_seconds = time.perf_counter() - compiled
        return grammar

    def _warm(
        self, matcher: llguidance.LLMatcher, grammar: LlguidanceGrammar, param: str | None
    ) -> None:
        """The first mask; it must not be empty."""
        mask_1K = np.zeros((1, self._num_words), dtype=np.int32)
        is_over = bool(self.fill([LlguidanceState(grammar, matcher)], mask_1K))
        if is_over and not matcher.get_error().startswith(_NOTHING_FOLLOWS):
            error = GrammarError(
                "the grammar is too large to begin with: its first step is over the compiler's "
                "limits; lower its repetition counts or lengths",
                "too_complex",
            )
            raise named(error, param)
        if not mask_1K.any():
            error = GrammarError(
                "no output can match: a rule or a schema refers to itself on every path; give it an "
                "alternative that ends",
                "invalid",
            )
            raise named(error, param)

    def _refusal(self, node: Node) -> str | None:
        """The library's words on one leaf by itself."""
        text = to_llguidance(node, self._spacing)
        try:
            with without_panic:
                return on_deep_stack(
                    lambda: llguidance.LLMatcher.validate_grammar(
                        text, self._tokenizer, limits=self._limits
                    )
                )
        except ConstraintFailure:
            return _FAILED


_FAILED = "the grammar library failed on it; write it in another way"
_NOTHING_FOLLOWS = "NoExtension"
"""How the library's error begins where no text can match."""
