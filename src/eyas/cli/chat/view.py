"""The display of a chat: reasoning is dimmed, calls and errors are coloured, and a line of numbers
follows.

Promises: control characters of a model's text never reach the terminal. Unless both standard input
and output are a terminal, answers go to standard output unchanged, and everything else goes to
standard error. Does not know: engines, HTTP.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

if TYPE_CHECKING:
    from eyas.cli.chat.conversation import StepTree, TreeNode, Turn
    from eyas.dialect import Event

CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in ("\n", "\t")}
"""Characters that could move the cursor or change the terminal; they are left out."""
STYLES = {
    "root": "bold",
    "accepted": "green",
    "chosen": "cyan",
    "refused": "red strike",
    "unused": "dim",
}
REMARKS = {
    "accepted": "  accepted",
    "chosen": "  chosen by the model",
    "refused": "  refused by the grammar",
}


class ChatView:
    """The view of one chat.

    is_interactive: whether standard input and output are a terminal.
    """

    def __init__(self) -> None:
        self.is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._out = _console(is_error=False)
        self._notes = self._out if self.is_interactive else _console(is_error=True)
        self._kind = ""
        self._open: Console | None = None
        """Where a line is being written."""

    def greet(self, description: str) -> None:
        """Show which model answers."""
        if self.is_interactive:
            self.note(f"{description}. /help lists the commands, Ctrl-D ends the chat.")

    def show_event(self, event: Event) -> None:
        """Show a piece of an answer."""
        if event.kind not in (self._kind, "arguments"):
            self._begin_line()
            self._kind = event.kind
        match event.kind:
            case "reasoning":
                self._write(event.text, "dim italic", to=self._notes)
            case "tool_call":
                self._begin_line()
                self._write(f"call {event.name} ", "bold cyan")
                self._write(event.text, "cyan")
            case "arguments":
                self._write(event.text, "cyan")
            case "content":
                self._write(event.text, "")

    def end_answer(self, turn: Turn) -> None:
        """Show the numbers of an answer, and why it ended early."""
        self.end()
        if turn.error:
            self.show_error(turn.error)
        parts = []
        if turn.num_tokens is not None:
            parts.append(f"{turn.num_tokens} tokens")
            parts.append(f"{turn.num_tokens / max(turn.seconds, 1e-9):.0f} tokens/s")
        if turn.num_steps and turn.num_accepted is not None:
            accepted = turn.num_accepted / turn.num_steps
            parts.append(f"{accepted:.2f} accepted tokens a step in {turn.num_steps} steps")
        if turn.first_after is not None:
            parts.append(f"first token after {turn.first_after:.2f} s")
        if turn.finish_reason is None:
            parts.append("stopped")
        elif turn.finish_reason == "length":
            parts.append("cut at the length limit")
        self.note(f"[{', '.join(parts)}]")

    def show_tree(self, tree: StepTree, number: int, of: int) -> None:
        """Show the draft tree of step `number` of an answer with `of` steps."""
        self.note(f"Step {number} of {of} added {tree.added!r}:")
        shown: list[Tree] = []
        for node in tree.nodes:
            label = _label(node)
            shown.append(Tree(label) if not shown else shown[node.parent].add(label))
        self._notes.print(shown[0])

    def show_error(self, message: str) -> None:
        """Show an error of the user, or of an answer."""
        self._notes.print(message.translate(CONTROLS), style="red")

    def note(self, text: str) -> None:
        """Show a line about the chat itself."""
        self._notes.print(text.translate(CONTROLS), style="dim")

    def end(self) -> None:
        """End the line that is being written, if there is one."""
        self._begin_line()
        self._kind = ""

    def end_line(self) -> None:
        """End the line that the user was writing."""
        self._notes.print()

    def _begin_line(self) -> None:
        if self._open is not None:
            self._open.print()
            self._open = None

    def _write(self, text: str, style: str, *, to: Console | None = None) -> None:
        printed = text.translate(CONTROLS)
        if self._open is None:
            printed = printed.lstrip("\n")
        if printed:
            self._open = to or self._out
            self._open.print(printed, style=style, end="")
            self._open.file.flush()


def _label(node: TreeNode) -> Text:
    """Return the token of a node with its source, score and fate."""
    label = Text(repr(node.text), style=STYLES[node.fate])
    score = "" if node.score is None else f" {round(node.score, 2) + 0.0:.2f}"
    remark = REMARKS.get(node.fate, "")
    label.append(f"  {node.source}{score}".rstrip() + remark, style="not bold not strike")
    return label


def _console(*, is_error: bool) -> Console:
    return Console(stderr=is_error, highlight=False, markup=False, emoji=False, soft_wrap=True)
