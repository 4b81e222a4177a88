"""The nodes of output grammars.

A grammar is a tree of these nodes. It describes the output from the first generated token to the last.
Dialects build it from a request, and backends compile it into an automaton. After the last node only
an end-of-sequence token is legal.

Promises: plain data that is sent between processes; equal trees encode to equal bytes (`key`). Only
`Marker` allows a control token.
Does not know: model families, backends, the fields of a request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal as OneOf

import msgspec

from eyas.white_space import MAX_WRITTEN_CHARS, WHITE_SPACE, read_optional, read_separator


class Literal(msgspec.Struct, frozen=True, tag="literal"):
    """Exactly this text, in any sequence of ordinary tokens that spells it."""

    text: str


class Marker(msgspec.Struct, frozen=True, tag="marker"):
    """A delimiter of a format, such as </think>: the control token `token_id`, or its text in ordinary
    tokens if there is no such token or if `spelled` is true."""

    text: str
    token_id: int | None = None
    spelled: bool = True

    @property
    def is_text(self) -> bool:
        """Whether ordinary tokens may spell it."""
        return self.spelled or self.token_id is None


class FreeText(msgspec.Struct, frozen=True, tag="free"):
    """Any text.

    until: the text ends with the first of these markers, inclusive; without markers it ends at the end
    of the grammar or before a control token that follows. without: markers whose text it must not
    contain.
    """

    until: tuple[Marker, ...] = ()
    without: tuple[Marker, ...] = ()


class Spacing(msgspec.Struct, frozen=True):
    """White space and separators of JSON, as patterns that `eyas.white_space` returns.

    white_space: allowed between any two parts; empty for none. item, key: the separators between items
    and after keys.
    """

    white_space: str = WHITE_SPACE
    item: str = ","
    key: str = ":"


SPACING = Spacing()
SPACED, COMPACT = (", ", ": "), (",", ":")
"""The separators of `json.dumps`, and the shortest ones."""


class Json(msgspec.Struct, frozen=True, tag="json"):
    """A JSON value that satisfies a schema (JSON text, as `eyas.schemas.prepare` returns it).

    separators: patterns of the separators between items and after keys. white_space: a pattern of the
    other white space between parts; none if only `separators` are given. If both are None, the
    backend's spacing applies. lenient: keywords that cannot be enforced are left out.
    """

    schema: str
    lenient: bool = False
    separators: tuple[str, str] | None = None
    white_space: str | None = None

    def spacing(self, default: Spacing) -> Spacing:
        """Return its white space and separators. default: the backend's. ValueError if the result would
        not be JSON."""
        if self.separators is None and self.white_space is None:
            return default
        item, key = self.separators or COMPACT
        return Spacing(
            read_optional(self.white_space or "", MAX_WRITTEN_CHARS),
            read_separator(item, ",", MAX_WRITTEN_CHARS),
            read_separator(key, ":", MAX_WRITTEN_CHARS),
        )


class Regex(msgspec.Struct, frozen=True, tag="regex"):
    """A text that the whole pattern matches (Rust's regex syntax)."""

    pattern: str


class Source(msgspec.Struct, frozen=True, tag="source"):
    """A user's grammar. syntax: lark (llguidance's variant, with or without a %llguidance header), ebnf
    (also GBNF), or llguidance (its JSON form)."""

    syntax: OneOf["lark", "ebnf", "llguidance"]
    text: str


class Concat(msgspec.Struct, frozen=True, tag="series"):
    """The parts, one after the other."""

    parts: tuple[Node, ...]


class Choice(msgspec.Struct, frozen=True, tag="choice"):
    """One of the options."""

    options: tuple[Node, ...]


class Repeat(msgspec.Struct, frozen=True, tag="repeat"):
    """The part, `least` to `most` times (None: unbounded)."""

    part: Node
    least: int = 0
    most: int | None = None


Node = Literal | Marker | FreeText | Json | Regex | Source | Concat | Choice | Repeat


class Budget(msgspec.Struct, frozen=True):
    """A token limit on the beginning of the output: after `max_tokens` tokens without one of the
    markers `ends`, the tokens `closing` are forced."""

    max_tokens: int
    ends: tuple[Marker, ...]
    closing: tuple[int, ...]


class OutputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The grammar of an output, from its first generated token to its last.

    param: the request's field that it comes from, for errors.
    """

    root: Node
    budget: Budget | None = None
    param: str | None = None

    @property
    def key(self) -> bytes:
        """Equal bytes for equal grammars."""
        return _encode((self.root, self.budget))


_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def replaced(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return the tree with `change` applied to every leaf."""
    match node:
        case Concat(parts):
            return Concat(tuple(replaced(part, change) for part in parts))
        case Choice(options):
            return Choice(tuple(replaced(option, change) for option in options))
        case Repeat(part, least, most):
            return Repeat(replaced(part, change), least, most)
    return change(node)


def leaves(node: Node) -> list[Node]:
    """Return every node without parts, in order."""
    match node:
        case Concat(parts) | Choice(parts):
            return [leaf for part in parts for leaf in leaves(part)]
        case Repeat(part):
            return leaves(part)
    return [node]
