"""How many times as fast one contestant is as another, and how sure that is.

Promises: ratios are taken within a round, so that a machine's drift is in both; the interval holds
whatever the times' distribution is. Does not know: what ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import median
from typing import Any

from eyas.verify.contestants import Measurement


def ratio(runs: Sequence[Measurement], plain: Sequence[Measurement]) -> dict[str, Any]:
    """How many times as fast as plain decoding of the same round: the median of the rounds with its
    interval."""
    ratios = [own.speed / other.speed for own, other in zip(runs, plain, strict=True)]
    low, high, coverage = median_interval(ratios)
    return {
        "median": round(median(ratios), 3),
        "low": round(low, 3),
        "high": round(high, 3),
        "coverage": round(coverage, 3),
        "rounds": len(ratios),
    }


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The narrowest pair of order statistics, as far from either end, that holds the median of where
    the values come from with probability 0.95 or more, whatever their distribution; and that
    probability. Fewer than six values reach no 0.95; then it is their range."""
    ordered, num = sorted(values), len(values)
    cut, outside = 0, 2 / 2**num
    while 2 * (cut + 2) <= num:
        more = outside + 2 * comb(num, cut + 1) / 2**num
        if 1 - more < 0.95:
            break
        cut, outside = cut + 1, more
    return ordered[cut], ordered[num - 1 - cut], max(0.0, 1 - outside)
