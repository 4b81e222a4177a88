"""What a chat template does with the fields of a message, read off its syntax tree.

Promises: only looks, never renders. A field is followed through `set`, namespaces, loops, macros and
the filters that leave it what it is; which branch of the template runs is not asked, so a name may
hold everything that is ever put into it.
Does not know: messages, tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Flag, auto
from typing import Literal

from jinja2 import nodes

REASONING_END = "</think>"
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
_KEEPING_FILTERS = frozenset(
    {
        *("trim", "default", "d", "list", "safe", "string", "reverse", "sort", "unique"),
        *("selectattr", "rejectattr", "select", "reject"),
    }
)
_ITEM_FILTERS = frozenset({"first", "last", "random"})
_FILTERS_INTO_ITEMS = frozenset({"selectattr", "rejectattr", "groupby"})
_FILTERS_BY_ATTRIBUTE = frozenset({"map", "sort", "unique", "sum", "min", "max", "join"})
_OF_OBJECTS = frozenset({"items", "keys", "values", "dictsort"})
_STRIPS = frozenset({"strip", "lstrip", "trim"})


class _Held(Flag):
    """What an expression may be."""

    NOTHING = 0
    CONTENT = auto()
    PART = auto()
    ARGUMENTS = auto()


_HELD_BY_FIELD = {"content": _Held.CONTENT, "arguments": _Held.ARGUMENTS}


@dataclass(frozen=True, slots=True)
class FieldUses:
    """What one template does with the fields of messages.

    wants_parts: looks into parts of content, and never asks whether content is a string.
    distinguishes_none: content that is none is another case than empty content.
    distinguishes_absent: so is a message without content.
    arguments: how it takes those of a call: "object" (written by tojson, or walked through), "text"
    (put between other text), or "given" (it asks which of them they are).
    handles_reasoning: reasoning is another thing than content: it has its own field, or the template
    takes it off the content at the marker behind it.
    strips_after_reasoning: what follows that marker loses the white space at its head.
    """

    wants_parts: bool
    distinguishes_none: bool
    distinguishes_absent: bool
    arguments: Literal["object", "text", "given"]
    handles_reasoning: bool
    strips_after_reasoning: bool


def read_uses(tree: nodes.Template) -> FieldUses:
    """What the template of this syntax tree does."""
    flow = _Flow(tree)
    tests = {(held, test.name) for test in tree.find_all(nodes.Test) for held in flow.of(test.node)}
    return FieldUses(
        wants_parts=_looks_into_parts(tree, flow) and (_Held.CONTENT, "string") not in tests,
        distinguishes_none=(_Held.CONTENT, "none") in tests or _compares_with_none(tree, flow),
        distinguishes_absent=(
            not tests.isdisjoint({(_Held.CONTENT, "defined"), (_Held.CONTENT, "undefined")})
            or "content" in _searched_for(tree)
        ),
        arguments=_arguments(tree, flow, {name for held, name in tests if held == _Held.ARGUMENTS}),
        handles_reasoning=_tells_reasoning(tree),
        strips_after_reasoning=_strips_answer(tree),
    )


class _Flow:
    """What each name of a template may hold."""

    def __init__(self, tree: nodes.Template) -> None:
        self._of_name: dict[str, _Held] = defaultdict(lambda: _Held.NOTHING)
        self._macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
        bindings = list(tree.find_all((nodes.Assign, nodes.For, nodes.With, nodes.Call)))
        self._has_grown = True
        while self._has_grown:
            self._has_grown = False
            for node in bindings:
                for target, held in self._bound_by(node):
                    self._bind(target, held)

    def of(self, node: nodes.Node | None) -> _Held:
        """What an expression may be."""
        if isinstance(node, nodes.Name):
            return self._of_name[node.name]
        if (field := field_of(node)) is not None:
            of_namespace = _Held.NOTHING
            if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
                of_namespace = self._of_name[f"{node.node.name}.{field}"]
            return _HELD_BY_FIELD.get(field, _Held.NOTHING) | of_namespace
        match node:
            case nodes.Getitem(node=whole, arg=nodes.Slice()):
                return self.of(whole)
            case nodes.Getitem(node=whole):
                return self._item_of(whole)
            case nodes.Filter(node=inner, name=name) if name in _KEEPING_FILTERS:
                return self.of(inner)
            case nodes.Filter(node=inner, name=name) if name in _ITEM_FILTERS:
                return self._item_of(inner)
            case nodes.CondExpr(expr1=one, expr2=other):
                return self.of(one) | self.of(other)
            case nodes.Or(left=one, right=other) | nodes.And(left=one, right=other):
                return self.of(one) | self.of(other)
        return _Held.NOTHING

    def _item_of(self, whole: nodes.Node | None) -> _Held:
        return _Held.PART if _Held.CONTENT in self.of(whole) else _Held.NOTHING

    def _bound_by(self, node: nodes.Node) -> Iterator[tuple[nodes.Node, _Held]]:
        match node:
            case nodes.Assign(target=nodes.Tuple(items=names), node=nodes.Tuple(items=values)):
                yield from ((n, self.of(v)) for n, v in zip(names, values, strict=False))
            case nodes.Assign(target=target, node=value):
                yield target, self.of(value)
            case nodes.For(target=target, iter=whole):
                yield target, self._item_of(whole)
            case nodes.With(targets=names, values=values):
                yield from ((n, self.of(v)) for n, v in zip(names, values, strict=True))
            case nodes.Call(node=nodes.Name(name=name)) if name in self._macros:
                names = self._macros[name].args
                yield from ((n, self.of(v)) for n, v in zip(names, node.args, strict=False))
                by_name = {argument.name: argument for argument in names}
                for given in node.kwargs:
                    if given.key in by_name:
                        yield by_name[given.key], self.of(given.value)

    def _bind(self, target: nodes.Node, held: _Held) -> None:
        match target:
            case nodes.Name(name=name):
                pass
            case nodes.NSRef(name=namespace, attr=attribute):
                name = f"{namespace}.{attribute}"
            case _:
                return
        if held not in self._of_name[name]:
            self._of_name[name] |= held
            self._has_grown = True


def field_of(node: nodes.Node | None) -> str | None:
    """The name in `x.name`, `x["name"]` or `x.get("name")`; None for anything else."""
    match node:
        case nodes.Getattr(attr=name) | nodes.Getitem(arg=nodes.Const(value=str(name))):
            return name
        case nodes.Call(node=nodes.Getattr(attr="get"), args=[nodes.Const(value=str(name)), *_]):
            return name
    return None


def _looks_into_parts(tree: nodes.Template, flow: _Flow) -> bool:
    for access in tree.find_all((nodes.Getattr, nodes.Getitem)):
        field = field_of(access)
        if field is not None and _Held.PART in flow.of(access.node):
            # A character has methods; what else is looked up by name is a part's.
            if isinstance(access, nodes.Getitem) or not hasattr(str, field):
                return True
    for each in tree.find_all(nodes.Filter):
        looks_in = each.name in _FILTERS_INTO_ITEMS or (
            each.name in _FILTERS_BY_ATTRIBUTE and any(g.key == "attribute" for g in each.kwargs)
        )
        if looks_in and _Held.CONTENT in flow.of(each.node):
            return True
    return any(
        test.name == "mapping" and _Held.PART in flow.of(test.node)
        for test in tree.find_all(nodes.Test)
    )


def _compares_with_none(tree: nodes.Template, flow: _Flow) -> bool:
    return any(
        _Held.CONTENT in flow.of(compared.expr)
        and any(_is_constant(operand.expr, None) for operand in compared.ops)
        for compared in tree.find_all(nodes.Compare)
    )


def _is_constant(node: nodes.Node, value: object) -> bool:
    return isinstance(node, nodes.Const) and node.value is value


def _searched_for(tree: nodes.Template) -> set[str]:
    """The texts that are looked for by `in`: keys of messages, pieces of content."""
    return {
        compared.expr.value
        for compared in tree.find_all(nodes.Compare)
        if isinstance(compared.expr, nodes.Const)
        and isinstance(compared.expr.value, str)
        and compared.ops[0].op in ("in", "notin")
    }


def _arguments(
    tree: nodes.Template, flow: _Flow, tests: set[str | None]
) -> Literal["object", "text", "given"]:
    def are(node: nodes.Node | None) -> bool:
        return _Held.ARGUMENTS in flow.of(node)

    filters = {each.name for each in tree.find_all(nodes.Filter) if are(each.node)}
    methods = {each.attr for each in tree.find_all(nodes.Getattr) if are(each.node)}
    loops = any(are(loop.iter) for loop in tree.find_all(nodes.For))
    if loops or not _OF_OBJECTS.isdisjoint(filters | methods):
        return "object"
    if not tests.isdisjoint({"string", "mapping"}):
        return "given"
    shown = [
        *(part for added in tree.find_all(nodes.Add) for part in (added.left, added.right)),
        *(part for joined in tree.find_all(nodes.Concat) for part in joined.nodes),
        *(part for output in tree.find_all(nodes.Output) for part in output.nodes),
    ]
    return "text" if any(map(are, shown)) and "tojson" not in filters else "object"


def _tells_reasoning(tree: nodes.Template) -> bool:
    constants = [
        *(data.data for data in tree.find_all(nodes.TemplateData)),
        *(each.value for each in tree.find_all(nodes.Const) if isinstance(each.value, str)),
    ]
    if not any(REASONING_END in text for text in constants):
        return False
    fields = {field_of(node) for node in tree.find_all(nodes.Expr)} | _searched_for(tree)
    if not fields.isdisjoint(REASONING_KEYS):
        return True
    return any(REASONING_END in text for text in _searched_for(tree)) or any(_cuts(tree))


def _cuts(tree: nodes.Template) -> Iterator[nodes.Call]:
    """Calls of methods with the marker, such as `content.split("</think>")`."""
    return (call for call in tree.find_all(nodes.Call) if _is_cut(call))


def _is_cut(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Call) and any(
        isinstance(each, nodes.Const)
        and isinstance(each.value, str)
        and REASONING_END in each.value
        for each in node.args
    )


def _strips_answer(tree: nodes.Template) -> bool:
    """Not where the template itself takes the last part of the content and leaves that as it is."""
    tails = {
        id(item)
        for item in tree.find_all(nodes.Getitem)
        if isinstance(item.arg, nodes.Neg) and _is_cut(item.node)
    }
    stripped = {
        *(id(each.node) for each in tree.find_all(nodes.Getattr) if each.attr in _STRIPS),
        *(id(each.node) for each in tree.find_all(nodes.Filter) if each.name in _STRIPS),
    }
    return not tails or bool(tails & stripped)
