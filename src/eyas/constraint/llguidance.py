"""The default backend: llguidance, which refuses what it cannot enforce.

Promises: padding and nameless ids are never legal; masks allow every spelling of a forced text and
never call the tokenizer, so they need no interpreter.
Does not know: when grammars are compiled, budgets, trees.

Legend: R mask rows, K 32-bit words of a row.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

import llguidance
import numpy as np

from eyas.constraint.base import ConstraintFailure, MaskJob, State
from eyas.constraint.canonical import canonical_trees
from eyas.constraint.deep import on_deep_stack
from eyas.constraint.faults import described, named, never_ends, refused_leaf
from eyas.constraint.lark import to_llguidance
from eyas.constraint.library_calls import without_panic
from eyas.constraint.llguidance_grammar import LlguidanceGrammar
from eyas.constraint.llguidance_library import LlguidanceLibrary
from eyas.constraint.llguidance_masks import LlguidanceMasks
from eyas.constraint.llguidance_states import CanonicalState, LlguidanceState
from eyas.constraint.vocabulary import Vocabulary
from eyas.core import GrammarError
from eyas.grammar import SPACING, Node, OutputSpec, Source, Spacing, leaves


class LlguidanceBackend(LlguidanceLibrary):
    """llguidance over one vocabulary."""

    name = "llguidance"

    def __init__(
        self, vocabulary: Vocabulary, *, num_threads: int = 1, spacing: Spacing = SPACING
    ) -> None:
        """spacing: of schemas that do not set their own."""
        super().__init__(vocabulary, num_threads=num_threads)
        self._spacing = spacing

    def compile(self, spec: OutputSpec) -> LlguidanceGrammar:
        try:
            canonical = canonical_trees(spec.root, self._spacing)
        except GrammarError as error:
            raise named(error, spec.param) from None
        return self._compile(spec.root, spec.param, canonical)

    def expect(self, states: Sequence[State]) -> None:
        for state in states:
            if isinstance(state, LlguidanceState) and state.matcher is not None:
                with suppress(ConstraintFailure):  # raised again when the masks are asked for
                    state.draft_matcher(None)

    def validate(self, state: State, tokens: Sequence[int]) -> int:
        assert isinstance(state, LlguidanceState)
        return state.num_legal(tokens)

    def job(
        self,
        states: Sequence[State],
        mask_RK: np.ndarray,
        rows: Sequence[int] | None = None,
        drafts: Sequence[Sequence[int]] | None = None,
        paths: Sequence[Sequence[int]] | None = None,
    ) -> MaskJob:
        job = LlguidanceMasks(self, states, mask_RK, rows, drafts, paths)
        return MaskJob(job.run, job.settle)

    def compile_alone(self, root: Node) -> LlguidanceGrammar:
        grammar = self._compile(root, None, ())
        return grammar.started_by(CanonicalState)

    def _compile(
        self, root: Node, param: str | None, canonical: Sequence[Node]
    ) -> LlguidanceGrammar:
        """Compile; a panic of the library counts as a refusal."""
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
        grammar = LlguidanceGrammar(self, text, matcher, LlguidanceState, canonical)
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
        """Fill the first mask, which takes longest; it must not be empty."""
        mask_1K = np.zeros((1, self._num_words), dtype=np.int32)
        is_over = bool(self.fill([LlguidanceState(grammar, matcher)], mask_1K))
        if is_over:
            error = GrammarError(
                "the grammar is too large to begin with: its first step is over the compiler's "
                "limits; lower its repetition counts or lengths",
                "too_complex",
            )
            raise named(error, param)
        if not mask_1K.any():
            raise named(never_ends(), param)

    def _refusal(self, node: Node) -> str | None:
        """Return the library's message about one leaf by itself."""
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
