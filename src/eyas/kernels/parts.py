"""Reading a product that may have been left as parts of a sum.

Promises: parts are added in ascending order in float32.
Does not know: which product made the parts.

Legend: Z parts of a sum.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def part_sum(first_part, part_stride, is_inside, NUM_PARTS: tl.constexpr):
    """The sums of numbers over their parts, float32. first_part: where those of the first part are."""
    total = tl.load(first_part, mask=is_inside, other=0.0).to(tl.float32)
    for _part in tl.static_range(1, NUM_PARTS):
        first_part += part_stride
        total += tl.load(first_part, mask=is_inside, other=0.0).to(tl.float32)
    return total
