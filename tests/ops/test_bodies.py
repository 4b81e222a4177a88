"""Every operation has bodies that can stand in for each other."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from eyas import ops
from eyas.ops.dispatch import Operation

FILES = sorted(path.stem for path in Path(ops.__path__[0]).glob("[!_]*.py"))
MODULES = [import_module(f"eyas.ops.{name}") for name in FILES]
OPERATIONS: list[Operation[Any, Any, Any]] = [
    value
    for module in MODULES
    for value in vars(module).values()
    if isinstance(value, Operation) and value.__module__ == module.__name__
]

PARTS = ("choose_processed", "gumbel", "gumbel_at")
"""Operations that kernels of others compute on a device."""


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_an_operation_has_other_bodies_of_one_signature(
    operation: Operation[Any, Any, Any],
) -> None:
    assert isinstance(operation, Operation) and operation.__doc__
    has_kernel = operation.by_kernel is not operation.by_torch
    assert has_kernel == (operation.__name__ not in PARTS)
    assert has_kernel or operation.by_native is not None
    for body in {operation.by_kernel, operation.by_native} - {None}:
        assert body is not None
        assert inspect.signature(body) == inspect.signature(operation.by_torch)


def test_a_cpu_needs_no_triton() -> None:
    names = ", ".join(f"eyas.ops.{name}" for name in FILES)
    code = f"import sys, {names}; assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
