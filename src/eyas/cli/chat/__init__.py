"""`eyas chat`: chat with a model in the terminal.

Promises: Ctrl-C stops an answer and leaves the engine as it was; Ctrl-D ends the program. An invalid
command is reported and has no effect. Does not know: how answers are generated (`local`, `remote`),
how messages are read (`reading`), or how they are shown (`view`).
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyas.cli import options
from eyas.cli.demo import DemoDrafting
from eyas.cli.options import (
    ModelOptions,
    ResourceOptions,
    engine_config,
    flattened,
    given_names,
    sampling_option,
)
from eyas.cli.server_flags import read_keys

if TYPE_CHECKING:
    from eyas.cli.chat.conversation import Conversation
    from eyas.cli.chat.view import ChatView


@dataclass(frozen=True, kw_only=True)
class ChatResources(ResourceOptions):
    """Options of device and memory, for one conversation at a time."""

    max_num_seqs: options.MaxNumSeqs = "1"


@flattened
def chat(
    *,
    context: typer.Context,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    tools: Annotated[
        str | None,
        typer.Option(
            metavar="<json>|<file>",
            help="Functions that the model may call, in OpenAI's format: JSON, or a file with it.",
        ),
    ] = None,
    think: options.Think = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="<url>",
            help="Chat with a running server with OpenAI's API, such as http://localhost:8000/v1, "
            "instead of a model in this process. --model is then the model's name there.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="File with the API key for --url, in its first line."),
    ] = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    seed: Annotated[
        int | None,
        sampling_option(help="Random seed; with it the same conversation has the same answers."),
    ] = None,
    chosen: ModelOptions,
    drafting: DemoDrafting,
    resources: ChatResources,
) -> None:
    """Chat with a model in the terminal; /help lists the commands of the chat."""
    from eyas.cli.chat.conversation import Conversation, read_tools
    from eyas.cli.chat.reading import messages
    from eyas.cli.chat.view import ChatView
    from eyas.core import SamplingParams

    values: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    changes = {name: value for name, value in values.items() if value is not None}
    SamplingParams(**changes)  # refuses a value out of range before a model is loaded
    offered = [] if tools is None else read_tools(tools, "--tools")
    template_options = {} if think is None else {"enable_thinking": think}
    view = ChatView()
    if url is None:
        from eyas.cli.chat.local import LocalModel
        from eyas.cli.loading import open_model

        if api_key_file is not None:
            raise ValueError("--api-key-file: is for --url, which is not given")
        config = engine_config(**vars(chosen), **vars(drafting), **vars(resources))
        model = LocalModel(open_model(config, quiet=False), template_options)
    else:
        from eyas.cli.chat.remote import RemoteModel

        given = given_names(context)
        _refuse_with_url(given)
        key = next(iter(read_keys(api_key_file)), None)
        name = chosen.model if "model" in given else None
        model = RemoteModel(url, name, key, template_options)
    with closing(model):
        conversation = Conversation(model, changes, system=system, tools=offered)
        view.greet(model.description)
        for message in messages(view):
            if message == "/quit":
                break
            take_turn(conversation, view, message)


def take_turn(conversation: Conversation, view: ChatView, message: str) -> None:
    """Run a command of the chat, or answer a message."""
    from eyas.cli.chat.commands import run_command
    from eyas.core import RequestError

    try:
        if not message.startswith("/"):
            conversation.say(message)
        elif not run_command(conversation, view, message):
            return
        with closing(conversation.answer()) as events:
            for event in events:
                view.show_event(event)
    except KeyboardInterrupt:
        pass  # what there is of the answer stays
    except (RequestError, ValueError) as error:
        view.end()
        view.show_error(str(error))
        return
    if conversation.turn is not None:
        view.end_answer(conversation.turn)


WITH_URL = {
    *("system", "tools", "think", "url", "api_key_file", "max_tokens", "temperature", "seed"),
    "model",
}
"""The options that a chat with a server takes."""


def _refuse_with_url(given: set[str]) -> None:
    """Raise ValueError that names an option which has no effect on a server."""
    for name in sorted(given - WITH_URL):
        option = "--" + name.replace("_", "-")
        raise ValueError(f"{option}: is decided by the server at --url; leave the option out")
