"""The rewriting of a user's schema as one that the backend enforces completely.

Every keyword of the standard is kept if the backend enforces it, rewritten in other keywords if that
is equivalent, or refused. The order of properties is that of the schema.

Promises: the original allows everything that the result allows; where the result allows less, the
documentation and docstrings here say so. The result is self-contained: its references lead to its own
$defs, it has no annotations, and its keywords mean the same in every draft.
Does not know: the backend's library, requests.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import partial

from eyas.core import GrammarError
from eyas.schemas.arrays import rewrite_array
from eyas.schemas.complement import Complements
from eyas.schemas.context import Context
from eyas.schemas.formats import INEXPRESSIBLE, NATIVE, PATTERNS
from eyas.schemas.keywords import ALL, BOUNDS, KEYWORD_TYPES, Object, Schema, common_types, types_of
from eyas.schemas.limits import MAX_ENUM_VALUES, fail, shortened, under
from eyas.schemas.look_ahead import LookAhead, split_look_aheads
from eyas.schemas.numbers import is_exact, least, most, on_multiples
from eyas.schemas.objects import rewrite_object
from eyas.schemas.rewriter_base import RewriterBase

_MAX_STEP = 2**16 - 1
"""The largest multipleOf of a document, as an integer without the decimal point."""


class Rewriter(RewriterBase):
    """Rewrites the schemas of one document."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.complements = Complements(context, self.disjointness, self.schema)
        self._names: dict[int, str] = {}
        self._waiting: list[tuple[str, Schema, str]] = []
        self._num_values = 0
        self._steps: list[Decimal] = []

    def document(self, root: Schema) -> Schema:
        """Rewrite the whole document; the targets of its references are put under $defs."""
        self._names[id(root)] = "#"
        result = self.schema(root, "#")
        definitions: dict[str, Schema] = {}
        while self._waiting:
            name, node, path = self._waiting.pop()
            definitions[name] = self.schema(node, path)
        if definitions and isinstance(result, dict):
            result["$defs"] = definitions
        return result

    def schema(self, schema: Schema, path: str) -> Schema:
        """Rewrite one schema and all below it."""
        self.context.count()
        if isinstance(schema, bool):
            return schema
        if "allOf" in schema and not self.disjointness.types([schema]):
            return False  # in a definition the backend would refuse it, even if nothing needs that
        out: Object = {}
        conditions: list[Schema] = []
        done: set[str] = set()
        for keyword in self._in_order(schema):
            if keyword in _HANDLERS:
                arguments = (self, schema, under(path, keyword), out, conditions)
                self.attempt(partial(_HANDLERS[keyword], *arguments), None)
                continue
            kind = KEYWORD_TYPES.get(keyword, "")
            is_first = kind != "object" or keyword == "properties" or "properties" not in schema
            if kind in _GROUPS and kind not in done and is_first:
                done.add(kind)
                self.attempt(partial(_GROUPS[kind], self, schema, path, out, conditions), None)
        if "multipleOf" in out:
            bounds = {keyword: out.pop(keyword) for keyword in BOUNDS if keyword in out}
            between = on_multiples(bounds, out["multipleOf"])
            if between is None:
                conditions.append({"type": sorted(ALL - {"number"})})
            else:
                out |= between
        return _joined(out, conditions)

    def _in_order(self, schema: Object) -> list[str]:
        """Return the keywords in their order, but `properties` before schemas that refine them: the
        backend orders properties by the first keyword that lists them."""
        if self.siblings.refine(schema):
            return ["properties", *(keyword for keyword in schema if keyword != "properties")]
        return list(schema)

    def complement(
        self, schema: Schema, path: str, assumed: list[Schema], keyword: str, remedy: str
    ) -> Schema:
        """Return a schema for the values that `schema` does not allow, among those that satisfy all of
        `assumed`. GrammarError (unsupported) naming `keyword` and `remedy` if there is none."""
        assumptions = self.disjointness.assumptions(assumed, schema)
        complement = self.complements.of(schema, path, assumptions)
        gap = complement.gap_in(assumptions.types)
        if gap is not None:
            gap_path, inner = gap
            message = f"{keyword} over {inner!r} (at {gap_path}) cannot be enforced; {remedy}"
            raise self.context.unsupported(path, message)
        return complement.schema()

    def _type(self, schema: Object, keyword_path: str, out: Object, _: _Conditions) -> None:
        """Leave `type` out if $ref, or every option of a choice with a $ref, implies it: the backend
        cannot merge a schema that refers to itself with other keywords."""
        options = [schema] if "$ref" in schema else schema.get("anyOf", schema.get("oneOf", []))
        if any(isinstance(option, dict) and "$ref" in option for option in options):
            targets = [self._target(option, keyword_path) for option in options]
            types = [self.disjointness.types([target]) for target in targets]
            if all(common_types(each, types_of(schema)) == each for each in types):
                return
        named = schema["type"]
        out["type"] = named if isinstance(named, str) else sorted(types_of(schema))

    def _target(self, schema: Schema, keyword_path: str) -> Schema:
        """Return the target of a reference, or a schema that is none."""
        if isinstance(schema, dict) and "$ref" in schema:
            return self.context.resolve(schema, keyword_path.removesuffix("/type"))[0]
        return schema

    def _values(self, schema: Object, keyword_path: str, out: Object, _: _Conditions) -> None:
        keyword = keyword_path.rpartition("/")[2]
        values = schema["enum"] if keyword == "enum" else [schema["const"]]
        self._num_values += len(values)
        if self._num_values > MAX_ENUM_VALUES:
            message = f"the schema lists more than {MAX_ENUM_VALUES} values; use a pattern"
            raise fail(self.context.param, keyword_path, message, "too_complex")
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if isinstance(value, (list, dict)):
                waiting.extend(value.values() if isinstance(value, dict) else value)
            elif isinstance(value, (int, float)) and not is_exact(value):
                message = f"{shortened(value)} has too many digits to be exact; send it as a string"
                raise self.context.unsupported(keyword_path, message)
        out[keyword] = schema[keyword]

    def _number(self, schema: Object, keyword_path: str, out: Object, _: _Conditions) -> None:
        """All four bounds at once, as one lower and one upper bound."""
        is_whole = types_of(schema) & {"integer", "number"} == {"integer"}
        for keyword, excluding, bounded, narrower in (
            ("minimum", "exclusiveMinimum", least, max),
            ("maximum", "exclusiveMaximum", most, min),
        ):
            flag = schema.get(excluding, False)
            found = []
            if keyword in schema:
                found.append(bounded(schema[keyword], excluded=flag is True, integer=is_whole))
            if not isinstance(flag, bool):
                found.append(bounded(flag, excluded=True, integer=is_whole))
            if None in found:
                message = "numbers beyond 10^18 cannot be enforced; send them as strings"
                raise self.context.unsupported(keyword_path, message)
            for bound in found:
                for name, value in (bound or {}).items():
                    out[name] = narrower(out.get(name, value), value)

    def _multiple(self, schema: Object, keyword_path: str, out: Object, _: _Conditions) -> None:
        """Refuse steps with many digits, so that the backend can multiply two of them."""
        steps = [*self._steps, Decimal(repr(schema["multipleOf"]))]
        scale = max(-int(step.as_tuple().exponent) for step in steps)
        if scale > 9 or max(step.scaleb(max(scale, 0)) for step in steps) > _MAX_STEP:
            message = "has too many digits to be enforced; use one with fewer, or a string pattern"
            raise self.context.unsupported(keyword_path, message)
        out["multipleOf"], self._steps = schema["multipleOf"], steps

    def _length(self, schema: Object, keyword_path: str, out: Object, _: _Conditions) -> None:
        keyword = keyword_path.rpartition("/")[2]
        length = int(schema[keyword])
        if "pattern" not in schema and (length > 0 or keyword == "maxLength"):
            out[keyword] = length

    def _pattern(
        self, schema: Object, keyword_path: str, out: Object, conditions: _Conditions
    ) -> None:
        """Merge the lengths into the pattern: the backend is slow if it must check both."""
        rest, look_aheads = split_look_aheads(schema["pattern"])
        held = [self._look_ahead(each, schema["pattern"], keyword_path) for each in look_aheads]
        least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
        most = None if most is None else int(most)
        pattern, below, above = self.context.pattern_with_lengths(rest, keyword_path, least, most)
        found = {"pattern": pattern, "minLength": below, "maxLength": above}
        out.update({name: value for name, value in found.items() if value is not None})
        conditions += held

    def _look_ahead(self, look_ahead: LookAhead, whole: str, keyword_path: str) -> Schema:
        """Return the schema of the texts that satisfy a look-ahead. GrammarError for one that cannot be
        written, with its place in the whole pattern."""
        write = self.context.pattern if look_ahead.must_match else self.context.unmatched
        try:
            pattern = write(look_ahead.pattern, keyword_path)
        except GrammarError:
            pattern = None
        if pattern is None:
            self.context.pattern(whole, keyword_path)  # refuses it
        return {"pattern": pattern} if pattern else {"type": sorted(ALL - {"string"})}

    def _format(
        self, schema: Object, keyword_path: str, out: Object, conditions: _Conditions
    ) -> None:
        name = schema["format"]
        if name in NATIVE:
            out["format"] = name
        elif name in PATTERNS and "pattern" not in schema:
            out["pattern"] = PATTERNS[name]
        elif name in PATTERNS:
            conditions.append({"pattern": PATTERNS[name]})
        elif name in INEXPRESSIBLE and "string" in types_of(schema):
            message = f"the format {name!r} cannot be enforced; leave it out or use a pattern"
            raise self.context.unsupported(keyword_path, message)

    def _ref(self, schema: Object, keyword_path: str, out: Object, _: _Conditions) -> None:
        target, path = self.context.resolve(schema, keyword_path.removesuffix("/$ref"))
        name = self._names.get(id(target))
        if name is None:
            name = f"#/$defs/{len(self._names)}"
            self._names[id(target)] = name
            self.context.paths[name] = path
            self._waiting.append((name.rpartition("/")[2], target, path))
        out["$ref"] = name

    def _all_or_any(self, schema: Object, keyword_path: str, out: Object, _: _Conditions) -> None:
        keyword = keyword_path.rpartition("/")[2]
        parts = enumerate(schema[keyword])
        out[keyword] = [self.schema(part, under(keyword_path, i)) for i, part in parts]

    def _one_of(
        self, schema: Object, keyword_path: str, out: Object, conditions: _Conditions
    ) -> None:
        """Write anyOf, with each option reduced by the values of the options that it overlaps."""
        options = schema["oneOf"]
        siblings = {k: v for k, v in schema.items() if k != "oneOf"}
        written: list[Schema] = []
        rivals = () if self.disjointness.all_told_apart(options) else options
        for i, option in enumerate(options):
            own = self.schema(option, under(keyword_path, i))
            apart: list[Schema] = [own]
            for j, other in enumerate(rivals):
                if i == j or self.disjointness.are_disjoint([option, siblings], [other, siblings]):
                    continue
                remedy = "use anyOf, or give the options a required property with different consts"
                arguments = (other, under(keyword_path, j), [option, siblings], "oneOf", remedy)
                apart.append(self.attempt(partial(self.complement, *arguments), True))
            written.append(_joined({}, apart))
        if "anyOf" in schema:
            conditions.append({"anyOf": written})
        else:
            out["anyOf"] = written

    def _not(self, schema: Object, keyword_path: str, out: Object, conditions: _Conditions) -> None:
        assumed: list[Schema] = [{k: v for k, v in schema.items() if k != "not"}]
        remedy = "say what is allowed instead"
        conditions.append(self.complement(schema["not"], keyword_path, assumed, "not", remedy))

    def _if(self, schema: Object, keyword_path: str, out: Object, conditions: _Conditions) -> None:
        path = keyword_path.removesuffix("/if")
        condition = self.schema(schema["if"], keyword_path)
        branches = {
            keyword: self.schema(schema[keyword], under(path, keyword))
            for keyword in ("then", "else")
            if keyword in schema
        }
        if not branches:
            return
        assumed: list[Schema] = [{k: v for k, v in schema.items() if k not in ("if", *branches)}]
        remedy = "use anyOf with one option for each case"
        otherwise = self.complement(schema["if"], keyword_path, assumed, "if", remedy)
        held = _joined({}, [condition, branches.get("then", True)])
        failed = _joined({}, [otherwise, branches.get("else", True)])
        conditions.append(_joined({"anyOf": [held, failed]}, []))

    def _dependencies(
        self, schema: Object, keyword_path: str, out: Object, conditions: _Conditions
    ) -> None:
        keyword = keyword_path.rpartition("/")[2]
        _, allowed, required = self.disjointness.names([schema])
        for name, needed in schema[keyword].items():
            holds: Schema
            if isinstance(needed, list):
                holds = {"required": list(dict.fromkeys(needed))} if needed else True
            else:
                holds = self.schema(needed, under(keyword_path, name))
            if holds is True or (allowed is not None and name not in allowed):
                continue
            if name in required and types_of(schema) == {"object"}:
                conditions.append(holds)
                continue
            present = _joined({"required": [name]}, [holds])
            conditions.append({"anyOf": [{"properties": {name: False}}, present]})

    def _unenforced(
        self, schema: Object, keyword_path: str, out: Object, conditions: _Conditions
    ) -> None:
        keyword = keyword_path.rpartition("/")[2]
        if keyword.startswith("$") or self.context.draft == 3:
            message = f"{keyword} cannot be enforced; write its meaning out with $ref and $defs"
            raise self.context.unsupported(keyword_path, message)


