"""A drafter whose tree shape is chosen step by step.

Promises: every landed step is reported to the policy, with all the time that drafting took in it.
Does not know: how a shape is chosen (`eyas.draft.shape_policy`).
"""

from __future__ import annotations

from collections import deque

from eyas.draft.base import MAX_REMEMBERED, Drafter, DrafterWrapper, StepReport, TreeShape
from eyas.draft.estimates import StepSize
from eyas.draft.shape_policy import LandedStep, ShapePolicy
from eyas.draft_tree import DraftTree
from eyas.runner.batch import Batch, num_context_rows


class AdaptiveDrafter(DrafterWrapper):
    """inner: the drafter. policy: chooses its shapes and learns from landed steps."""

    def __init__(self, inner: Drafter, policy: ShapePolicy) -> None:
        super().__init__(inner)
        self._policy = policy
        self._preferred = inner.shape
        self._proposed: deque[tuple[DraftTree, TreeShape]] = deque(maxlen=MAX_REMEMBERED)

    def preferred_shape(
        self, num_sequences: int, num_constrained: int = 0, num_prompt_rows: int = 0
    ) -> TreeShape:
        if num_sequences:  # else the step has prompt chunks alone, and the shape stays
            self._preferred = self._policy.choose(StepSize(num_sequences, num_prompt_rows))
        return self._preferred

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        tree = self._inner.propose(batch, shape)
        if batch.rooted:
            size = StepSize(len(batch.rooted), num_context_rows(batch.spans))
            self._policy.set_missing_rows(size, self._inner.num_missing(batch))
        self._proposed.append((tree, shape))
        return tree

    def learn(self, report: StepReport) -> None:
        self._inner.learn(report)
        shape = next((shape for tree, shape in self._proposed if tree is report.tree), None)
        if shape is None:
            return
        latest_tree, latest_shape = self._proposed[-1]  # may have run in the same time
        self._policy.learn(
            LandedStep(
                StepSize(len(report.counts), report.num_prompt_rows),
                shape,
                _outcomes(report) if shape.steps else {},
                report.seconds,
                is_chain=report.tree.is_chain,
                is_steady=latest_shape == shape and not latest_tree.num_caught_up,
                num_caught_up=report.tree.num_caught_up,
            )
        )


def _outcomes(report: StepReport) -> dict[int, tuple[int, int]]:
    """Return (tokens drafted, of them accepted) by sequence.

    In a step with prompt chunks, sequences without a draft are left out: they may have had no place for
    one.
    """
    results = zip(report.sequences, report.counts, report.sizes, strict=True)
    return {
        sequence: (size - 1, max(0, count - 1))
        for sequence, count, size in results
        if size > 1 or not report.num_prompt_rows
    }
