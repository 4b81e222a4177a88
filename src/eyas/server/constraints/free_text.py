"""Free text and what ends it: builds grammar nodes of free text, markers and literals.

Promises: all free text has a visible end, which is a marker or the end of the output; a format whose
free text has none is refused. Does not know: the syntax of structural tags.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from eyas.core import GrammarError
from eyas.grammar import Choice, Concat, FreeText, Literal, Marker, Node, Repeat, leaves
from eyas.text import Tokenizer
from eyas.text.trie import any_of


class ControlTokenSplitter:
    """Splits text at the control tokens of a tokenizer: they become markers, the rest literals."""

    def __init__(self, tokenizer: Tokenizer | None, ends: Sequence[int] = ()) -> None:
        """ends: tokens that end an answer, so they never occur inside one. They stay text."""
        tokens = () if tokenizer is None else tokenizer.control_tokens
        self._id_of = {token.text: token.id for token in tokens if token.id not in ends}
        self._pattern = re.compile(any_of(self._id_of)) if self._id_of else None

    def split(self, text: str) -> list[Literal | Marker]:
        """Split the text at its control tokens. A marker also matches ordinary tokens with its text."""
        result: list[Literal | Marker] = []
        begin = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            if begin < match.start():
                result.append(Literal(text[begin : match.start()]))
            result.append(Marker(match[0], self._id_of[match[0]]))
            begin = match.end()
        if begin < len(text):
            result.append(Literal(text[begin:]))
        return result


class FreeTextBuilder:
    """Builds the nodes of free text in one format. param: the request's field with the format, for
    errors."""

    def __init__(self, splitter: ControlTokenSplitter, param: str) -> None:
        self._splitter = splitter
        self._param = param

    def no_end_error(self, path: str) -> GrammarError:
        """Return the error for free text without an end before something that follows it."""
        return GrammarError(
            f"{path[:200]}: any text must be the last, or be followed by a string that ends it",
            "unsupported",
            param=self._param,
        )

    def marker(self, text: str) -> Marker:
        """Return the marker of a text at which free text ends, or that it must not contain."""
        pieces = self._splitter.split(text)
        return pieces[0] if len(pieces) == 1 and isinstance(pieces[0], Marker) else Marker(text)

    def boundary(self, text: str, path: str) -> tuple[Marker, Node | None]:
        """Return the marker at which free text before `text` ends, and the node of the rest of
        `text`."""
        pieces = self._splitter.split(text)
        if len(pieces) == 1:
            return self.marker(text), None
        if not pieces or not isinstance(pieces[0], Marker):
            raise GrammarError(
                f"{path[:200]}: any text before {text[:64]!r}, which mixes text and control tokens, is "
                "not supported; let it begin with the control token",
                "unsupported",
                param=self._param,
            )
        return pieces[0], concat(pieces[1:])

    def up_to(self, after: Mapping[str, Node | None], without: Sequence[Marker], path: str) -> Node:
        """Return free text up to the first of the texts in `after`, followed by the text's node.

        without: markers that the free text must not contain. path: the place in the format, for errors.
        """
        nodes_after: dict[Marker, list[Node | None]] = {}
        for text, node in after.items():
            boundary, rest = self.boundary(text, path)
            parts = [part for part in (rest, node) if part is not None]
            nodes_after.setdefault(boundary, []).append(concat(parts) if parts else None)
        final = tuple(boundary for boundary, nodes in nodes_after.items() if nodes == [None])
        options: list[Node] = []
        if final:
            others = tuple(boundary for boundary in nodes_after if boundary not in final)
            options.append(FreeText(until=final, without=(*others, *without)))
        for boundary, nodes in nodes_after.items():
            if boundary not in final:
                others = tuple(other for other in nodes_after if other != boundary)
                free = FreeText(until=(boundary,), without=(*others, *without))
                rest = choice_of([Literal("") if node is None else node for node in nodes])
                options.append(concat([free, rest]))
        return choice_of(options)

    def with_end(self, node: Node, ends: list[str], path: str) -> Node:
        """Return the node with its final free text ended by one of `ends`."""
        match node:
            case FreeText(until=()):
                return self.up_to(dict.fromkeys(ends), node.without, path)
            case Concat(parts) if not _repeats_free_text(parts[-2]):
                return concat([*parts[:-1], self.with_end(parts[-1], ends, path)])
            case Choice(options):
                return Choice(tuple(self.ended(each, ends, path) for each in options))
        raise self.no_end_error(path)

    def ended(self, node: Node, ends: list[str], path: str) -> Node:
        """Return the node followed by one of `ends`, which ends its final free text if it has one."""
        if has_open_end(node):
            return self.with_end(node, ends, path)
        return concat([node, choice_of([concat(self._splitter.split(end)) for end in ends])])


def concat(parts: Sequence[Node]) -> Node:
    """Return the concatenation of the parts. Nested ones are flattened and empty literals left out."""
    flat: list[Node] = []
    for part in parts:
        flat += part.parts if isinstance(part, Concat) else (part,)
    nonempty = [part for part in flat if part != Literal("")]
    return (
        nonempty[0] if len(nonempty) == 1 else Concat(tuple(nonempty)) if nonempty else Literal("")
    )


def choice_of(options: Sequence[Node]) -> Node:
    """Return a choice of the distinct options; the option itself if there is only one."""
    distinct = tuple(dict.fromkeys(options))
    return distinct[0] if len(distinct) == 1 else Choice(distinct)


def has_open_end(node: Node) -> bool:
    """Whether the node ends with free text that has no end of its own."""
    match node:
        case FreeText(until):
            return not until
        case Concat(parts):
            return bool(parts) and has_open_end(parts[-1])
        case Choice(options):
            return any(has_open_end(option) for option in options)
        case Repeat(part):
            return has_open_end(part)
    return False


def _repeats_free_text(node: Node) -> bool:
    """Whether the node repeats tags with free text between them, which the same end would have to
    end."""
    return isinstance(node, Repeat) and any(isinstance(leaf, FreeText) for leaf in leaves(node))
