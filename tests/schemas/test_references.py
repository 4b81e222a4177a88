"""References keep their targets wherever a schema is rewritten."""

from __future__ import annotations

from typing import Any

import pytest

from eyas.core import GrammarError
from eyas.schemas import prepare
from tests.schemas.enforcing import check

ROOT = "https://x.org/root"
APART: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    (
        {"$ref": "#/$defs/a", "oneOf": [{"enum": [1, 3]}, {"enum": [3, 9]}]},
        [1, 9],
        [3],
    ),
    ({"$ref": "#/$defs/a", "type": "integer", "not": {"enum": [3]}}, [1, 9], [3, "a"]),
    (
        {"$ref": "#/$defs/a", "if": {"enum": [1, 3]}, "then": {"maximum": 2}},
        [1, 9],
        [3, "a"],
    ),
    ({"allOf": [{"$ref": "#/$defs/a"}], "not": {"$ref": "#/$defs/b"}}, [1, 9], [3]),
]


@pytest.mark.parametrize(("inner", "valid", "invalid"), APART)
def test_a_reference_stays_in_its_resource(
    inner: dict[str, Any], valid: list[Any], invalid: list[Any]
) -> None:
    """With the root's `a` the options would be disjoint, but they are not."""
    inner = {"$id": "sub", "$defs": {"a": {"type": "integer"}, "b": {"const": 3}}, **inner}
    root = {"$id": ROOT, "$ref": "sub", "$defs": {"a": {"enum": [1, 9]}, "s": inner}}
    check(root, valid, invalid)


def test_a_type_beside_a_reference_that_says_as_much_is_left_out() -> None:
    """The backend cannot merge a schema that refers to itself with other keywords."""
    schema = {
        "type": "object",
        "properties": {"c": {"$ref": "#", "type": ["object", "null"]}, "v": {"type": "integer"}},
    }
    check(schema, [{}, {"c": {"c": {}, "v": 1}}], [{"c": None}, {"c": {"v": "x"}}])
    beside = {"$defs": {"a": {"type": "integer"}}, "$ref": "#/$defs/a", "type": "number"}
    check(beside, [1], [1.5, "x"])
    check({**beside, "$defs": {"a": {"type": "number"}}, "type": "integer"}, [1], [1.5, "x"])


@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07"])
def test_later_keywords_allow_nothing_that_an_older_draft_refuses(draft: str) -> None:
    named = {"$schema": f"http://json-schema.org/{draft}/schema#", "type": "array"}
    prefixed = {"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}
    rare = {"contains": {"const": 1}, "minContains": 0, "maxItems": 2}
    for keyword, schema in (("prefixItems", prefixed), ("minContains", rare)):
        with pytest.raises(GrammarError, match=f"#/{keyword}: is not known to the draft") as caught:
            prepare({**named, **schema}, param="schema")
        assert caught.value.fault == "unsupported"
        check({"type": "array", **schema}, [[]], [])
    check({**named, "prefixItems": [{"type": "string"}]}, [["a", 1]], [[1]])
    left_out = prepare({**named, **prefixed}, param="schema", lenient=True)
    assert "prefixItems" not in left_out and '"integer"' in left_out


@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07"])
def test_an_older_draft_takes_nothing_from_what_a_schema_says(draft: str) -> None:
    """Keywords of later drafts, and keywords beside a reference, are enforced."""
    schema = {
        "$schema": f"http://json-schema.org/{draft}/schema#",
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/whole", "minimum": 2}},
        "dependentRequired": {"a": ["b"]},
        "definitions": {"whole": {"type": "integer"}},
    }
    check(
        schema, [{}, {"b": 1}, {"a": 2, "b": 1}], [{"a": 2}, {"a": 1, "b": 1}, {"a": "x", "b": 1}]
    )
