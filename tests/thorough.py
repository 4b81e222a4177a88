"""How much of a law `make test` runs, and what `make laws` adds (pytest's option `--thorough`).

`make test` runs every path of the code with few draws and with pairs of conditions; `make laws` runs
all combinations and many draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any, TypeVar

import pytest
from hypothesis import settings

T = TypeVar("T")
PROFILE = "thorough"
"""The profile of Hypothesis that `--thorough` loads."""


def drawn(quick: T, thorough: T) -> T:
    """Return `thorough` with `--thorough`, else `quick`: a number of examples, or cases of a loop."""
    return thorough if settings.get_current_profile_name() == PROFILE else quick


def only_thorough(*cases: Any) -> list[Any]:
    """Return parameters of `pytest.mark.parametrize` that run with `--thorough` alone.

    cases: a value each, or a tuple of values where there are several names.
    """
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.thorough)
        for case in cases
    ]


def pairs(*conditions: Sequence[Any]) -> list[Any]:
    """Return the product of the conditions as parameters of `pytest.mark.parametrize`: a subset in
    which every two values of two conditions meet runs always, the rest with `--thorough`.

    conditions: the values of each of the test's parameters, in their order.
    """
    cases = list(product(*(range(len(values)) for values in conditions)))
    met: dict[tuple[int, ...], set[tuple[int, int, int, int]]] = {
        case: {(i, case[i], j, case[j]) for i, j in combinations(range(len(case)), 2)}
        for case in cases
    }
    missing = set().union(*met.values())
    chosen: set[tuple[int, ...]] = set()
    while missing:
        best = max(cases, key=lambda case: len(met[case] & missing))
        chosen.add(best)
        missing -= met[best]
    return [
        pytest.param(
            *values,
            marks=[] if case in chosen else pytest.mark.thorough,
            id="-".join(getattr(value, "__name__", str(value)) for value in values),
        )
        for case, values in zip(cases, product(*conditions), strict=True)
    ]