_Conditions = list[Schema]


def _joined(out: Object, conditions: list[Schema]) -> Schema:
    """Return one schema for `out` and the conditions that must hold as well."""
    if "anyOf" in out:
        options = [option for option in out["anyOf"] if option is not False]
        if not options:
            return False
        if any(option is True or option == {} for option in options):
            del out["anyOf"]
        else:
            out["anyOf"] = options
    parts = [*out.get("allOf", ()), *conditions]
    parts = [part for part in parts if part is not True and part != {}]
    if any(part is False for part in parts):
        return False
    out.pop("allOf", None) if not parts else out.update(allOf=parts)
    if len(out) == 1 and len(parts) == 1:
        return parts[0]
    return out


_GROUPS = {"object": rewrite_object, "array": rewrite_array}
"""Rewriting of all keywords of one type together, where the first of them stands."""
_Handler = Callable[[Rewriter, Object, str, Object, list[Schema]], None]
_HANDLERS: dict[str, _Handler] = {
    "type": Rewriter._type,
    "enum": Rewriter._values,
    "const": Rewriter._values,
    "minimum": Rewriter._number,
    "maximum": Rewriter._number,
    "exclusiveMinimum": Rewriter._number,
    "exclusiveMaximum": Rewriter._number,
    "multipleOf": Rewriter._multiple,
    "minLength": Rewriter._length,
    "maxLength": Rewriter._length,
    "pattern": Rewriter._pattern,
    "format": Rewriter._format,
    "$ref": Rewriter._ref,
    "allOf": Rewriter._all_or_any,
    "anyOf": Rewriter._all_or_any,
    "oneOf": Rewriter._one_of,
    "not": Rewriter._not,
    "if": Rewriter._if,
    "dependencies": Rewriter._dependencies,
    "dependentRequired": Rewriter._dependencies,
    "dependentSchemas": Rewriter._dependencies,
    "$dynamicRef": Rewriter._unenforced,
    "$recursiveRef": Rewriter._unenforced,
    "extends": Rewriter._unenforced,
    "disallow": Rewriter._unenforced,
    "divisibleBy": Rewriter._unenforced,
}
