"""Triton's interpreter, without doing over what it has done.

Most of the time of a kernel here goes into what is found anew for each operation and is the same every
time: that all of triton's language has been replaced by the interpreter's operations, what the type of
a block of some shape is, which type of numpy a type has, whether shapes fit. It is found once. And sums
are not computed a second time in 64 bits for an assertion that is made in debug mode alone. Whatever
else the interpreter does, and all it computes, stays. Of another triton than 3.6 only the first is so.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton._utils import validate_block_shape
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter


def make_quick() -> None:
    """Once, before a kernel runs."""
    _replace_language_once()
    if triton.__version__.startswith("3.6."):
        _find_types_once()
        _leave_equal_shapes_alone()
        builder = interpreter.interpreter_builder
        assert not builder.options.debug
        builder.options = replace(builder.options, sanitize_overflow=False)


def _replace_language_once() -> None:
    whole = interpreter._patch_lang

    @cache
    def languages_of(function: FunctionType) -> list[Any]:
        seen = [module for module in function.__globals__.values() if inspect.ismodule(module)]
        return [module for module in seen if module in (tl, tl.core)]

    def patch(function: FunctionType) -> interpreter._LangPatchScope:
        languages = languages_of(function)
        if languages and not any(tl.core.is_builtin(language.load) for language in languages):
            return interpreter._LangPatchScope()
        return whole(function)

    interpreter._patch_lang = patch


@cache
def _block(shape: tuple[int, ...]) -> tuple[Any, int, str]:
    """A block type's shape, number of elements, and shape in words."""
    if not shape:
        raise TypeError("0d block_type is forbidden")
    whole = core.tuple(list(shape))
    return whole, validate_block_shape(whole), str(whole)


@cache
def _shape(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """A tensor's shape and number of elements."""
    return core.tuple([core.constexpr(s) for s in shape]), core.constexpr(math.prod(shape))


def _find_types_once() -> None:
    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        self.element_ty = element_ty
        plain = tuple(s.value if isinstance(s, core.constexpr) else s for s in shape)
        self.shape, self.numel, words = _block(plain)
        self.name = f"<{words}, {element_ty}>"

    def tensor(self: Any, handle: Any, kind: Any) -> None:
        self.handle = handle
        plain = tuple(kind.shape.values) if kind.is_block() else ()
        self.shape, self.numel = _shape(plain)
        self.type = kind
        self.dtype = kind.scalar

    of_name = {
        scalar.name: interpreter._get_np_dtype(scalar)
        for scalar in vars(tl).values()
        if isinstance(scalar, tl.dtype) and scalar.name not in ("void", "uint1")
    }
    equal = tl.dtype.__eq__

    def np_dtype(tt_dtype: Any) -> np.dtype[Any]:
        scalar = tt_dtype.scalar
        return of_name["uint64"] if isinstance(scalar, tl.pointer_type) else of_name[scalar.name]

    core.block_type.__init__ = block_type
    core.tensor.__init__ = tensor
    interpreter._get_np_dtype = np_dtype
    tl.dtype.__eq__ = lambda self, other: self is other or equal(self, other)


def _leave_equal_shapes_alone() -> None:
    broadcast = TritonSemantic.broadcast_impl_value

    def compatible(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        if left.is_block() and right.is_block() and left.shape is right.shape:
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    TritonSemantic.broadcast_impl_value = compatible
