"""Finds out from its syntax tree how a chat template uses the fields of messages.

Promises: never renders. Follows the value of a field through `set`, namespaces, loops, macros and
filters that keep it. Does not evaluate conditions, so a name may hold every value that is assigned to
it anywhere.
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
_KIMI_CALL = "<|tool_call_begin|>"
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
_IDENTITY_FILTERS = frozenset(
    {
        *("trim", "default", "d", "list", "safe", "string", "reverse", "sort", "unique"),
        *("selectattr", "rejectattr", "select", "reject"),
    }
)
_ITEM_FILTERS = frozenset({"first", "last", "random"})
_FILTERS_BY_ITEM_ATTRIBUTE = frozenset({"selectattr", "rejectattr", "groupby"})
_FILTERS_WITH_ATTRIBUTE_ARGUMENT = frozenset({"map", "sort", "unique", "sum", "min", "max", "join"})
_MAPPING_METHODS = frozenset({"items", "keys", "values", "dictsort"})
_STRIPS = frozenset({"strip", "lstrip", "trim"})


class _Value(Flag):
    """The kinds of values that an expression may have."""

    NOTHING = 0
    CONTENT = auto()
    PART = auto()
    ARGUMENTS = auto()


_VALUE_OF_FIELD = {"content": _Value.CONTENT, "arguments": _Value.ARGUMENTS}


@dataclass(frozen=True, slots=True)
class FieldUses:
    """How one template uses the fields of messages.

    wants_parts: reads the parts of content, and never tests whether content is a string.
    distinguishes_none: treats content that is none differently from empty content.
    distinguishes_absent: treats a message without content differently from one with empty content.
    arguments: the form in which it reads the arguments of a call: "object" (passed to tojson, or
    iterated), "text" (written as it is), or "given" (tests which of the two it is).
    handles_reasoning: separates reasoning from content: by a field of its own, or by splitting content
    at the marker </think>.
    strips_after_reasoning: removes white space after that marker.
    call_id_length: the number of characters that ids of calls must have, or must have at least, as in
    Mistral's templates; None if it takes any id.
    call_ids_name_functions: writes the id of a call where the model reads the function's name, as
    Kimi-K2's templates.
    """

    wants_parts: bool
    distinguishes_none: bool
    distinguishes_absent: bool
    arguments: Literal["object", "text", "given"]
    handles_reasoning: bool
    strips_after_reasoning: bool
    call_id_length: int | None = None
    call_ids_name_functions: bool = False


def read_uses(tree: nodes.Template) -> FieldUses:
    """Return how the template of this syntax tree uses the fields of messages."""
    flow = _DataFlow(tree)
    tests = {
        (value, test.name) for test in tree.find_all(nodes.Test) for value in flow.of(test.node)
    }
    return FieldUses(
        wants_parts=_reads_parts(tree, flow) and (_Value.CONTENT, "string") not in tests,
        distinguishes_none=(_Value.CONTENT, "none") in tests or _compares_with_none(tree, flow),
        distinguishes_absent=(
            not tests.isdisjoint({(_Value.CONTENT, "defined"), (_Value.CONTENT, "undefined")})
            or "content" in _containment_operands(tree)
        ),
        arguments=_arguments(
            tree, flow, {name for value, name in tests if value == _Value.ARGUMENTS}
        ),
        handles_reasoning=_handles_reasoning(tree),
        strips_after_reasoning=_strips_after_reasoning(tree),
        call_id_length=_call_id_length(tree),
        call_ids_name_functions=any(_KIMI_CALL in text for text in _constants(tree)),
    )


class _DataFlow:
    """The values that each name of a template may hold."""

    def __init__(self, tree: nodes.Template) -> None:
        self._of_name: dict[str, _Value] = defaultdict(lambda: _Value.NOTHING)
        self._macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
        bindings = list(tree.find_all((nodes.Assign, nodes.For, nodes.With, nodes.Call)))
        self._has_grown = True
        while self._has_grown:
            self._has_grown = False
            for node in bindings:
                for target, value in self._assignments_of(node):
                    self._bind(target, value)

    def of(self, node: nodes.Node | None) -> _Value:
        """Return the values that an expression may have."""
        if isinstance(node, nodes.Name):
            return self._of_name[node.name]
        if (field := field_of(node)) is not None:
            of_namespace = _Value.NOTHING
            if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
                of_namespace = self._of_name[f"{node.node.name}.{field}"]
            return _VALUE_OF_FIELD.get(field, _Value.NOTHING) | of_namespace
        match node:
            case nodes.Getitem(node=whole, arg=nodes.Slice()):
                return self.of(whole)
            case nodes.Getitem(node=whole):
                return self._item_of(whole)
            case nodes.Filter(node=inner, name=name) if name in _IDENTITY_FILTERS:
                return self.of(inner)
            case nodes.Filter(node=inner, name=name) if name in _ITEM_FILTERS:
                return self._item_of(inner)
            case nodes.CondExpr(expr1=one, expr2=other):
                return self.of(one) | self.of(other)
            case nodes.Or(left=one, right=other) | nodes.And(left=one, right=other):
                return self.of(one) | self.of(other)
        return _Value.NOTHING

    def _item_of(self, whole: nodes.Node | None) -> _Value:
        return _Value.PART if _Value.CONTENT in self.of(whole) else _Value.NOTHING

    def _assignments_of(self, node: nodes.Node) -> Iterator[tuple[nodes.Node, _Value]]:
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

    def _bind(self, target: nodes.Node, value: _Value) -> None:
        match target:
            case nodes.Name(name=name):
                pass
            case nodes.NSRef(name=namespace, attr=attribute):
                name = f"{namespace}.{attribute}"
            case _:
                return
        if value not in self._of_name[name]:
            self._of_name[name] |= value
            self._has_grown = True


def field_of(node: nodes.Node | None) -> str | None:
    """Return the name in `x.name`, `x["name"]` or `x.get("name")`; None for any other expression."""
    match node:
        case nodes.Getattr(attr=name) | nodes.Getitem(arg=nodes.Const(value=str(name))):
            return name
        case nodes.Call(node=nodes.Getattr(attr="get"), args=[nodes.Const(value=str(name)), *_]):
            return name
    return None


def _reads_parts(tree: nodes.Template, flow: _DataFlow) -> bool:
    for access in tree.find_all((nodes.Getattr, nodes.Getitem)):
        field = field_of(access)
        if field is not None and _Value.PART in flow.of(access.node):
            # Content may be a string: what is read from its items may then be a method of a character.
            if isinstance(access, nodes.Getitem) or not hasattr(str, field):
                return True
    for node in tree.find_all(nodes.Filter):
        reads_items = node.name in _FILTERS_BY_ITEM_ATTRIBUTE or (
            node.name in _FILTERS_WITH_ATTRIBUTE_ARGUMENT
            and any(argument.key == "attribute" for argument in node.kwargs)
        )
        if reads_items and _Value.CONTENT in flow.of(node.node):
            return True
    return any(
        test.name == "mapping" and _Value.PART in flow.of(test.node)
        for test in tree.find_all(nodes.Test)
    )


def _compares_with_none(tree: nodes.Template, flow: _DataFlow) -> bool:
    return any(
        _Value.CONTENT in flow.of(compared.expr)
        and any(_is_constant(operand.expr, None) for operand in compared.ops)
        for compared in tree.find_all(nodes.Compare)
    )


def _call_id_length(tree: nodes.Template) -> int | None:
    for compared in tree.find_all(nodes.Compare):
        match compared:
            case nodes.Compare(
                expr=nodes.Filter(name="length" | "count", node=of),
                ops=[nodes.Operand(op="eq" | "ne" | "lt", expr=nodes.Const(value=int(length)))],
            ) if length > 1 and field_of(of) in ("id", "tool_call_id"):
                return length
    return None


def _is_constant(node: nodes.Node, value: object) -> bool:
    return isinstance(node, nodes.Const) and node.value is value


def _containment_operands(tree: nodes.Template) -> set[str]:
    """Return the constants on the left side of `in`: keys of messages, pieces of content."""
    return {
        compared.expr.value
        for compared in tree.find_all(nodes.Compare)
        if isinstance(compared.expr, nodes.Const)
        and isinstance(compared.expr.value, str)
        and compared.ops[0].op in ("in", "notin")
    }


def _arguments(
    tree: nodes.Template, flow: _DataFlow, tests: set[str | None]
) -> Literal["object", "text", "given"]:
    def is_arguments(node: nodes.Node | None) -> bool:
        return _Value.ARGUMENTS in flow.of(node)

    filters = {each.name for each in tree.find_all(nodes.Filter) if is_arguments(each.node)}
    methods = {each.attr for each in tree.find_all(nodes.Getattr) if is_arguments(each.node)}
    loops = any(is_arguments(loop.iter) for loop in tree.find_all(nodes.For))
    if loops or not _MAPPING_METHODS.isdisjoint(filters | methods):
        return "object"
    if not tests.isdisjoint({"string", "mapping"}):
        return "given"
    written = [
        *(part for added in tree.find_all(nodes.Add) for part in (added.left, added.right)),
        *(part for joined in tree.find_all(nodes.Concat) for part in joined.nodes),
        *(part for output in tree.find_all(nodes.Output) for part in output.nodes),
    ]
    return "text" if any(map(is_arguments, written)) and "tojson" not in filters else "object"


def _constants(tree: nodes.Template) -> list[str]:
    """Return all texts of a template: what it writes as it is, and its strings."""
    return [
        *(data.data for data in tree.find_all(nodes.TemplateData)),
        *(each.value for each in tree.find_all(nodes.Const) if isinstance(each.value, str)),
    ]


def _handles_reasoning(tree: nodes.Template) -> bool:
    if not any(REASONING_END in text for text in _constants(tree)):
        return False
    fields = {field_of(node) for node in tree.find_all(nodes.Expr)} | _containment_operands(tree)
    if not fields.isdisjoint(REASONING_KEYS):
        return True
    return any(REASONING_END in text for text in _containment_operands(tree)) or any(
        _marker_calls(tree)
    )


def _marker_calls(tree: nodes.Template) -> Iterator[nodes.Call]:
    """Yield the calls of methods with the marker, such as `content.split("</think>")`."""
    return (call for call in tree.find_all(nodes.Call) if _is_marker_call(call))


def _is_marker_call(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Call) and any(
        isinstance(each, nodes.Const)
        and isinstance(each.value, str)
        and REASONING_END in each.value
        for each in node.args
    )


def _strips_after_reasoning(tree: nodes.Template) -> bool:
    """Whether white space after the marker is removed: always, unless the template takes the last
    part of the split content and does not strip it."""
    tails = {
        id(item)
        for item in tree.find_all(nodes.Getitem)
        if isinstance(item.arg, nodes.Neg) and _is_marker_call(item.node)
    }
    stripped = {
        *(id(each.node) for each in tree.find_all(nodes.Getattr) if each.attr in _STRIPS),
        *(id(each.node) for each in tree.find_all(nodes.Filter) if each.name in _STRIPS),
    }
    return not tails or bool(tails & stripped)
