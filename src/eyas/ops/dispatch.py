"""Operations, and the one place where the body of a call is chosen.

Promises: a call costs one check of a device.
Does not know: the operations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Concatenate, Generic, ParamSpec, Protocol, TypeVar

import torch

from eyas.kernels import usable


class OnDevice(Protocol):
    """A tensor, or what consists of tensors."""

    @property
    def device(self) -> torch.device: ...


First = TypeVar("First", bound=OnDevice)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Operation(Generic[First, Parameters, Result]):
    """A function whose first argument is on a device, with several bodies of the same parameters.

    by_torch: runs on any device, and is the reference. by_kernel: runs where Triton kernels run;
    by_native: elsewhere, with compiled C. Both return NotImplemented for a call that they leave to
    torch. Created as the decorator of the torch body; `kernel` and `native` are those of the others.
    A body may call other operations.
    """

    def __init__(self, by_torch: Callable[Concatenate[First, Parameters], Result]) -> None:
        update_wrapper(self, by_torch)
        self.by_torch = self.by_kernel = by_torch
        self.by_native: Callable[Concatenate[First, Parameters], Result] | None = None

    def kernel(
        self, by_kernel: Callable[Concatenate[First, Parameters], Result]
    ) -> Callable[Concatenate[First, Parameters], Result]:
        """Register the body that runs kernels."""
        self.by_kernel = by_kernel
        return by_kernel

    def native(
        self, by_native: Callable[Concatenate[First, Parameters], Result]
    ) -> Callable[Concatenate[First, Parameters], Result]:
        """Register the body that runs compiled C."""
        self.by_native = by_native
        return by_native

    def __call__(self, x: First, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        body = self.by_kernel if usable(x.device) else self.by_native
        if body is not None:
            result = body(x, *args, **kwargs)
            if result is not NotImplemented:
                return result
        return self.by_torch(x, *args, **kwargs)
