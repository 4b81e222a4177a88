"""The nouns of output grammars: what may be generated, from the first token to the last.

A grammar is a tree of the nodes below. Dialects build it from what a request asks for, backends compile
it into an automaton. After its last node only an end-of-sequence token is legal.

Promises: plain data that crosses the process border; equal trees encode to equal bytes (`key`). No node
but `Marker` ever allows a control token.
Does not know: model families, backends, how a request is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal as OneOf

import msgspec

from eyas.white_space import MAX_WRITTEN_CHARS, WHITE_SPACE, read_optional, read_separator


class Literal(msgspec.Struct, frozen=True, tag="literal"):
    """Exactly this text, in whatever ordinary tokens spell it."""

    text: str


class Marker(msgspec.Struct, frozen=True, tag="marker"):
    """A border of a format, such as </think>: the control token `token_id`, or its text where there is
    no such token or where `spelled` says that ordinary tokens may spell it as well."""

    text: str
    token_id: int | None = None
    spelled: bool = True

    @property
    def is_text(self) -> bool:
        """May ordinary tokens spell it?"""
        return self.spelled or self.token_id is None


class FreeText(msgspec.Struct, frozen=True, tag="free"):
    """Any text. until: it goes on to the first of these markers, which belongs to it; without any it
    goes on to the end of the grammar or to a control token that follows. without: markers whose
    spelling it never contains."""

    until: tuple[Marker, ...] = ()
    without: tuple[Marker, ...] = ()


class Spacing(msgspec.Struct, frozen=True):
    """What JSON holds beside its values, in patterns as `eyas.white_space` writes them. white_space:
    what may stand between any two parts; empty for nothing. item, key: what stands between items and
    behind keys."""

    white_space: str = WHITE_SPACE
    item: str = ","
    key: str = ":"


SPACING = Spacing()
SPACED, COMPACT = (", ", ": "), (",", ":")
"""Separators as `json.dumps` has them, and the shortest."""


class Json(msgspec.Struct, frozen=True, tag="json"):
    """A JSON value of a schema (JSON text, as `eyas.schemas.prepare` returns it).

    separators: patterns of what stands between items and behind keys. white_space: a pattern of what
    else may stand between parts; nothing where there are separators alone. With neither of them the
    backend's spacing holds. lenient: keywords that cannot be enforced
    are left out.
    """

    schema: str
    lenient: bool = False
    separators: tuple[str, str] | None = None
    white_space: str | None = None

    def spacing(self, default: Spacing) -> Spacing:
        """What holds for it. default: the backend's. ValueError for what would not be JSON."""
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
    """A grammar that a user wrote. syntax: lark (llguidance's dialect of it, with its %llguidance
    header or not), ebnf (GBNF as well), llguidance (its JSON form)."""

    syntax: OneOf["lark", "ebnf", "llguidance"]
    text: str


class Concat(msgspec.Struct, frozen=True, tag="series"):
    """The parts, one after the other."""

    parts: tuple[Node, ...]


class Choice(msgspec.Struct, frozen=True, tag="choice"):
    """One of them."""

    options: tuple[Node, ...]


class Repeat(msgspec.Struct, frozen=True, tag="repeat"):
    """At least `least` and at most `most` times (None: any number)."""

    part: Node
    least: int = 0
    most: int | None = None


Node = Literal | Marker | FreeText | Json | Regex | Source | Concat | Choice | Repeat


class Budget(msgspec.Struct, frozen=True):
    """A limit on the text at the beginning of the output: after `max_tokens` tokens in which none of
    `ends` came, the tokens `closing` follow, whatever the model wants."""

    max_tokens: int
    ends: tuple[Marker, ...]
    closing: tuple[int, ...]


class OutputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the output may be, from its first generated token to its last.

    param: the request's field that asked for it, for errors.
    """

    root: Node
    budget: Budget | None = None
    param: str | None = None

    @property
    def key(self) -> bytes:
        """The same for the same grammar."""
        return _encode((self.root, self.budget))


_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def replaced(node: Node, change: Callable[[Node], Node]) -> Node:
    """The tree with `change` applied to every leaf."""
    match node:
        case Concat(parts):
            return Concat(tuple(replaced(part, change) for part in parts))
        case Choice(options):
            return Choice(tuple(replaced(option, change) for option in options))
        case Repeat(part, least, most):
            return Repeat(replaced(part, change), least, most)
    return change(node)


def leaves(node: Node) -> list[Node]:
    """Every node without parts, in order."""
    match node:
        case Concat(parts) | Choice(parts):
            return [leaf for part in parts for leaf in leaves(part)]
        case Repeat(part):
            return leaves(part)
    return [node]
