"""Which body of an operation runs in a test."""

from __future__ import annotations

from typing import Any

import pytest

from eyas.ops.dispatch import Operation


def take_kernels(patch: pytest.MonkeyPatch, *operations: Operation[Any, Any, Any]) -> None:
    """Let these operations run their kernels on any device."""
    for operation in operations:
        patch.setattr(operation, "by_torch", operation.by_kernel)
        patch.setattr(operation, "by_native", None)


def take_torch(patch: pytest.MonkeyPatch, *operations: Operation[Any, Any, Any]) -> None:
    """Let these operations run their torch bodies on any device."""
    for operation in operations:
        patch.setattr(operation, "by_kernel", operation.by_torch)
