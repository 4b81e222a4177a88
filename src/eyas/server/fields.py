"""The types of the fields in request bodies.

Promises: strict types; validation stops at the first error, however long the value is; where a field
has several forms, the error is about the form that was sent. Does not know: which fields there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from eyas.core import MAX_CHOICES, MAX_STOP_STRINGS, field_error

MAX_PROMPTS = MAX_CHOICES
MAX_PROMPT_TOKENS = 2**20
MAX_NAME_CHARS = 256
MAX_PATTERN_CHARS = 65_536
MAX_GRAMMAR_CHARS = 1_048_576
MAX_CONSTRAINT_CHOICES = 10_000
FORMS = frozenset(
    {
        *("a text", "a list", "an object", "of texts", "of ids", "of lists"),
        *("a text part", "a refusal", "a function tool"),
        *("a message item", "a call item", "a result item", "a reasoning item"),
        *("a user turn", "an assistant turn", "a system turn", "a client tool"),
        *("a text block", "a thinking block", "a call block", "a result block"),
    }
)
"""The tags of the members of unions. pydantic includes them in the location of an error."""


OFF = (False, "", [], {})
"""Values that switch a feature off; 0 is equal to the first."""


class StrictModel(BaseModel):
    """An object with strict types. An unknown field is an error unless it is null, or has one of its
    values in `neutral`: what clients of other servers send for nothing."""

    model_config = ConfigDict(extra="forbid", strict=True)
    known_names: ClassVar[frozenset[str]] = frozenset()
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls.known_names = frozenset(field.alias or name for name, field in cls.model_fields.items())

    @classmethod
    def asks_for(cls, value: Mapping[str, Any], name: str) -> bool:
        """Whether an unknown field of an object has a value with which it asks for something."""
        given = value.get(name)
        return given is not None and given not in cls.neutral.get(name, ())

    @model_validator(mode="before")
    @classmethod
    def _with_one_unknown_field(cls, value: Any) -> Any:
        """Drop all unknown fields but the first one that asks for something: a client may send a
        million."""
        if not isinstance(value, dict) or value.keys() <= cls.known_names:
            return value
        known = {name: item for name, item in value.items() if name in cls.known_names}
        unknown = (name for name in value if name not in known and cls.asks_for(value, name))
        return known | {name: value[name] for name in islice(unknown, 1)}


def at_most(num_entries: int) -> BeforeValidator:
    """Return a validator of the number of an object's members, before any of them is validated."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > num_entries:
            raise ValueError(f"must have at most {num_entries} entries, not {len(value)}")
        return value

    return BeforeValidator(check)


def refuse_fields(body: BaseModel, remedies: Mapping[str, str]) -> None:
    """Raise RequestError for a field that is known and not supported, unless it asks for nothing.
    remedies: what to do instead, by field."""
    for name, remedy in remedies.items():
        if getattr(body, name) not in (None, False, []):
            raise field_error(name, remedy, code="unsupported_parameter")


def prompts_in(value: Any, param: str, num_each: int = 1) -> dict[str, str | Sequence[int]]:
    """Return the prompts of a field that has one or a list of them, by their path in the body.

    num_each: the number of answers per prompt. RequestError if there are too many answers in total.
    """
    if isinstance(value, str) or isinstance(value[0], int):
        value, names = [value], [param]
    else:
        names = [f"{param}[{index}]" for index in range(len(value))]
    num_answers = len(value) * num_each
    if num_answers > MAX_CHOICES:
        raise field_error(
            param,
            f"{len(value)} prompts with n = {num_each} make {num_answers} answers; at most "
            f"{MAX_CHOICES} at a time",
        )
    return dict(zip(names, value, strict=True))


def by_form(message: str) -> Discriminator:
    """Return a discriminator of unions of a text, a list and an object. message: what the field must
    be."""
    return by_tag(_tag_of_form, message)


def by_first_item(message: str) -> Discriminator:
    """Return a discriminator of lists by the type of their first item. message: what the field must
    be."""
    return by_tag(_tag_of_first_item, message)


def by_type_field(tags: dict[str, str], message: str) -> Discriminator:
    """Return a discriminator of objects by their field "type". tags: the tag of each type."""

    def tag_of(value: Any) -> str | None:
        type_name = value.get("type") if isinstance(value, dict) else None
        return tags.get(type_name) if isinstance(type_name, str) else None

    return by_tag(tag_of, message)


def by_tag(tag_of: Callable[[Any], str | None], message: str) -> Discriminator:
    """Return a discriminator by a function. message: what the value must be if it has no tag."""
    return Discriminator(tag_of, custom_error_type="form", custom_error_message=message)


def _tag_of_form(value: Any) -> str | None:
    return {str: "a text", list: "a list", dict: "an object"}.get(type(value))


def _tag_of_first_item(value: Any) -> str | None:
    """Return the tag of a list by its first item. An empty list is one of token ids."""
    first: Any = next(iter(value), None)
    return (
        "of texts"
        if isinstance(first, str)
        else "of lists"
        if isinstance(first, list)
        else "of ids"
    )


Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=MAX_NAME_CHARS)]
Pattern = Annotated[str, Field(min_length=1, max_length=MAX_PATTERN_CHARS)]
Grammar = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_PATTERN_CHARS)]],
    Field(fail_fast=True, min_length=1, max_length=MAX_CONSTRAINT_CHOICES),
]

TokenIds = Annotated[
    list[TokenId], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPT_TOKENS)
]
_Texts = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)]
_Lists = Annotated[list[TokenIds], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)]
_PROMPT = "must be a string, a list of token ids, or a list of either"
_IDS = "must be a list of token ids, or a list of such lists"

Prompt = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[
        Annotated[
            Annotated[TokenIds, Tag("of ids")]
            | Annotated[_Texts, Tag("of texts")]
            | Annotated[_Lists, Tag("of lists")],
            by_first_item(_PROMPT),
        ],
        Tag("a list"),
    ],
    by_form(_PROMPT),
]
PromptTexts = Annotated[
    Annotated[str, Tag("a text")] | Annotated[_Texts, Tag("a list")],
    by_form("must be a string or a list of strings"),
]
PromptIds = Annotated[
    Annotated[
        Annotated[
            Annotated[TokenIds, Tag("of ids")] | Annotated[_Lists, Tag("of lists")],
            by_first_item(_IDS),
        ],
        Tag("a list"),
    ],
    by_form(_IDS),
]
Stop = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[list[str], Field(fail_fast=True, max_length=MAX_STOP_STRINGS), Tag("a list")],
    by_form("must be a string or a list of strings"),
]
