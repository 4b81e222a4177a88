"""The default backend: llguidance, which refuses what it cannot enforce.

Promises: masks behind drafts are found without moving a state's own matcher; padding and nameless ids
are never legal; masks allow every spelling of a forced text and never call the tokenizer, so they need
no interpreter.
Does not know: who compiles when, budgets, trees.

Legend: R mask rows, L rows of a state and its draft, K 32-bit words of a row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import llguidance
import numpy as np

from eyas.constraint.base import (
    Backend,
    ConstraintFailure,
    Filled,
    MaskJob,
    State,
    allows,
    num_legal,
)
from eyas.constraint.borrowed import when_free, without_panic
from eyas.constraint.canonical import canonical_trees
from eyas.constraint.deep import on_deep_stack
from eyas.constraint.faults import described, named, refused_leaf
from eyas.constraint.lark import to_llguidance
from eyas.constraint.library_tokenizer import library_tokenizer
from eyas.constraint.llguidance_grammar import LlguidanceGrammar
from eyas.constraint.llguidance_states import LlguidanceState
from eyas.constraint.priority import give_way
from eyas.constraint.vocabulary import Vocabulary
from eyas.core import GrammarError
from eyas.grammar import Node, OutputSpec, Source, leaves

MAX_ITEMS_IN_ROW = 20_000
"""Ten times the library's own, for objects with thousands of optional properties. The other limits
stay: they count work and memory, never time, so a fresh automaton hits them at the same token again."""
MAX_LANES = 8
"""Of a grammar; each takes its memory once more."""


class LlguidanceBackend(Backend):
    """llguidance over one vocabulary."""

    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary, *, num_threads: int = 1) -> None:
        self.vocabulary = vocabulary
        self.eos_token_ids = frozenset(vocabulary.eos_token_ids)
        self._end = list(vocabulary.eos_token_ids[:1])
        self._tokenizer = library_tokenizer(vocabulary)
        self._limits = llguidance.LLParserLimits(
            verbose_errors=False, max_items_in_row=MAX_ITEMS_IN_ROW
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
        return self._compile(spec.root, spec.param, canonical_trees(spec.root))

    def expect(self, states: Sequence[State]) -> None:
        for state in states:
            assert isinstance(state, LlguidanceState)
            with suppress(ConstraintFailure):  # it comes again when the masks are asked for
                state.expect_draft()

    def job(
        self,
        states: Sequence[State],
        mask_RK: np.ndarray,
        rows: Sequence[int] | None = None,
        drafts: Sequence[Sequence[int]] | None = None,
    ) -> MaskJob:
        assert mask_RK.dtype == np.int32 and mask_RK.flags.c_contiguous
        assert mask_RK.shape[1] == self._num_words
        behind = [()] * len(states) if drafts is None else drafts
        asked: dict[tuple[int, tuple[int, ...], bool], _Asked] = {}
        for i, state in enumerate(states):
            assert isinstance(state, LlguidanceState)
            if state.matcher is None:
                continue
            row = i if rows is None else rows[i]
            draft = behind[i]
            assert row + len(draft) < len(mask_RK)
            tokens = self.spelled(draft)
            key = (id(state.matcher), tuple(tokens), bool(draft))
            shown = tokens or self._end[: len(draft)]
            asked.setdefault(key, _Asked(state, tuple(tokens), shown)).places.append((i, row))
        has_drafts = any(each.tokens for each in asked.values())
        together = [each for each in asked.values() if has_drafts and each.shown]
        # Roots alone first; then lane by lane, since the threads share out the row in parts.
        together.sort(
            key=lambda each: (bool(each.tokens), id(each.state.grammar), each.state.place.lane)
        )
        alone = [each for each in asked.values() if not (has_drafts and each.shown)]
        for each in together:
            each.matcher, is_dear = each.state.for_draft()
            each.comes_back = is_dear and bool(each.tokens)

        def settle() -> list[Filled | None]:
            found: list[Filled | None] = [Filled(0, 0)] * len(states)
            every = list(asked.values())
            last = num_legal(mask_RK, [each.row for each in every], [each.tokens for each in every])
            for each, num in zip(every, last, strict=True):
                if each.comes_back and not when_free(each.matcher.is_error):
                    each.state.come_back(each.matcher)
                row, size = each.row, 1 + len(each.tokens)
                mask_RK[row + size : row + 1 + len(each.shown)] = 0
                filled = self._settle(each, num, mask_RK[row + num])
                for i, other in each.places:
                    found[i] = filled and self._over_end(filled, behind[i], mask_RK[row + num])
                    if other != row:
                        mask_RK[other : other + size] = mask_RK[row : row + size]
            return found

        return MaskJob(self._run(together, alone, mask_RK), settle)

    def _settle(self, asked: _Asked, num: int, last_K: np.ndarray) -> Filled | None:
        """Take back the end, which the library allows also where nothing can follow, and where it has
        hit a limit; None where it hit that at the root. last_K: the mask after `num` legal tokens."""
        num_words, ends = np.count_nonzero(last_K), self.eos_token_ids
        if num_words > len(ends) or (num_words and not any(allows(last_K, end) for end in ends)):
            return Filled(num, num + 1)
        if when_free(asked.matcher.is_error):
            last_K[:] = 0
            return Filled(num, num) if num else None
        matcher = asked.matcher
        if num:
            matcher = asked.state.copy()
            matcher.try_consume_tokens(list(asked.tokens[:num]))
        if when_free(lambda: matcher.is_stopped() and not matcher.is_accepting()):
            last_K[:] = 0
        return Filled(num, num + bool(last_K.any()))

    def _over_end(self, filled: Filled, draft: Sequence[int], last_K: np.ndarray) -> Filled:
        """The same, where a draft goes on with an end, which the library was not shown."""
        num = filled.num_legal
        if num == len(draft) or draft[num] not in self.eos_token_ids:
            return filled
        return Filled(num + 1, num + 1) if allows(last_K, draft[num]) else filled

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

    def _run(
        self, together: Sequence[_Asked], alone: Sequence[_Asked], mask_RK: np.ndarray
    ) -> Callable[[], None]:
        """The library's calls: it has one for matchers with drafts, which must not be empty, and one
        for those without. Matchers that come back from a draft are asked for their first mask again."""
        drafts = [(each.matcher, each.row, each.shown) for each in together]
        roots = [(each.matcher, each.row) for each in alone]
        back = [each.matcher for each in together if each.comes_back]
        nobodys_RK = np.empty((len(back), self._num_words), dtype=np.int32)
        rest = (mask_RK.ctypes.data, self._num_words * 4, len(mask_RK))

        def run() -> None:
            if drafts:
                self._executor.unsafe_compute_mask_ptr_with_draft_token(drafts, *rest)
            self._fill_rows(roots, mask_RK)
            self._fill_rows([(matcher, i) for i, matcher in enumerate(back)], nobodys_RK)

        return run

    def _fill_rows(
        self, asked: list[tuple[llguidance.LLMatcher, int]], mask_RK: np.ndarray
    ) -> None:
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
            text = to_llguidance(root)
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
                self._warm(self.matcher(to_llguidance(leaf)), grammar, param)
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
        text = to_llguidance(node)
        try:
            with without_panic:
                return on_deep_stack(
                    lambda: llguidance.LLMatcher.validate_grammar(
                        text, self._tokenizer, limits=self._limits
                    )
                )
        except ConstraintFailure:
            return _FAILED


@dataclass(slots=True)
class _Asked:
    """A state and the draft behind it, with all (index, row) that want its masks. shown: the draft as
    the library sees it, an end where no token is left of it. comes_back: the matcher is kept."""

    state: LlguidanceState
    tokens: tuple[int, ...]
    shown: list[int]
    matcher: Any = None
    comes_back: bool = False
    places: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.matcher = self.state.matcher

    @property
    def row(self) -> int:
        """Where they are written first."""
        return self.places[0][1]


_FAILED = "the grammar library failed on it; write it in another way"
_NOTHING_FOLLOWS = "NoExtension"
"""How the library's error begins where no text can match."""
