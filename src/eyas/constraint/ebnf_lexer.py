"""Which rules of an EBNF grammar a lexer may read as one terminal.

A lexer takes the longest text that a terminal matches. If the next character of the output could both
continue that text and begin what follows the terminal, as in `number ws "\\n"` where `ws` may hold line
ends, it takes the wrong one. Such a rule stays a rule, and its parts are terminals.

Promises: a rule that is read as one terminal takes no character from what follows it, unless that is
the same terminal again, where it rarely matters and all divisions would be many. Not found: one
terminal that takes a character from what follows another one, and rules that are too large to look at.
Does not know: how grammars are written.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Set
from typing import NamedTuple

from llguidance.gbnf_to_lark import (
    AlternativeNode,
    ASTNode,
    LiteralNode,
    RegexNode,
    RepetitionNode,
    RuleNode,
    RuleRefNode,
    SequenceNode,
)

from eyas.schemas import automata, charsets
from eyas.schemas.automata import Edges
from eyas.schemas.charsets import Ranges
from eyas.schemas.pattern_parser import read
from eyas.schemas.pattern_tree import Choice, Node, PatternFault, Repeat, Series

_CHAR = re.compile(r"\\x..|\\u\w+|\\U\w+|\\.|.", re.DOTALL)
_MAX_STEPS = 50_000
"""Nodes that are visited and sets of characters that are copied for one grammar; steps of automata."""


class _TooLarge(Exception):
    pass


class _Begin(NamedTuple):
    """How texts of a node begin. chars: their first characters, each set with the terminal that it
    comes from (its id, 0 for a part of a rule). may_be_empty: whether "" is one."""

    chars: frozenset[tuple[int, Ranges]] = frozenset()
    may_be_empty: bool = False


def split_terminals(rules: dict[str, RuleNode]) -> None:
    """Make each use of a terminal that takes characters from what follows it a use of a rule with the
    same text. In a grammar that is too large to look at, terminals stay."""
    try:
        _Splitter(rules).split()
    except _TooLarge:
        return


def below(node: ASTNode) -> Iterator[ASTNode]:
    """Yield all nodes below a node, without the targets of references."""
    for child in node.children():
        yield child
        yield from below(child)


class _Splitter:
    """The uses of terminals in one grammar. rules: gets the rules that are split off."""

    def __init__(self, rules: dict[str, RuleNode]) -> None:
        self._rules = rules
        self._budget = automata.Budget(_MAX_STEPS)
        self._steps_left = _MAX_STEPS
        self._patterns: dict[int, Node] = {}
        self._edges: dict[int, Edges | None] = {}
        self._begins: dict[int, _Begin] = {}
        self._after: dict[int, set[tuple[int, Ranges]]] = {}

    def split(self) -> None:
        """Split uses until no terminal takes a character from what follows it."""
        split: dict[int, RuleNode] = {}
        is_done = False
        while not is_done:
            is_done = True
            self._find_what_follows()
            for node in [node for rule in self._proper() for node in below(rule)]:
                match node:
                    case RuleRefNode(target=RuleNode(rule_is_terminal=True) as target):
                        if self._is_lossless(target):
                            continue
                        if id(target) not in split:
                            split[id(target)] = self._rule_of(target)
                        node.target, is_done = split[id(target)], False

    def _proper(self) -> list[RuleNode]:
        """Return the rules that are no terminals."""
        return [rule for rule in self._rules.values() if not rule.rule_is_terminal]

    def _is_lossless(self, terminal: RuleNode) -> bool:
        found = self._edges_of(terminal.alternatives)
        others = (chars for origin, chars in self._after[id(terminal)] if origin != id(terminal))
        following = automata.joined(others)
        return found is None or not charsets.common(found.after, following)

    def _rule_of(self, terminal: RuleNode) -> RuleNode:
        """Add a rule with the text of a terminal, which others may still need."""
        kept = {id(rule): rule for rule in self._rules.values()}
        parts = copy.deepcopy(terminal.alternatives, kept)
        rule = RuleNode(terminal.name, parts, terminal.comment)
        self._rules[f"{terminal.name} "] = rule  # no name has a blank
        return rule

    def _find_what_follows(self) -> None:
        """Find how rules begin and what may follow each of them, from what is known until nothing
        changes."""
        self._begins = {id(rule): _Begin() for rule in self._rules.values()}
        self._after = {id(rule): set() for rule in self._rules.values()}
        rules, is_new = self._proper(), True
        while is_new:
            before = dict(self._begins)
            for rule in reversed(rules):
                self._begins[id(rule)] = self._begin_of(rule.alternatives)
            is_new = self._begins != before
        is_new = True
        while is_new:
            size = sum(map(len, self._after.values()))
            for rule in rules:
                self._pass_on(rule.alternatives, self._after[id(rule)])
            is_new = sum(map(len, self._after.values())) > size

    def _begin_of(self, node: ASTNode) -> _Begin:
        self._step()
        match node:
            case SequenceNode(nodes):
                whole = _Begin(may_be_empty=True)
                for part in nodes:
                    if whole.may_be_empty:
                        begin = self._begin_of(part)
                        whole = _Begin(whole.chars | begin.chars, begin.may_be_empty)
                return whole
            case AlternativeNode(options):
                begins = [self._begin_of(option) for option in options]
                self._step(sum(len(begin.chars) for begin in begins))
                chars = frozenset[tuple[int, Ranges]]().union(*(begin.chars for begin in begins))
                return _Begin(chars, any(begin.may_be_empty for begin in begins))
            case RepetitionNode(part, least, _):
                begin = self._begin_of(part)
                return _Begin(begin.chars, begin.may_be_empty or least == 0)
            case RuleRefNode(target=RuleNode(rule_is_terminal=False) as target):
                return self._begins[id(target)]
            case RuleRefNode(target=RuleNode() as target):
                return self._first_of(id(target), target.alternatives)
        return self._first_of(0, node)

    def _first_of(self, origin: int, node: ASTNode) -> _Begin:
        found = self._edges_of(node)
        if found is None:
            return _Begin()
        return _Begin(frozenset(((origin, found.first),)), found.may_be_empty)

    def _pass_on(self, node: ASTNode, after: Set[tuple[int, Ranges]]) -> None:
        """Note what follows each rule in a node that is followed by `after`."""
        self._step()
        match node:
            case RuleRefNode(target=RuleNode() as target):
                self._step(len(after))
                self._after[id(target)] |= after
            case SequenceNode(nodes):
                for part in reversed(nodes):
                    self._pass_on(part, after)
                    begin = self._begin_of(part)
                    self._step(len(begin.chars))
                    after = begin.chars | after if begin.may_be_empty else begin.chars
            case RepetitionNode(part, _, most):
                again = self._begin_of(part).chars if most != 1 else frozenset()
                self._pass_on(part, after | again)
            case AlternativeNode(options):
                for option in options:
                    self._pass_on(option, after)

    def _step(self, num_steps: int = 1) -> None:
        self._steps_left -= num_steps
        if self._steps_left < 0:
            raise _TooLarge

    def _edges_of(self, node: ASTNode) -> Edges | None:
        """Return the edges of a regular node, or None if they are not known."""
        if id(node) not in self._edges:
            try:
                self._edges[id(node)] = automata.edges(self._pattern(node), self._budget)
            except (PatternFault, RecursionError):
                self._edges[id(node)] = None
        return self._edges[id(node)]

    def _pattern(self, node: ASTNode) -> Node:
        """Return the pattern of a regular node. PatternFault for another node."""
        self._step()
        match node:
            case LiteralNode(value):
                chars = _CHAR.findall(value)
                return Series(tuple(read(c if len(c) > 1 else _escaped(c)) for c in chars))
            case RegexNode(text):
                return read(text)
            case SequenceNode(nodes):
                return Series(tuple(map(self._pattern, nodes)))
            case AlternativeNode(options):
                return Choice(tuple(map(self._pattern, options)))
            case RepetitionNode(part, least, most):
                return Repeat(self._pattern(part), least, most)
            case RuleRefNode(target=RuleNode() as target):
                if id(target) not in self._patterns:
                    self._patterns[id(target)] = self._pattern(target.alternatives)
                return self._patterns[id(target)]
        raise PatternFault(0, "is not regular")


def _escaped(char: str) -> str:
    return char if char.isalnum() or char.isspace() or not char.isascii() else f"\\{char}"
