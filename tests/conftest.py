"""What every test shares: one thread, since many on a busy machine have a terrible tail.

Without a device kernels run in triton's interpreter, which must be known before anybody imports triton
(xgrammar does).
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import httpx
import pytest
import torch

# Where it is not told otherwise httpx gives up after five seconds, which a busy machine may need.
_PATIENCE = inspect.signature(httpx.get).parameters["timeout"].default
for _phase in ("connect", "read", "write", "pool"):
    setattr(_PATIENCE, _phase, 300.0)

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if find_spec("triton") is not None:
        from tests.interpreter import make_quick

        make_quick()


SAFE_PATH = "PYTHONSAFEPATH"
_SAFE_PATH_AT_FIRST = os.environ.get(SAFE_PATH)


@pytest.fixture(autouse=True)
def _safe_path_is_left_as_it_was() -> Iterator[None]:
    """Commands set it for their children; scripts of other tests would not find their modules."""

    def restore() -> None:
        if _SAFE_PATH_AT_FIRST is None:
            os.environ.pop(SAFE_PATH, None)
        else:
            os.environ[SAFE_PATH] = _SAFE_PATH_AT_FIRST

    restore()
    yield
    restore()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    logging.getLogger("eyas").setLevel(logging.CRITICAL)
    yield


@pytest.fixture(scope="session", autouse=True)
def _orders_are_found_once() -> Iterator[None]:
    """At which row counts products of some shapes keep their bits is a fact of this machine: engines
    that are built alike need not measure it again. Its own tests measure it themselves."""
    from eyas.engine import build

    find = build.find_row_order

    @cache
    def found(num_threads: int, shapes: Any, heads: Any, *others: Any) -> Any:
        return find(shapes, *others, heads=heads)

    def find_once(shapes: Any, *others: Any, heads: Any) -> Any:
        return found(torch.get_num_threads(), tuple(shapes), tuple(heads), *others)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(build, "find_row_order", find_once)
        yield


@pytest.fixture(params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """The types this processor computes exactly in."""
    chosen: torch.dtype = getattr(torch, request.param)
    from eyas.models import cpu_has_bfloat16

    if chosen is torch.bfloat16 and not cpu_has_bfloat16():
        pytest.skip("this processor has no bfloat16")
    return chosen
