"""The commands of a chat: messages that begin with a slash.

Promises: a command that cannot be run is a ValueError or RequestError with the remedy, and changes
nothing.
Does not know: how answers are generated or shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from eyas.cli.chat.conversation import Constraint, read_json, read_tools
from eyas.typed import JsonSchema, Regex

if TYPE_CHECKING:
    from eyas.cli.chat.conversation import Conversation
    from eyas.cli.chat.view import ChatView

LAST_STEPS = 3
"""Steps whose draft trees are shown unless a number is given."""
Handler = Callable[["Conversation", "ChatView", str], bool]


class Command(NamedTuple):
    """A command. run: returns whether the model should answer. usage: its argument; brackets mean
    that it is optional."""

    run: Handler
    usage: str
    purpose: str


def run_command(conversation: Conversation, view: ChatView, message: str) -> bool:
    """Run a command. Returns whether the model should answer now."""
    name, *rest = message.split(maxsplit=1)
    command = COMMANDS.get(name)
    if command is None:
        raise ValueError(f"{name} is not a command; /help lists them")
    argument = rest[0] if rest else ""
    if bool(argument) != bool(command.usage) and not command.usage.startswith("["):
        raise ValueError(f"{name}: write {name} {command.usage}".rstrip())
    return command.run(conversation, view, argument)


def _schema(conversation: Conversation, view: ChatView, argument: str) -> bool:
    if argument == "off":
        return _constrain(conversation, view, None)
    schema = read_json(argument, "/schema")
    if not isinstance(schema, dict):
        raise ValueError("/schema: must be a JSON schema, which is an object")
    return _constrain(conversation, view, JsonSchema(schema))


def _regex(conversation: Conversation, view: ChatView, argument: str) -> bool:
    return _constrain(conversation, view, None if argument == "off" else Regex(argument))


def _constrain(conversation: Conversation, view: ChatView, constraint: Constraint | None) -> bool:
    conversation.constrain(constraint)
    match constraint:
        case None:
            view.note("The next answers are free.")
        case JsonSchema():
            view.note("The next answers are JSON of this schema; /schema off ends that.")
        case Regex():
            view.note("The next answers match this pattern; /regex off ends that.")
    return False


def _tools(conversation: Conversation, view: ChatView, argument: str) -> bool:
    conversation.tools = [] if argument == "off" else read_tools(argument, "/tools")
    view.note("No tools." if argument == "off" else "The model may call these functions.")
    return False


def _result(conversation: Conversation, view: ChatView, argument: str) -> bool:
    conversation.give_result(argument)
    return True


def _tree(conversation: Conversation, view: ChatView, argument: str) -> bool:
    trees = [] if conversation.turn is None else conversation.turn.trees
    if not trees:
        raise ValueError("/tree: no answer with draft trees yet")
    if argument and not (argument.isdecimal() and int(argument)):
        raise ValueError(f"/tree: {argument!r} is not a number of steps; write /tree or /tree 5")
    first = max(0, len(trees) - int(argument or LAST_STEPS))
    for number, tree in enumerate(trees[first:], first + 1):
        view.show_tree(tree, number, len(trees))
    return False


def _system(conversation: Conversation, view: ChatView, argument: str) -> bool:
    conversation.system = None if argument == "off" else argument
    view.note("No system message." if argument == "off" else "The system message is set.")
    return False


def _temperature(conversation: Conversation, view: ChatView, argument: str) -> bool:
    if argument == "off":
        conversation.set_temperature(None)
        view.note("The temperature is that of the start.")
        return False
    try:
        temperature = float(argument)
    except ValueError:
        raise ValueError(
            f"/temperature: {argument!r} is not a number; write a number, or off"
        ) from None
    conversation.set_temperature(temperature)
    view.note(f"The temperature of the next answers is {temperature:g}.")
    return False


def _reset(conversation: Conversation, view: ChatView, argument: str) -> bool:
    conversation.reset()
    view.note("A new conversation.")
    return False


def _help(conversation: Conversation, view: ChatView, argument: str) -> bool:
    for name, command in COMMANDS.items():
        view.note(f"{f'{name} {command.usage}':<24} {command.purpose}")
    view.note('A backslash at the end of a line continues it; """ begins and ends several lines.')
    view.note("Ctrl-C stops an answer, Ctrl-D ends the chat.")
    return False


COMMANDS = {
    "/schema": Command(_schema, "FILE|JSON|off", "constrain the next answers to a JSON schema"),
    "/regex": Command(_regex, "PATTERN|off", "constrain the next answers to a regular expression"),
    "/tools": Command(_tools, "FILE|JSON|off", "offer functions that the model may call"),
    "/result": Command(_result, "TEXT", "give the result of a call, and let the model go on"),
    "/tree": Command(_tree, "[NUMBER]", "show the draft trees of the last steps"),
    "/system": Command(_system, "TEXT|off", "set the system message"),
    "/temperature": Command(_temperature, "NUMBER|off", "set the sampling temperature"),
    "/reset": Command(_reset, "", "begin a new conversation"),
    "/help": Command(_help, "", "list the commands"),
    "/quit": Command(lambda *_: False, "", "end the chat"),
}
