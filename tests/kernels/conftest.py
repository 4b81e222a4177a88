"""Kernels are tested on the device, and without one in triton's interpreter (tests/conftest.py)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

try:
    import triton  # noqa: F401
except ImportError:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def device() -> torch.device:
    """Where kernels run."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _loops_of_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter makes loop bounds of arrays of one element, which numpy no longer takes."""
    if torch.cuda.is_available():
        return
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
