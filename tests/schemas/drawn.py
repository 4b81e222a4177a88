"""Random schemas and values with few names, so that they often interact."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "c", "ab")
SCALARS = (None, True, False, 0, 1, 2, -1, 1.5, 0.5, "", "a", "b", "ab", "x")
_LEAVES = (
    *(True, False, {}, {"type": "string"}, {"type": "integer"}, {"const": "a"}, {"const": 1}),
    *({"enum": ["a", "b"]}, {"type": "number"}, {"minLength": 2}, {"minimum": 1}),
)
_TYPES = (
    *("object", "object", "string", "integer", "number", "array", "null", "boolean"),
    *(["string", "null"], ["object", "array"], ["integer", "string"]),
)

values = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    ),
    max_leaves=5,
)


def _with_keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True)
    named = st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=3)
    several = st.lists(inner, min_size=1, max_size=3)
    listed = st.lists(st.sampled_from(SCALARS), min_size=1, max_size=3)
    patterns = st.sampled_from(("^a", "b$", "^(a|b)$", "x"))
    count = st.sampled_from((0, 1))
    larger = st.sampled_from((1, 2))
    keywords = {
        "type": st.sampled_from(_TYPES),
        "enum": listed,
        "const": st.sampled_from(SCALARS),
        "minLength": count,
        "maxLength": larger,
        "minItems": count,
        "maxItems": larger,
        "minProperties": count,
        "maxProperties": larger,
        "minimum": st.sampled_from((0, 0.5, 1)),
        "maximum": st.sampled_from((1, 1.5, 2)),
        "exclusiveMinimum": st.sampled_from((-1, 0, 0.5, 1)),
        "exclusiveMaximum": st.sampled_from((-0.5, 0.5, 1, 2)),
        "pattern": patterns,
        "format": st.just("colour"),
        "properties": named,
        "patternProperties": st.dictionaries(
            st.sampled_from(("^a", "^b$", ".*", "^(a|c)$")), inner, min_size=1, max_size=2
        ),
        "additionalProperties": inner,
        "unevaluatedProperties": inner,
        "propertyNames": inner,
        "required": names,
        "items": inner,
        "prefixItems": several,
        "contains": inner,
        "uniqueItems": st.just(True),
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "allOf": several,
        "anyOf": several,
        "oneOf": several,
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), names, max_size=2),
        "dependentSchemas": st.dictionaries(st.sampled_from(NAMES), inner, max_size=1),
    }
    some = st.lists(st.sampled_from(sorted(keywords)), min_size=1, max_size=4, unique=True)
    return some.flatmap(
        lambda chosen: st.fixed_dictionaries({name: keywords[name] for name in chosen})
    )


schemas = _with_keywords(st.recursive(st.sampled_from(_LEAVES), _with_keywords, max_leaves=6))
