"""Objects of a library in Rust, which refuses who comes while another thread uses one of them.

Promises: the call is made once it is let in, and once only.
Does not know: what is called.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
_PAUSE_SECONDS = 0.0002


def when_free(call: Callable[[], _T]) -> _T:
    """The call, as soon as no other thread uses what it reads."""
    while True:
        try:
            return call()
        except RuntimeError as error:
            if "borrowed" not in str(error):
                raise
            time.sleep(_PAUSE_SECONDS)
