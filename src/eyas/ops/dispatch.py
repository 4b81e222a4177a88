"""Operations, and the one place where the body of a call is chosen.

Promises: a call costs one check of a tensor's device.
Does not know: the operations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Concatenate, Generic, ParamSpec, TypeVar

import torch

from eyas.kernels import usable

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Operation(Generic[Parameters, Result]):
    """A function whose first argument is a tensor, with two bodies of the same parameters.

    by_torch: runs on any device, and is the reference. by_kernel: runs where Triton kernels run.
    Created as the decorator of the torch body; `kernel` is the decorator of the other one.
    """

    def __init__(self, by_torch: Callable[Concatenate[torch.Tensor, Parameters], Result]) -> None:
        update_wrapper(self, by_torch)
        self.by_torch = self.by_kernel = by_torch

    def kernel(
        self, by_kernel: Callable[Concatenate[torch.Tensor, Parameters], Result]
    ) -> Callable[Concatenate[torch.Tensor, Parameters], Result]:
        """Register the body that runs kernels."""
        self.by_kernel = by_kernel
        return by_kernel

    def __call__(
        self, x: torch.Tensor, /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        body = self.by_kernel if usable(x.device) else self.by_torch
        return body(x, *args, **kwargs)
