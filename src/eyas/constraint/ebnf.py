"""EBNF (GBNF) as Lark.

Promises: every rule keeps its meaning under a name of its own, whatever the others are called; what is
wrong is said in the user's names. A rule that is a regular text becomes a terminal, unless a lexer
would read it wrongly.
Does not know: what Lark's grammars are compiled to.
"""

from __future__ import annotations

import re

from llguidance import gbnf_to_lark
from llguidance.gbnf_to_lark import (
    AlternativeNode,
    ASTNode,
    Position,
    RepetitionNode,
    RuleNode,
    RuleRefNode,
    SequenceNode,
)

from eyas.constraint.ebnf_lexer import below, split_terminals
from eyas.core import GrammarError

_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)")


def lark_of(text: str) -> str:
    """Return the grammar's rules, with its `root` as `start`. GrammarError says what is wrong."""
    try:
        rules = _Parser().parse(_ESCAPE.sub(_character, text))
        return _written(rules)
    except gbnf_to_lark.GbnfToLarkError as error:
        raise GrammarError(str(error), "invalid") from None
    except RecursionError:
        raise GrammarError(
            "the grammar is nested too deeply; split it into rules", "too_complex"
        ) from None
    except IndexError:
        raise GrammarError("the grammar ends in the middle of a text", "invalid") from None


class _Parser(gbnf_to_lark.GrammarParser):
    """Reads alternatives of a rule on lines of their own, and refuses a rule that is defined twice."""

    def parse(self, text: str) -> dict[str, RuleNode]:
        rules: dict[str, RuleNode] = {}
        pos = self._skip_space(Position(text, 0), allow_newlines=True)
        while pos.current():
            begin = pos
            rule, pos = self._parse_rule(pos)
            if rules.setdefault(rule.name, rule) is not rule:
                message = f"Rule '{rule.name}' is there twice; write its alternatives into one rule"
                raise gbnf_to_lark.GbnfToLarkError(begin, message)
            pos = self._skip_space(pos, allow_newlines=True)
        return rules

    def _parse_alternatives(
        self, pos: Position, is_nested: bool
    ) -> tuple[AlternativeNode, Position]:
        options: list[ASTNode] = []
        while True:
            option, pos = self._parse_sequence(pos, is_nested)
            options.append(option)
            ahead = self._skip_space(pos, allow_newlines=True)
            if ahead.current() != "|":
                return AlternativeNode(options), ahead if is_nested else pos
            pos = self._skip_space(ahead.advance(), allow_newlines=True)


def _written(rules: dict[str, RuleNode]) -> str:
    """Return the rules under names of their own."""
    references: dict[str, list[RuleRefNode]] = {}
    for name, rule in rules.items():
        rule.alternatives = rule.alternatives.simplify()
        for node in below(rule):
            if isinstance(node, RepetitionNode):
                if node.max_times == 0:  # which Lark refuses
                    node.node, node.max_times = SequenceNode([]), 1
                if isinstance(node.node, RepetitionNode):
                    node.node = SequenceNode([node.node])  # written in parentheses
        references[name] = [node for node in below(rule) if isinstance(node, RuleRefNode)]
        for node in references[name]:
            if node.name not in rules:
                raise GrammarError(f"Rule '{node.name}' not found", "invalid")
            node.target = rules[node.name]
    if "root" not in rules:
        raise GrammarError("No 'root' rule found", "invalid")
    _find_terminals(rules, references)
    split_terminals(rules)
    for i, (name, rule) in enumerate(rules.items()):
        readable = re.sub(r"[^a-z0-9]", "_", name.lower())
        rule.name = f"r{i}_{readable}"
        if rule.rule_is_terminal:
            rule.name = rule.name.upper()
    lines = [f"{rule.name}: {rule.alternatives.top_str()}" for rule in rules.values()]
    return "\n".join([f"start: {rules['root'].name}", *lines])


def _find_terminals(rules: dict[str, RuleNode], references: dict[str, list[RuleRefNode]]) -> None:
    """Return the rules that refer to terminals alone, which never lead back to themselves."""
    needed = {name: {node.name for node in nodes} for name, nodes in references.items()}
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, others in needed.items():
        for other in others:
            users[other].append(name)
    ready = [name for name, others in needed.items() if not others]
    while ready:
        name = ready.pop()
        rules[name].rule_is_terminal = True
        for user in users[name]:
            needed[user].discard(name)
            if not needed[user]:
                ready.append(user)


def _character(found: re.Match[str]) -> str:
    digits = found[1] or found[2]
    if digits is None:
        return found[0]
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise GrammarError(f"{found[0]} is no character", "invalid")
    return f"\\x{code:02x}" if code < 0x80 else chr(code)
