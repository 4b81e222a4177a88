"""The model of a chat in this process.

Promises: Ctrl-C ends an answer between two steps of the engine, never inside one; a second Ctrl-C has
its usual effect. When an answer has ended, for any reason, the engine has no work left. Does not
know: terminals.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from typing import Any

from eyas.cli.chat.conversation import Constraint, Question, StepTree, TreeNode, Turn
from eyas.core import Delta, Request, TreeRecord
from eyas.dialect import Event, Wanted, tool_specs
from eyas.grammar import OutputSpec
from eyas.llm import LLM
from eyas.signals import first_signal
from eyas.text import Tokenizer
from eyas.typed import typed


class LocalModel:
    """A loaded model. template_options: passed to the chat template."""

    def __init__(self, llm: LLM, template_options: Mapping[str, Any]) -> None:
        self.llm = llm
        self._template_options = template_options
        self._num_answers = 0

    @property
    def description(self) -> str:
        """A description of the model in one line."""
        info = self.llm.info
        return (
            f"{info.model}, {info.num_parameters / 1e6:.0f} M parameters, {info.dtype} on "
            f"{info.device}, drafter {info.drafter}, exact: {'yes' if info.exact else 'no'}"
        )

    def check(self, constraint: Constraint) -> None:
        """Raise RequestError or ValueError if a constraint cannot be enforced."""
        self.llm.engine.compile(OutputSpec(root=typed(constraint).node)).result()

    def answer(self, question: Question, turn: Turn) -> Iterator[Event]:
        """See `ChatModel.answer`."""
        llm = self.llm
        constraint = question.constraint
        wanted = Wanted(
            answer=None if constraint is None else typed(constraint).node,
            tools=tool_specs(question.tools),
            choice="auto" if question.tools else "none",
        )
        prompt = llm.encode_chat(
            question.messages, tools=question.tools or None, **self._template_options
        )
        self._num_answers += 1
        request = Request(
            id=f"chat-{self._num_answers}",
            prompt_token_ids=prompt,
            params=llm.default_params(**question.changes),
            output=llm.dialect.output(wanted, prompt),
            with_marks=True,
            with_draft_trees=True,
        )
        engine, signals = llm.shared_engine, []
        engine.open(request)
        segmenter = llm.dialect.segmenter(wanted, prompt)
        try:
            with first_signal((signal.SIGINT,), signals.append):
                for delta in engine.deltas(request):
                    _count(turn, delta)
                    turn.trees += [_shown(tree, llm.tokenizer) for tree in delta.draft_trees]
                    yield from segmenter.push(delta.text, delta.marks)
                    if signals:
                        engine.abort(request)
            yield from segmenter.finish()
        finally:
            engine.end(request)

    def close(self) -> None:
        """Shut the engine down."""
        self.llm.close()


def _count(turn: Turn, delta: Delta) -> None:
    turn.num_tokens = (turn.num_tokens or 0) + len(delta.token_ids)
    if delta.usage is not None:
        turn.num_steps = delta.usage.num_steps
        turn.num_accepted = delta.usage.num_accepted_tokens
    if delta.finish_reason not in (None, "abort"):
        turn.finish_reason, turn.error = delta.finish_reason, delta.error


def _shown(tree: TreeRecord, tokenizer: Tokenizer) -> StepTree:
    """Return a recorded tree with the texts of its tokens."""
    nodes = [
        TreeNode(
            tokenizer.token_text(node.token_id), node.parent, node.source, node.score, node.fate
        )
        for node in tree.nodes
    ]
    return StepTree(nodes, "".join(map(tokenizer.token_text, tree.token_ids)))
