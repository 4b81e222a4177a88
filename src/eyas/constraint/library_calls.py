"""Calls of a library in Rust, whose objects can be used by one thread at a time and whose panics are
not of type `Exception`.

Promises: a call is made once, when no other thread uses its objects; a panic ends no thread.
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
"""Other classes that are no `Exception` are a library's panic."""


def when_free(call: Callable[[], _T]) -> _T:
    """Make the call as soon as no other thread uses its objects."""
    while True:
        try:
            return call()
        except RuntimeError as error:
            if "borrowed" not in str(error):
                raise
            time.sleep(_PAUSE_SECONDS)


class _WithoutPanic:
    """A context in which a panic becomes a `ConstraintFailure`."""

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
