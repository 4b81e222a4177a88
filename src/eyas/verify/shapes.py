"""Shapes of trees, and the rows of a step that they need.

Promises: shapes with the same tree become the same shape. Does not know: who drafts.
"""

from __future__ import annotations

from collections.abc import Sequence

from eyas.config import SchedulerConfig
from eyas.draft import TreeShape

MOST_ROWS = 49152
"""Rows of a step: three quarters of the most that a scheduler takes."""


def normal(shape: TreeShape) -> TreeShape:
    """The least shape with the same tree: a chain has its levels and the root; no tree has more
    nodes than its levels hold, nor more levels or children than it has nodes below the root."""
    steps, topk, nodes = shape.steps, shape.topk, shape.nodes
    if topk == 1:
        return TreeShape(steps, 1, steps + 1)
    steps, topk = min(steps, nodes - 1), min(topk, nodes - 1)
    if topk == 1:
        return TreeShape(steps, 1, steps + 1)
    return TreeShape(steps, topk, min(nodes, 1 + TreeShape(steps, topk, nodes).num_candidates))


def batch_tokens(sizes: Sequence[int], shapes: Sequence[TreeShape]) -> int:
    """Rows of a step that leave every tree its nodes, also while prompts wait."""
    rows = max(sizes) * max(shape.nodes for shape in shapes)
    if rows > MOST_ROWS:
        raise ValueError(
            f"--nodes: {max(sizes)} sequences with their largest trees are {rows} rows a step, and "
            f"{MOST_ROWS} are the most; give a smaller --batch or smaller --nodes"
        )
    return max(SchedulerConfig().rows(on_gpu=False), -(-4 * rows // 3))
