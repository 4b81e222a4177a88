"""`eyas serve`: an OpenAI-compatible API in front of one engine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

import typer

from eyas.cli import options
from eyas.cli.command_line import META, ParsedLine
from eyas.cli.disaggregation import DisaggregationOptions
from eyas.cli.errors import with_option_name
from eyas.cli.options import (
    DraftOptions,
    GrammarOptions,
    ModelOptions,
    ParallelOptions,
    ResourceOptions,
    engine_config,
    flattened,
    given_names,
    grammar_option,
    model_option,
)
from eyas.cli.peers import PeerOptions
from eyas.cli.server_flags import ServerFlags
from eyas.cli.translated import error_text, option_of_error, translated, unreadable_model
from eyas.config import DEFAULTS
from eyas.peers import Refused, translate_options

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class ServeResources(ResourceOptions):
    """Resources that only a server chooses."""

    no_prefix_cache: options.NoPrefixCache = False
    kv_events_config: options.KVEvents = None
    flights: options.Flights = "auto"


@dataclass(frozen=True, kw_only=True)
class ServeParallel(ParallelOptions):
    """Ranks on several machines."""

    nnodes: options.Nnodes = DEFAULTS.parallel.num_nodes
    node_rank: options.NodeRank = DEFAULTS.parallel.node_rank
    dist_init_addr: options.DistInitAddr = DEFAULTS.parallel.address


@flattened
def serve(
    *,
    context: typer.Context,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="<file>",
            help="YAML file with options by name, such as 'port: 8000'. The command line takes "
            "precedence.",
        ),
    ] = None,
    chosen: ModelOptions,
    chat_template: Annotated[
        str | None,
        model_option(
            metavar="<file>",
            help="Chat template to use instead of the model's: a Jinja file, or the template's text.",
        ),
    ] = None,
    default_chat_template_kwargs: Annotated[
        str | None,
        model_option(
            metavar="<json>",
            help="Variables of the chat template for requests that do not set them, such as "
            """'{"enable_thinking": false}'.""",
        ),
    ] = None,
    server: ServerFlags,
    drafting: DraftOptions,
    grammars: GrammarOptions,
    reasoning_parser: Annotated[
        str | None,
        grammar_option(
            help="Format of the model's reasoning, by the names of SGLang and vLLM (qwen3, "
            "deepseek-r1, glm45, gpt-oss, ...). Default: detected from the model's files.",
        ),
    ] = None,
    tool_call_parser: Annotated[
        str | None,
        grammar_option(
            help="Format of the model's tool calls, by the names of SGLang and vLLM (qwen25, hermes, "
            "llama3_json, deepseekv3, glm45, gpt-oss, ...). Default: detected from the model's files.",
        ),
    ] = None,
    resources: ServeResources,
    disaggregation: DisaggregationOptions,
    parallel: ServeParallel,
    peers: PeerOptions,
) -> None:
    """Serve a model over an OpenAI-compatible API."""
    from eyas.dialect import check_parsers
    from eyas.server.options import traces_endpoint
    from eyas.server.process.launch import serve as run_server

    parsed: ParsedLine = context.meta[META]
    translation = translate_options(vars(peers), chosen.model, given_names(context))
    reasons = [*parsed.reasons, *translation.reasons]
    num_ranks = max(parallel.tensor_parallel_size, parallel.data_parallel_size)
    settings: dict[str, Any] = {
        **vars(chosen),
        **vars(drafting),
        **vars(grammars),
        **vars(resources),
        **vars(parallel),
        **torchrun_settings(os.environ, num_ranks),
        **translation.settings,
    }
    of_server = vars(server).keys() & settings.keys()
    server = replace(server, **{name: settings.pop(name) for name in of_server})
    without_cache = settings.pop("no_prefix_cache")
    errors: list[ValueError] = []

    def collect_error(make: Callable[[], Result]) -> Result | None:
        try:
            return make()
        except ValueError as error:
            errors.append(error)
            return None

    engine = collect_error(
        lambda: disaggregation.applied_to(engine_config(**settings, prefix_cache=not without_cache))
    )
    template = None
    if chat_template is not None:
        template = collect_error(lambda: _template(chat_template))
    variables = collect_error(lambda: _json_object(default_chat_template_kwargs))
    collector = server.otlp_traces_endpoint
    endpoint = None
    if collector is not None:
        endpoint = collect_error(lambda: traces_endpoint(collector))
    collect_error(lambda: check_parsers(reasoning_parser, None))
    collect_error(lambda: check_parsers(None, tool_call_parser))
    line = translated(context, translation.settings, set(map(option_of_error, errors)))
    if reasons or errors:
        if reasons:
            reasons += unreadable_model(settings["model"], chosen.revision)
        reasons += [error_text(error, translation.flags) for error in errors]
        raise Refused(reasons, line if parsed.has_peer_options else "")
    assert engine is not None
    notes = [*parsed.notes, *translation.notes]
    if parsed.has_peer_options:
        notes.append(f"equivalent command: {line}")
    server_options = server.options(
        engine,
        reasoning_parser=reasoning_parser,
        tool_call_parser=tool_call_parser,
        chat_template=template,
        default_chat_template_kwargs=variables,
        notes=tuple(notes),
        otlp_traces_endpoint=endpoint,
    )
    if engine.parallel.node_rank:
        from eyas.server.process.node import run_node

        status = run_node(
            engine,
            log_level=server_options.log_level,
            log_format=server_options.log_format,
            max_restarts=server_options.max_restarts,
        )
    else:
        status = run_server(engine, server_options, with_option_name)
    raise typer.Exit(status)


def _json_object(text: str | None) -> dict[str, Any]:
    """Return the object of --default-chat-template-kwargs. ValueError if the text is none."""
    try:
        found = {} if text is None else json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(
            'default_chat_template_kwargs: takes a JSON object such as {"enable_thinking": false}'
        )
    return found


def _template(given: str) -> str:
    """Return the text of a template. ValueError if it cannot be read or compiled."""
    from eyas.text.renderers import BoundedTemplate
    from eyas.text.template import template_text

    text = template_text(given)
    try:
        BoundedTemplate(text)
    except ValueError as error:
        raise ValueError(f"chat_template: {error}") from error
    return text


def torchrun_settings(environment: Mapping[str, str], num_ranks: int) -> dict[str, int]:
    """Return the settings of a process that `torchrun` has started, which is one rank: each counts as a
    machine with one rank. Empty for a process that it has not started, and for one rank.

    Raises ValueError if it has started another number of processes than --tp or --dp.
    """
    names = ("TORCHELASTIC_RUN_ID", "WORLD_SIZE", "RANK", "LOCAL_RANK")
    if num_ranks == 1 or any(name not in environment for name in names):
        return {}
    try:
        started, rank, local_rank = (int(environment[name]) for name in names[1:])
    except ValueError as error:
        raise ValueError(
            f"parallel.tp: WORLD_SIZE, RANK and LOCAL_RANK must be torchrun's numbers ({error}); start "
            "it by torchrun, or remove them from the environment"
        ) from None
    if started != num_ranks:
        raise ValueError(
            f"parallel.tp: torchrun has started {started} processes for {num_ranks} ranks; pass --tp "
            f"{started} (or --dp {started}), or start as many"
        )
    return {
        "nnodes": started,
        "node_rank": rank,
        "first_device": local_rank,
    }
