"""Bounds and steps of numbers in the form that the backend enforces.

The backend reads 15 digits of a bound exactly. For some pairs of bounds it allows an excluded bound
on the side of the range that is nearer to zero: such a bound is written as the next number of 15
digits, included. An excluded bound on the other side is kept; only a text of digits that rounds to
it, such as 0.99999999999999999999 below 1, is allowed although it is not valid.

Narrowing: the above; bounded numbers have no exponent; a bound beyond 10^18 counts as 10^18, and one
nearer to zero than 10^-60 as 10^-60 where it excludes zero, else as zero.
Does not know: schemas.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

LARGEST = 10**18
MAX_EXACT = 2**53
_SMALLEST = 1e-60
_SIDES = {
    **dict.fromkeys(("minimum", "exclusiveMinimum"), ROUND_CEILING),
    **dict.fromkeys(("maximum", "exclusiveMaximum"), ROUND_FLOOR),
}
_WIDE = Context(prec=100)
_DIGITS = Context(prec=15, rounding=ROUND_FLOOR)


def least(bound: float, *, excluded: bool, integer: bool) -> dict[str, Any] | None:
    """Return the keyword for a lower bound; None if no number above it can be written."""
    if -_SMALLEST < bound < 0:
        bound, excluded = 0, False
    if bound < 0 and excluded and not integer and is_exact(bound):
        return {"exclusiveMinimum": bound}
    low = -_upper(-bound, excluded=excluded, integer=integer)
    if 0 < low < _SMALLEST:
        low = _SMALLEST
    return None if low > LARGEST else {"minimum": max(low, -LARGEST)}


def most(bound: float, *, excluded: bool, integer: bool) -> dict[str, Any] | None:
    """Return the keyword for an upper bound; None if no number below it can be written."""
    if 0 < bound < _SMALLEST:
        bound, excluded = 0, False
    if bound > 0 and excluded and not integer and is_exact(bound):
        return {"exclusiveMaximum": bound}
    high = _upper(bound, excluded=excluded, integer=integer)
    if -_SMALLEST < high < 0:
        high = -_SMALLEST
    return None if high < -LARGEST else {"maximum": min(high, LARGEST)}


def on_multiples(bounds: dict[str, Any], step: float) -> dict[str, Any] | None:
    """Return the bounds (keyword -> number) moved inwards to multiples of `step`; None if no multiple
    is between them."""
    unit = Decimal(repr(step))
    places: dict[str, Decimal] = {}
    for keyword, rounding in _SIDES.items():
        if keyword not in bounds:
            continue
        bound = Decimal(repr(bounds[keyword]))
        count = _WIDE.divide(bound, unit).to_integral_value(rounding)
        if keyword.startswith("exclusive") and count * unit == bound:
            count += 1 if rounding == ROUND_CEILING else -1
        side = "minimum" if rounding == ROUND_CEILING else "maximum"
        narrower = max if side == "minimum" else min
        places[side] = narrower(count, places.get(side, count))
    if len(places) == 2 and places["minimum"] > places["maximum"]:
        return None
    found = {side: _plain(_WIDE.multiply(count, unit)) for side, count in places.items()}
    return found if all(map(is_exact, found.values())) else bounds


def _plain(value: Decimal) -> float:
    return int(value) if value == value.to_integral_value() else float(value)


def is_exact(value: float) -> bool:
    """Whether the backend reads exactly this number."""
    if isinstance(value, int):
        return abs(value) <= MAX_EXACT
    return abs(value) < LARGEST and float(f"{value:.15g}") == value


def _upper(bound: float, *, excluded: bool, integer: bool) -> float:
    """Return an included upper bound."""
    if integer:
        whole = math.floor(bound)
        whole -= excluded and whole == bound
        if abs(whole) <= MAX_EXACT or abs(whole) >= LARGEST:
            return whole
        near = float(whole)
        return math.nextafter(near, -math.inf) if near > whole else near
    if not excluded and is_exact(bound):
        return bound
    if bound == 0:
        return -_SMALLEST
    exact = Decimal(repr(bound))
    return float(_DIGITS.next_minus(exact) if excluded else _DIGITS.plus(exact))
