"""Triton's interpreter, without doing over what it has done.

Most of the time of a kernel here goes into what is found anew for each operation and is the same every
time: by which operations of the interpreter triton's language is replaced, what the type of a block
of some shape is, which type of numpy a type has, whether types and shapes of operands fit, which tensor
a number of the program is. It is found once. A scalar beside a block is not written out as a block:
numpy computes with it as it is. And sums are not computed a second time in 64 bits for an assertion
that is made in debug mode alone. Whatever else the interpreter does, and all it computes, stays. Of
another triton than 3.6 only the first is so.

Loop bounds of kernels are arrays of one element, which numpy no longer takes for an index: they are
made whole numbers. The interpreter's own rounding to FP8 does not carry into the exponent: torch rounds
instead, to the nearest number, as devices do.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from types import FunctionType
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton._utils import validate_block_shape
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter


def make_quick() -> None:
    """Once, before a kernel runs."""
    _take_loop_bounds()
    _round_to_bytes()
    _replace_language_once()
    if triton.__version__.startswith("3.6."):
        _find_types_once()
        _leave_equal_shapes_alone()
        _check_operands_once()
        _call_operations_directly()
        builder = interpreter.interpreter_builder
        assert not builder.options.debug
        builder.options = replace(builder.options, sanitize_overflow=False)


def _take_loop_bounds() -> None:
    whole = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: interpreter._LangPatchScope) -> None:
        whole(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch


def _round_to_bytes() -> None:
    whole = interpreter.InterpreterBuilder.create_fp_to_fp

    def fp_to_fp(self: Any, source: Any, kind: Any, rounding: Any) -> Any:
        if (source.dtype.scalar, kind.scalar) != (tl.float32, tl.float8e4nv):
            return whole(self, source, kind, rounding)
        numbers = torch.from_numpy(np.ascontiguousarray(source.data)).to(torch.float8_e4m3fn)
        return interpreter.TensorHandle(numbers.view(torch.uint8).numpy(), kind.scalar)

    interpreter.InterpreterBuilder.create_fp_to_fp = fp_to_fp


def _replace_language_once() -> None:
    whole = interpreter._patch_lang

    @cache
    def languages_of(function: FunctionType) -> tuple[Any, ...]:
        seen = [module for module in function.__globals__.values() if inspect.ismodule(module)]
        return tuple(module for module in seen if module in (tl, tl.core))

    replacements: dict[tuple[Any, ...], list[tuple[Any, str, Any]]] = {}

    def patch(function: FunctionType) -> interpreter._LangPatchScope:
        languages = languages_of(function)
        scope = interpreter._LangPatchScope()
        if languages and not any(tl.core.is_builtin(language.load) for language in languages):
            return scope
        if languages not in replacements:
            scope = whole(function)
            names = {(id(place), name): (place, name) for place, name, _ in scope._changes}
            replacements[languages] = [
                (place, name, inspect.getattr_static(place, name)) for place, name in names.values()
            ]
            return scope
        for place, name, member in replacements[languages]:
            scope.set_attr(place, name, member)
        return scope

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


def _check_operands_once() -> None:
    """Operands of one type, or a tensor and a number that its type holds, are what they should be."""
    whole, broadcast = (
        TritonSemantic.binary_op_type_checking_impl,
        TritonSemantic.broadcast_impl_value,
    )
    integers = (tl.int8, tl.int16, tl.int32, tl.int64, tl.uint8, tl.uint16, tl.uint32, tl.uint64)
    floats = (tl.float32, tl.float64)
    plain = {id(each) for each in (*integers, *floats, tl.int1)}
    bounds = {id(t): (t.get_int_min_value(), t.get_int_max_value()) for t in integers}
    widest = {id(each): (-math.inf, math.inf) for each in floats}
    numbers: dict[type, dict[int, tuple[float, float]]] = {int: bounds | widest, float: widest}

    @lru_cache(maxsize=1024)
    def tensor_of(kind: type, value: float, dtype: Any) -> Any:
        return interpreter.interpreter_semantic.scalar_constant(value, dtype)

    def as_tensor(value: Any, dtype: Any) -> Any:
        """The number as a tensor of this type, or None where only the interpreter knows."""
        lowest, highest = numbers.get(type(value), {}).get(id(dtype), (math.inf, -math.inf))
        return tensor_of(type(value), value, dtype) if lowest <= value <= highest else None

    def fitted(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        """Both with the type of the result; they have one element type."""
        left, right = lhs.type, rhs.type
        if left.is_block():
            if not right.is_block():
                return lhs, core.tensor(rhs.handle, left)
            return (lhs, rhs) if left.shape is right.shape else broadcast(self, lhs, rhs)
        return (core.tensor(lhs.handle, right), rhs) if right.is_block() else (lhs, rhs)

    def checked(
        self: Any,
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> tuple[Any, Any]:
        left, right = lhs, rhs
        if not isinstance(left, core.tensor):
            left = as_tensor(lhs, rhs.dtype) if isinstance(rhs, core.tensor) else None
        elif not isinstance(right, core.tensor):
            right = as_tensor(rhs, lhs.dtype)
        if left is not None and right is not None and left.dtype is right.dtype:
            if id(left.dtype) in plain:
                return fitted(self, left, right)
        return whole(self, lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)

    TritonSemantic.binary_op_type_checking_impl = checked


def _call_operations_directly() -> None:
    def patch(place: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        semantic = TritonSemantic(builder)
        # what wraps an operation checks that there is a _semantic
        operation: Callable[..., Any] = getattr(member, "__wrapped__", member)

        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return operation(*args, **kwargs)

        scope.set_attr(place, name, call)

    interpreter._patch_attr = patch
