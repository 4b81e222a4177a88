"""The kinds of fields that requests are made of.

Promises: strict types; a check ends at the first fault, however long the value is; where a field takes
several forms, errors are about the one that was sent. Does not know: which fields there are.
"""

from __future__ import annotations

from collections.abc import Sequence
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

from eyas.core import MAX_CHOICES, MAX_STOP_STRINGS, RequestError

MAX_PROMPTS = MAX_CHOICES
MAX_PROMPT_TOKENS = 2**20
MAX_NAME_CHARS = 256
MAX_PATTERN_CHARS = 65_536
MAX_GRAMMAR_CHARS = 1_048_576
MAX_CONSTRAINT_CHOICES = 10_000
FORMS = frozenset(
    {"a text", "a list", "an object", "of texts", "of ids", "of lists", "a text part", "a refusal"}
)
"""The members of unions, by their tags, which pydantic counts as steps on the way to a fault."""


class StrictModel(BaseModel):
    """An object. An unknown field that is null says nothing; any other is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)
    known_names: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls.known_names = frozenset(field.alias or name for name, field in cls.model_fields.items())

    @model_validator(mode="before")
    @classmethod
    def _with_one_unknown_field(cls, value: Any) -> Any:
        """The first unknown field stands for all of them: a client may send a million."""
        if not isinstance(value, dict) or value.keys() <= cls.known_names:
            return value
        kept = {name: item for name, item in value.items() if name in cls.known_names}
        others = (name for name in value if name not in kept and value[name] is not None)
        return kept | {name: value[name] for name in islice(others, 1)}


def at_most(num_entries: int) -> BeforeValidator:
    """An object of so many members, counted before any of them is looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > num_entries:
            raise ValueError(f"must have at most {num_entries} entries, not {len(value)}")
        return value

    return BeforeValidator(check)


def prompts_in(value: Any, param: str, num_each: int = 1) -> dict[str, str | Sequence[int]]:
    """The prompts of a field, one or a list of them, each by its place in the request. RequestError
    where so many answers to each are too many."""
    if isinstance(value, str) or isinstance(value[0], int):
        value, names = [value], [param]
    else:
        names = [f"{param}[{place}]" for place in range(len(value))]
    num_answers = len(value) * num_each
    if num_answers > MAX_CHOICES:
        raise RequestError(
            f"{param}: {len(value)} prompts with n = {num_each} make {num_answers} answers; at most "
            f"{MAX_CHOICES} at a time",
            param=param,
        )
    return dict(zip(names, value, strict=True))


def either(message: str) -> Discriminator:
    """A text, a list or an object, as the value shows; the union's members are tagged so. message: what
    the field must be."""
    return Discriminator(_form_of, custom_error_type="form", custom_error_message=message)


def by_first(message: str) -> Discriminator:
    """A list of texts, of lists or of numbers, as its first item shows."""
    return Discriminator(_form_of_first, custom_error_type="form", custom_error_message=message)


def by_type(tags: dict[str, str], message: str) -> Discriminator:
    """An object whose "type" is one of `tags`, which says its tag in the union."""

    def tag_of(value: Any) -> str | None:
        named = value.get("type") if isinstance(value, dict) else None
        return tags.get(named) if isinstance(named, str) else None

    return Discriminator(tag_of, custom_error_type="form", custom_error_message=message)


def _form_of(value: Any) -> str | None:
    return {str: "a text", list: "a list", dict: "an object"}.get(type(value))


def _form_of_first(value: Any) -> str | None:
    """Lists are told apart by their first item; an empty one is of token ids."""
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
            by_first(_PROMPT),
        ],
        Tag("a list"),
    ],
    either(_PROMPT),
]
PromptTexts = Annotated[
    Annotated[str, Tag("a text")] | Annotated[_Texts, Tag("a list")],
    either("must be a string or a list of strings"),
]
PromptIds = Annotated[
    Annotated[
        Annotated[
            Annotated[TokenIds, Tag("of ids")] | Annotated[_Lists, Tag("of lists")], by_first(_IDS)
        ],
        Tag("a list"),
    ],
    either(_IDS),
]
Stop = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[list[str], Field(fail_fast=True, max_length=MAX_STOP_STRINGS), Tag("a list")],
    either("must be a string or a list of strings"),
]
