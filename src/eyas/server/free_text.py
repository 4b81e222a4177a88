"""Free text and what ends it: how text of a format becomes markers, literals and text between them.

Promises: free text always has an end that can be seen, a marker or the end of the output; what would
have none is refused. Does not know: structural tags' syntax.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from eyas.core import GrammarError
from eyas.grammar import Choice, Concat, FreeText, Literal, Marker, Node, Repeat, leaves
from eyas.text import Tokenizer
from eyas.text.trie import any_of


class Spelling:
    """How a format's text is written: its control tokens are markers, the rest is text."""

    def __init__(self, tokenizer: Tokenizer | None, ends: Sequence[int] = ()) -> None:
        """ends: tokens that end an answer and therefore are never inside one."""
        tokens = () if tokenizer is None else tokenizer.control_tokens
        self._id_of = {token.text: token.id for token in tokens if token.id not in ends}
        self._pattern = re.compile(any_of(self._id_of)) if self._id_of else None

    def pieces(self, text: str) -> list[Literal | Marker]:
        """The text, cut at its control tokens; ordinary tokens may spell those as well."""
        found: list[Literal | Marker] = []
        begin = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            if begin < match.start():
                found.append(Literal(text[begin : match.start()]))
            found.append(Marker(match[0], self._id_of[match[0]]))
            begin = match.end()
        if begin < len(text):
            found.append(Literal(text[begin:]))
        return found


class FreeTexts:
    """Free text of one format. param: the request's field that holds it, for errors."""

    def __init__(self, spelling: Spelling, param: str) -> None:
        self._spelling = spelling
        self._param = param

    def refusal(self, path: str) -> GrammarError:
        """Text that nothing ends stands where something follows."""
        return GrammarError(
            f"{path[:200]}: any text must be the last, or be followed by a string that ends it",
            "unsupported",
            param=self._param,
        )

    def marker(self, text: str) -> Marker:
        """A border that free text stops at or never holds."""
        pieces = self._spelling.pieces(text)
        return pieces[0] if len(pieces) == 1 and isinstance(pieces[0], Marker) else Marker(text)

    def lead(self, text: str, path: str) -> tuple[Marker, Node | None]:
        """The border that free text before `text` stops at, and what then follows of it."""
        pieces = self._spelling.pieces(text)
        if len(pieces) == 1:
            return self.marker(text), None
        if not pieces or not isinstance(pieces[0], Marker):
            raise GrammarError(
                f"{path[:200]}: any text before {text[:64]!r}, which mixes text and control tokens, is "
                "not supported; let it begin with the control token",
                "unsupported",
                param=self._param,
            )
        return pieces[0], joined(pieces[1:])

    def until(self, after: Mapping[str, Node | None], without: Sequence[Marker], path: str) -> Node:
        """Free text up to the first of some texts, and what follows each."""
        follows: dict[Marker, list[Node | None]] = {}
        for text, node in after.items():
            lead, rest = self.lead(text, path)
            parts = [part for part in (rest, node) if part is not None]
            follows.setdefault(lead, []).append(joined(parts) if parts else None)
        ended = tuple(lead for lead, nodes in follows.items() if nodes == [None])
        options: list[Node] = []
        if ended:
            others = tuple(lead for lead in follows if lead not in ended)
            options.append(FreeText(until=ended, without=(*others, *without)))
        for lead, nodes in follows.items():
            if lead not in ended:
                others = tuple(other for other in follows if other != lead)
                free = FreeText(until=(lead,), without=(*others, *without))
                rest = one_of([Literal("") if node is None else node for node in nodes])
                options.append(joined([free, rest]))
        return one_of(options)

    def closed(self, node: Node, ends: list[str], path: str) -> Node:
        """The node with its last, open text going on to one of `ends`."""
        match node:
            case FreeText(until=()):
                return self.until(dict.fromkeys(ends), node.without, path)
            case Concat(parts) if not _loops_over_text(parts[-2]):
                return joined([*parts[:-1], self.closed(parts[-1], ends, path)])
            case Choice(options):
                return Choice(tuple(self._closed_if_open(each, ends, path) for each in options))
        raise self.refusal(path)

    def _closed_if_open(self, node: Node, ends: list[str], path: str) -> Node:
        if ends_open(node):
            return self.closed(node, ends, path)
        return joined([node, one_of([joined(self._spelling.pieces(end)) for end in ends])])


def joined(parts: Sequence[Node]) -> Node:
    """One after the other, series in series unrolled."""
    flat: list[Node] = []
    for part in parts:
        flat += part.parts if isinstance(part, Concat) else (part,)
    kept = [part for part in flat if part != Literal("")]
    return kept[0] if len(kept) == 1 else Concat(tuple(kept)) if kept else Literal("")


def one_of(options: Sequence[Node]) -> Node:
    distinct = tuple(dict.fromkeys(options))
    return distinct[0] if len(distinct) == 1 else Choice(distinct)


def ends_open(node: Node) -> bool:
    """Does it end with text that nothing ends?"""
    match node:
        case FreeText(until):
            return not until
        case Concat(parts):
            return bool(parts) and ends_open(parts[-1])
        case Choice(options):
            return any(ends_open(option) for option in options)
        case Repeat(part):
            return ends_open(part)
    return False


def _loops_over_text(node: Node) -> bool:
    """Do tags in free text come any number of times? What ends them would have to end that text too."""
    return isinstance(node, Repeat) and any(isinstance(leaf, FreeText) for leaf in leaves(node))
