"""References lead to what they name where they stand, wherever a schema is written out."""

from __future__ import annotations

from typing import Any

import pytest

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
    """The root's own `a` would tell options apart that are not."""
    inner = {"$id": "sub", "$defs": {"a": {"type": "integer"}, "b": {"const": 3}}, **inner}
    root = {"$id": ROOT, "$ref": "sub", "$defs": {"a": {"enum": [1, 9]}, "s": inner}}
    check(root, valid, invalid)
