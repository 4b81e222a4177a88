"""Find a piece of Python syntax inside a named function and replace it.

A piece is source text: one expression, or one or more statements. It matches where the syntax tree is
equal, so layout, comments, docstrings and moves inside the function do not matter.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from typing import Any, NamedTuple

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Piece = ast.expr | list[ast.stmt]


class AnchorError(ValueError):
    """The piece does not occur exactly once, or its replacement reads an unknown name."""


class Anchor(NamedTuple):
    """The field of a node that holds the piece; `at` is the index where the field is a list."""

    parent: ast.AST
    field: str
    at: int | None


def replace(source: str, function: str, old: str, new: str) -> str:
    """Return the module `source` with `old` replaced by `new` in `function` ("Class.method").

    Comments and layout are lost. Raises AnchorError unless `old` occurs there exactly once, and where
    `new` reads a name that the function does not know (it would fail any test).
    """
    tree = ast.parse(source)
    before, after = _parse(old, new)
    definitions = list(_definitions(tree, function))
    anchors = [anchor for each in definitions for anchor in _anchors(each, before)]
    if len(anchors) != 1:
        raise AnchorError(f"{function} contains {old!r} {len(anchors)} times")
    if unknown := _names(after) - set().union(*map(_names, definitions)) - set(dir(builtins)):
        raise AnchorError(f"{function} does not know {sorted(unknown)} of {new!r}")
    parent, field, at = anchors[0]
    if at is None:
        setattr(parent, field, after)
    elif isinstance(before, list):
        getattr(parent, field)[at : at + len(before)] = after
    else:
        getattr(parent, field)[at] = after
    return ast.unparse(tree)


def replace_text(source: str, function: str, old: str, new: str) -> str:
    """Do the same in the text of a function in C, whose last line is a brace alone.

    Raises AnchorError unless `old` occurs there exactly once.
    """
    start = source.find(f" {function}(")
    stop = source.find("\n}\n", start)
    count = source.count(old, start, stop) if 0 <= start < stop else 0
    if count != 1:
        raise AnchorError(f"{function} contains {old!r} {count} times")
    return source[:start] + source[start:stop].replace(old, new) + source[stop:]


def _parse(old: str, new: str) -> tuple[Piece, Piece]:
    """Parse both as expressions if both are expressions, else both as statements."""
    try:
        return ast.parse(old, mode="eval").body, ast.parse(new, mode="eval").body
    except SyntaxError:
        return ast.parse(old).body, ast.parse(new).body


def _definitions(node: ast.AST, name: str) -> Iterator[Definition]:
    """Yield the functions and classes of this qualified name below `node`."""
    first, _, rest = name.partition(".")
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            if child.name == first:
                yield from _definitions(child, rest) if rest else [child]
        elif isinstance(child, ast.stmt):
            yield from _definitions(child, name)


def _anchors(definition: Definition, piece: Piece) -> Iterator[Anchor]:
    """Yield the places that hold the piece."""
    for parent in ast.walk(definition):
        for field, value in ast.iter_fields(parent):
            if not isinstance(value, list):
                if _is_equal(piece, value):
                    yield Anchor(parent, field, None)
            else:
                length = len(piece) if isinstance(piece, list) else 1
                for at in range(len(value) - length + 1):
                    window = value[at : at + length]
                    if _is_equal(piece, window if isinstance(piece, list) else window[0]):
                        yield Anchor(parent, field, at)


def _is_equal(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_is_equal, a, b))
    return type(a) is type(b) and isinstance(a, ast.AST) and ast.dump(a) == ast.dump(b)


def _names(piece: Piece | Definition) -> set[str]:
    """Return the names of variables and arguments that a piece mentions."""
    nodes = (node for part in _as_list(piece) for node in ast.walk(part))
    return {
        node.id if isinstance(node, ast.Name) else node.arg
        for node in nodes
        if isinstance(node, ast.Name | ast.arg)
    }


def _as_list(piece: Piece | Definition) -> list[Any]:
    return piece if isinstance(piece, list) else [piece]
