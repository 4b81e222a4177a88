"""How much of a law `make test` runs, and what `make laws` adds (pytest's option `--thorough`).

`make test` runs every path of the code with few draws and with pairs of conditions; `make laws` runs
all combinations and many draws.
"""

from __future__ import annotations

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
