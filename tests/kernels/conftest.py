"""Kernels are tested on the device, and where there is none in triton's interpreter."""

from __future__ import annotations

import os
import sys

import pytest
import torch

if not torch.cuda.is_available() and "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"

pytest.importorskip("triton")


@pytest.fixture
def device() -> torch.device:
    """Where kernels run."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
