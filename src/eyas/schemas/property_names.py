"""propertyNames, rewritten as properties or patternProperties.

Two uses are supported: a list of names (`enum`, `const`), and one condition on the text of a name
(`pattern`, `minLength` and `maxLength`, or `format`) in an object without properties and
patternProperties of its own.

Promises: equivalences only; every other use is refused with its path.
Does not know: how the schemas of the properties are rewritten.
"""

from __future__ import annotations

from eyas.core import GrammarError
from eyas.schemas.formats import INEXPRESSIBLE, NATIVE, PATTERNS
from eyas.schemas.keywords import IN_PLACE, Object, Schema, types_of
from eyas.schemas.limits import MAX_PROPERTIES, fail, under
from eyas.schemas.rewriter_base import RewriterBase

_REFUSED = (*IN_PLACE, "not", "if", "$dynamicRef", "$recursiveRef", "extends", "disallow")
_LISTS = ("enum", "const")
_CONDITIONS = ("pattern", "minLength", "maxLength", "format")
_MAX_REFERENCES = 16

Members = tuple[dict[str, Schema], dict[str, Schema], Schema]
"""properties, patternProperties, additionalProperties."""


def restrict_names(rewriter: RewriterBase, schema: Object, path: str, members: Members) -> Members:
    """Return the members of an object whose names must satisfy its `propertyNames`.

    GrammarError (unsupported) for a use that is not supported, (too_complex) for too many names.
    """
    keyword_path = under(path, "propertyNames")
    rule, rule_path = _resolved(rewriter, schema["propertyNames"], keyword_path)
    named, patterns, rest = members
    if isinstance(rule, bool):
        return members if rule else ({}, {}, False)
    if "string" not in types_of(rule):
        return {}, {}, False
    names = _listed(rewriter, rule, rule_path)
    pattern = _condition(rewriter, rule, rule_path)
    if names is None and pattern is None:
        return members
    if names is not None and pattern is not None:
        raise _unsupported(rewriter, rule_path, "a list of names beside another condition")
    if patterns:
        raise _unsupported(rewriter, keyword_path, "a condition on names beside patternProperties")
    if names is not None:
        if len(names) > MAX_PROPERTIES:
            message = f"allows {len(names)} names; the limit is {MAX_PROPERTIES}; use a pattern"
            raise fail(rewriter.context.param, keyword_path, message, "too_complex")
        order = dict.fromkeys([*(name for name in named if name in names), *names])
        return {name: named.get(name, rest) for name in order}, {}, False
    if named:
        raise _unsupported(rewriter, keyword_path, "a condition on names beside properties")
    if rewriter.siblings.have_other_patterns(schema):
        raise _unsupported(
            rewriter, keyword_path, "a condition on names beside that of another schema"
        )
    assert pattern is not None
    return {}, {} if rest is False else {pattern: rest}, False


def _resolved(rewriter: RewriterBase, schema: Schema, path: str) -> tuple[Schema, str]:
    """Follow references; return the schema that they end in, and its path."""
    for _ in range(_MAX_REFERENCES):
        if isinstance(schema, bool):
            return schema, path
        for keyword in _REFUSED:
            if keyword in schema:
                raise _unsupported(rewriter, under(path, keyword), keyword)
        if "$ref" not in schema:
            return schema, path
        for keyword in ("type", *_LISTS, *_CONDITIONS):
            if keyword in schema:
                raise _unsupported(rewriter, under(path, keyword), f"{keyword} beside $ref")
        schema, path = rewriter.context.resolve(schema, path)
    raise _unsupported(rewriter, under(path, "$ref"), "a long chain of references")


def _listed(rewriter: RewriterBase, rule: Object, path: str) -> list[str] | None:
    """Return the names that `enum` or `const` lists; None without either."""
    if "enum" in rule and "const" in rule:
        raise _unsupported(rewriter, path, "enum beside const")
    if not any(keyword in rule for keyword in _LISTS):
        return None
    values = rule["enum"] if "enum" in rule else [rule["const"]]
    return list(dict.fromkeys(value for value in values if isinstance(value, str)))


def _condition(rewriter: RewriterBase, rule: Object, path: str) -> str | None:
    """Return one pattern for `pattern`, the lengths and `format`; None without any of them."""
    least, most = int(rule.get("minLength", 0)), rule.get("maxLength")
    most = None if most is None else int(most)
    format_name = rule.get("format")
    if format_name in NATIVE or format_name in INEXPRESSIBLE:
        raise _unsupported(rewriter, under(path, "format"), f"the format {format_name!r}")
    is_limited = least > 0 or most is not None
    if format_name in PATTERNS:
        if is_limited or "pattern" in rule:
            raise _unsupported(rewriter, under(path, "format"), "format beside another condition")
        return PATTERNS[format_name]
    if "pattern" in rule:
        pattern_path = under(path, "pattern")
        pattern, below, above = rewriter.context.pattern_with_lengths(
            rule["pattern"], pattern_path, least, most
        )
        if below or above is not None:
            raise _unsupported(rewriter, pattern_path, "this pattern beside these lengths")
        return pattern
    return f"^(?s:.){{{least},{'' if most is None else most}}}$" if is_limited else None


def _unsupported(rewriter: RewriterBase, path: str, what: str) -> GrammarError:
    message = (
        f"{what} cannot be enforced; use an enum or one pattern in propertyNames, or list the "
        "properties and set additionalProperties to false"
    )
    return rewriter.context.unsupported(path, message)
