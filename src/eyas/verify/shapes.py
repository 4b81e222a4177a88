"""Tree shapes of measurements, and the number of rows that a step needs for them.

Promises: shapes that give the same trees are normalised to one shape.
Does not know: drafters.
"""

from __future__ import annotations

from collections.abc import Sequence

from eyas.config import SchedulerConfig
from eyas.draft import TreeShape

MOST_ROWS = 49152
"""Most rows of the trees of a step: three quarters of the largest `max_batch_tokens`."""


def normal(shape: TreeShape) -> TreeShape:
    """Return the smallest shape that gives the same trees.

    A chain has one node a level. A tree has no more nodes than its levels can hold, and no more
    levels or children than nodes below the root.
    """
    steps, topk, nodes = shape.steps, shape.topk, shape.nodes
    if topk == 1:
        return TreeShape(steps, 1, steps + 1)
    steps, topk = min(steps, nodes - 1), min(topk, nodes - 1)
    if topk == 1:
        return TreeShape(steps, 1, steps + 1)
    return TreeShape(steps, topk, min(nodes, 1 + TreeShape(steps, topk, nodes).num_candidates))


def batch_tokens(sizes: Sequence[int], shapes: Sequence[TreeShape]) -> int:
    """Return the `max_batch_tokens` with which no tree is cut, even while prompts wait.

    sizes: numbers of sequences. Raises ValueError if no step can have so many rows.
    """
    rows = max(sizes) * max(shape.nodes for shape in shapes)
    if rows > MOST_ROWS:
        raise ValueError(
            f"--nodes: {max(sizes)} sequences with their largest trees are {rows} rows a step, and "
            f"{MOST_ROWS} are the most; give a smaller --batch or smaller --nodes"
        )
    return max(SchedulerConfig().limits(on_gpu=False).max_rows, -(-4 * rows // 3))
