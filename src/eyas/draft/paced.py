"""A drafter whose shape is chosen step by step.

Promises: every step that landed is reported to the pace, with all the time that drafting took in it.
Does not know: how a shape is chosen (`eyas.draft.pace`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from eyas.core import DraftTree
from eyas.draft.base import MAX_REMEMBERED, Drafter, DrafterWrapper, StepReport, TreeShape
from eyas.draft.pace import Pace
from eyas.runner.batch import Batch, num_context_rows


@dataclass(frozen=True, slots=True)
class _Proposed:
    tree: DraftTree
    shape: TreeShape


class PacedDrafter(DrafterWrapper):
    """inner: the drafter. pace: chooses the shapes, and learns what they brought."""

    def __init__(self, inner: Drafter, pace: Pace) -> None:
        super().__init__(inner)
        self._pace = pace
        self._preferred = inner.shape
        self._proposed: deque[_Proposed] = deque(maxlen=MAX_REMEMBERED)

    def preferred_shape(
        self, num_sequences: int, num_constrained: int = 0, num_prompt_rows: int = 0
    ) -> TreeShape:
        if num_sequences:  # else prompts alone are stored: who steps next is not known yet
            self._preferred = self._pace.choose(num_sequences, num_prompt_rows)
        return self._preferred

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        tree = self._inner.propose(batch, shape)
        if batch.rooted:
            num_prompt_rows = num_context_rows(batch.spans)
            self._pace.miss(len(batch.rooted), self._inner.num_missing(batch), num_prompt_rows)
        self._proposed.append(_Proposed(tree, shape))
        return tree

    def learn(self, report: StepReport) -> None:
        self._inner.learn(report)
        shape = next((each.shape for each in self._proposed if each.tree is report.tree), None)
        if shape is None:
            return
        fates: list[tuple[int, int]] = []
        sequences: list[int] = []
        if shape.steps:
            for number, count, size in zip(
                report.sequences, report.counts, report.sizes, strict=True
            ):
                if size > 1 or report.seconds is not None:  # others may have had prompts to store
                    fates.append((size - 1, max(0, count - 1)))
                    sequences.append(number)
        latest = self._proposed[-1]  # of a step that may have shared the time
        is_steady = latest.shape == shape and not latest.tree.num_caught_up
        self._pace.learn(
            len(report.counts),
            shape,
            fates,
            report.seconds,
            is_chain=report.tree.is_chain,
            is_steady=is_steady,
            sequences=sequences,
            num_caught_up=report.tree.num_caught_up,
            num_prompt_rows=report.num_prompt_rows,
        )
