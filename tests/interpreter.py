"""Triton's interpreter, without doing over what it has done.

Whenever a kernel calls a function of its own or of triton's library, the interpreter looks through all
of triton's language for what is still to be replaced by its own operations, and finds nothing: it did
so when the kernel was launched. For our kernels that is a third of the time. A language that is
replaced already is left alone here; whatever else the interpreter does stays (triton 3.6).
"""

from __future__ import annotations

import inspect
from types import FunctionType

import triton.language as tl
from triton.runtime import interpreter


def replace_language_once() -> None:
    whole = interpreter._patch_lang

    def patch(function: FunctionType) -> interpreter._LangPatchScope:
        seen = [module for module in function.__globals__.values() if inspect.ismodule(module)]
        languages = [module for module in seen if module in (tl, tl.core)]
        if languages and not any(tl.core.is_builtin(language.load) for language in languages):
            return interpreter._LangPatchScope()
        return whole(function)

    interpreter._patch_lang = patch
