"""`x-guidance` at the root of a schema: effects and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eyas.core import GrammarError
from eyas.grammar import Json
from eyas.schemas import json_node, prepare
from eyas.white_space import WHITE_SPACE

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SENT_BY_GUIDANCE = {
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
    "lenient": False,
}


def node(options: Any, schema: dict[str, Any] = SCHEMA, **settings: Any) -> Json:
    return json_node({**schema, "x-guidance": options}, param="json", **settings)


@pytest.mark.parametrize(
    ("options", "separators", "white_space"),
    [
        ({}, None, None),
        ({"whitespace_flexible": None, "item_separator": None}, None, None),
        ({"item_separator": ",", "key_separator": ":"}, None, None),
        ({"whitespace_flexible": True}, None, WHITE_SPACE),
        ({"whitespace_flexible": False}, None, ""),
        ({"whitespace_pattern": "[ ]+"}, None, "(?:[ ]{1,32}){0,1}"),
        ({"whitespace_pattern": r"\n?", "whitespace_flexible": False}, None, r"[\n]{0,1}"),
        ({"item_separator": ", "}, (", ", ":"), WHITE_SPACE),
        ({"key_separator": " : ", "whitespace_flexible": False}, (",", " : "), ""),
        ({"item_separator": r"\s?,"}, (r"[ \t\n\r]{0,1},", ":"), WHITE_SPACE),
        (SENT_BY_GUIDANCE, (", ", ": "), ""),
        ({"lenient": False, "coerce_one_of": False}, None, None),
        ({"json_allowed_escapes": 'nrbtf\\"u', "coerce_one_of": True}, None, None),
    ],
)
def test_what_it_says_of_white_space_holds(
    options: dict[str, Any], separators: Any, white_space: str | None
) -> None:
    found = node(options)
    assert (found.separators, found.white_space) == (separators, white_space)
    assert found.schema == prepare(SCHEMA, param="json")
    text = json.dumps({**SCHEMA, "x-guidance": options})
    assert json_node(text, param="json") == found


@pytest.mark.parametrize(
    ("options", "fault", "message"),
    [
        ({"lenient": "yes"}, "invalid", "x-guidance/lenient: must be true or false, not 'yes'"),
        ({"strict": True}, "unsupported", "x-guidance/strict: is not supported"),
        ({"json_allowed_escapes": "n"}, "unsupported", "json_allowed_escapes: is not"),
        ({"json_allow_general_unicode_escapes": True}, "unsupported", "unicode_escapes: is not"),
        ({"whitespace_pattern": "x*"}, "invalid", "whitespace_pattern: must be white space"),
        ({"whitespace_pattern": "[ ]{999}"}, "invalid", "whitespace_pattern: allows 999"),
        ({"item_separator": ";"}, "invalid", "item_separator: must be ',' with white"),
        ({"key_separator": "="}, "invalid", "key_separator: must be ':' with white"),
        ({"key_separator": 5}, "invalid", "key_separator: must be a string, not 5"),
        ({"whitespace_flexible": "no"}, "invalid", "whitespace_flexible: must be true or"),
        ({"coerce_one_of": 1}, "invalid", "coerce_one_of: must be true or false, not 1"),
        ("lenient", "invalid", "x-guidance: must be an object, not 'lenient'"),
        (None, "invalid", "x-guidance: must be an object, not null"),
    ],
)
def test_what_it_may_not_say_is_refused_by_name(options: Any, fault: str, message: str) -> None:
    with pytest.raises(GrammarError, match=f"^json: #/.*{message}") as refused:
        node(options)
    assert refused.value.fault == fault and refused.value.param == "json"


def test_a_schema_may_say_that_it_is_lenient() -> None:
    told = {"type": "string", "format": "regex"}
    with pytest.raises(GrammarError, match="#/format"):
        node({"lenient": False}, told)
    found = node({"lenient": True}, told)
    assert found == json_node(told, param="json", lenient=True) and found.lenient


def test_nothing_else_that_it_says_relaxes_a_schema() -> None:
    """oneOf that cannot be enforced is refused, although the option permits a substitute."""
    apart = {"oneOf": [{"type": "integer"}, {"type": "string"}]}
    assert node({"coerce_one_of": True}, apart).schema == prepare(apart, param="json")
    unclear = {"oneOf": [{"type": "array", "items": {"minimum": i}} for i in (1, 2)]}
    with pytest.raises(GrammarError, match="oneOf") as refused:
        node({"coerce_one_of": True}, unclear)
    assert refused.value.fault in ("unsupported", "too_complex")


def test_lenient_schemas_may_say_so_twice() -> None:
    assert node({"lenient": True}, lenient=True).lenient


def test_below_the_root_it_is_an_annotation() -> None:
    below = {"type": "array", "items": {"type": "integer", "x-guidance": {"lenient": True}}}
    assert json_node(below, param="json") == json_node(
        {"type": "array", "items": {"type": "integer"}}, param="json"
    )
