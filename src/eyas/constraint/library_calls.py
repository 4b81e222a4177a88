"""Objects of a library in Rust, which refuses who comes while another thread uses one of them.

Its panics are no `Exception`.

Promises: the call is made once it is let in, and once only; a panic ends nobody's thread.
Does not know: what is called.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from eyas.constraint.base import ConstraintFailure

_T = TypeVar("_T")
_PAUSE_SECONDS = 0.0002
OF_THE_HOST = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What else is no `Exception` is a library's panic."""


def when_free(call: Callable[[], _T]) -> _T:
    """The call, as soon as no other thread uses what it reads."""
    while True:
        try:
            return call()
        except RuntimeError as error:
            if "borrowed" not in str(error):
                raise
            time.sleep(_PAUSE_SECONDS)


class _WithoutPanic:
    """What is done inside may fail; a panic is a `ConstraintFailure` like any other."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, (Exception, *OF_THE_HOST)):
            raise ConstraintFailure("the grammar library failed on this output") from error


without_panic = _WithoutPanic()
