"""The ratio of the speeds of two contestants, with a confidence interval.

Promises: ratios are taken within a round, so that a drift of the machine affects both; the interval
is valid for every distribution of times. Does not know: what ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import median
from typing import Any

from eyas.verify.contestants import Measurement


def ratio(runs: Sequence[Measurement], plain: Sequence[Measurement]) -> dict[str, Any]:
    """Return the median over rounds of the speed relative to plain decoding, with its interval."""
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
    """Return a confidence interval of the median of at least 95 %, and its coverage.

    The bounds are order statistics, equally far from both ends, so that the interval is valid for
    every distribution. Fewer than six values cannot reach 95 %; their range is returned.
    """
    ordered, num = sorted(values), len(values)
    cut, outside = 0, 2 / 2**num
    while 2 * (cut + 2) <= num:
        more = outside + 2 * comb(num, cut + 1) / 2**num
        if 1 - more < 0.95:
            break
        cut, outside = cut + 1, more
    return ordered[cut], ordered[num - 1 - cut], max(0.0, 1 - outside)
