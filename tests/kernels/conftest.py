"""Kernels are tested on the device, and without one in triton's interpreter (tests/conftest.py)."""

from __future__ import annotations

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
