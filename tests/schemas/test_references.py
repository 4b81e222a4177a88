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


TREE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"$dynamicRef": "#node"}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "schema",
    [
        {"$dynamicAnchor": "node", **TREE},
        {"$anchor": "node", **TREE},
        {"$ref": "#node", "$defs": {"n": {"$dynamicAnchor": "node", **TREE}}},
        {**TREE, "properties": {**TREE["properties"], "next": {"$recursiveRef": "#"}}},
        {
            "$recursiveAnchor": True,
            **TREE,
            "properties": {**TREE["properties"], "next": {"$recursiveRef": "#"}},
        },
    ],
)
def test_a_dynamic_reference_with_one_target_is_enforced(schema: dict[str, Any]) -> None:
    check(schema, [{}, {"v": 1, "next": {"v": 2, "next": {}}}], [{"next": 1}, {"next": {"x": 1}}])


@pytest.mark.parametrize(
    ("keyword", "reference", "anchor"),
    [("$dynamicRef", "#item", "item"), ("$recursiveRef", "#", True)],
)
def test_a_dynamic_reference_whose_target_depends_on_its_use_is_refused(
    keyword: str, reference: str, anchor: str | bool
) -> None:
    """The root's items are strings, those of the list by itself are anything."""
    named = keyword.replace("Ref", "Anchor")
    items = {"$id": "list", "items": {keyword: reference}, named: anchor}
    schema = {"$id": ROOT, "$ref": "list", named: anchor, "type": "array", "$defs": {"x": items}}
    with pytest.raises(GrammarError, match=rf"\{keyword} cannot be enforced"):
        prepare(schema, param="schema")


def test_a_dependency_of_draft_3_may_be_one_name() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-03/schema#",
        "type": "object",
        "properties": {"a": {}, "b": {}},
        "dependencies": {"a": "b"},
    }
    check(schema, [{}, {"b": 1}, {"a": 1, "b": 1}], [{"a": 1}])
    with pytest.raises(GrammarError, match="#/dependencies/a: must be property names"):
        prepare({**schema, "$schema": "http://json-schema.org/draft-04/schema#"}, param="schema")
