"""The options that commands share, once: names, help texts, and how they become an EngineConfig.

Promises: defaults come from `eyas.config`, so commands, server and Python cannot differ. Options that
go together are one dataclass; `flattened` lets a command take such a group as one parameter.
Does not know: what a command does with its engine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from eyas.settings import CACHE, DEVICE, DRAFT, GRAMMAR, MODEL, SCHEDULER
from eyas.settings import engine_config as engine_config  # noqa: PLC0414, for commands

MODEL_PANEL, DRAFT_PANEL, RESOURCE_PANEL = "Model", "Drafting", "Resources"
GRAMMAR_PANEL = "Grammars, reasoning, tools"


class GrammarChoice(StrEnum):
    """A grammar library."""

    llguidance = "llguidance"
    xgrammar = "xgrammar"


class DtypeChoice(StrEnum):
    """Number format of weights and cache."""

    auto = "auto"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"
    half = "half"
    float = "float"


Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="'builtin', a directory, or a Hugging Face hub name.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(
        "--revision", help="Branch, tag or commit on the hub.", rich_help_panel=MODEL_PANEL
    ),
]
Offline = Annotated[
    bool,
    typer.Option(
        "--offline", help="Use downloaded files; never the network.", rich_help_panel=MODEL_PANEL
    ),
]
Dtype = Annotated[
    DtypeChoice,
    typer.Option(
        "--dtype",
        help="Number format of the weights.",
        metavar="<auto|bfloat16|float16|float32>",
        rich_help_panel=MODEL_PANEL,
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        "--max-model-len",
        help="Longest prompt and answer together, in tokens; the model's own by default.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Drafter = Annotated[
    str,
    typer.Option(
        "--drafter",
        "-d",
        help="Who proposes tokens: root (nobody: plain decoding), ngram (prompt lookup), model (a "
        "smaller model), head (EAGLE or MTP), forced (what a grammar leaves no choice about), several "
        "joined by + such as ngram+head, or auto: forced and the model's own head or what "
        "--draft-model is. The tokens are the same with any.",
        rich_help_panel=DRAFT_PANEL,
    ),
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        "--draft-model",
        help="A draft model or draft head: 'builtin', a directory, or a hub name.",
        rich_help_panel=DRAFT_PANEL,
    ),
]
DraftSteps = Annotated[
    str,
    typer.Option(
        "--draft-steps",
        metavar="<int>|auto",
        help="Levels of a draft tree, counted as SGLang does: that many passes of the drafter, of "
        "which the first also catches up with what was accepted. auto is 5, or up to 8 where "
        "--draft-nodes is auto.",
        rich_help_panel=DRAFT_PANEL,
    ),
]
DraftTopk = Annotated[
    int,
    typer.Option(
        "--draft-topk",
        help="Children that a node proposes; 1 drafts a chain.",
        rich_help_panel=DRAFT_PANEL,
    ),
]
DraftNodes = Annotated[
    str,
    typer.Option(
        "--draft-nodes",
        metavar="<int>|auto",
        help="Nodes of a tree that the model checks in one step, the known last token included; "
        "auto chooses by cost for every batch, not to draft included.",
        rich_help_panel=DRAFT_PANEL,
    ),
]
DraftTokenMap = Annotated[
    str | None,
    typer.Option(
        "--draft-token-map",
        help="File with the token ids that an EAGLE-2 head may propose (FR-Spec).",
        rich_help_panel=DRAFT_PANEL,
    ),
]
Device = Annotated[
    str,
    typer.Option("--device", help="auto, cpu, cuda or cuda:N.", rich_help_panel=RESOURCE_PANEL),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        help="CPU threads; by default one core stays free.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact/--no-exact",
        help="On a GPU: keep a row's bits whatever is drafted, and whoever its neighbours are, or "
        "take the fastest kernels.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]
NumSlots = Annotated[
    int | None,
    typer.Option(
        "--num-slots",
        help="Tokens whose keys and values fit in the cache; from memory by default.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]
MemoryFraction = Annotated[
    float,
    typer.Option(
        "--memory-fraction",
        help="Share of the device's memory for weights and cache.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]
MaxNumSeqs = Annotated[
    int,
    typer.Option("--max-num-seqs", help="Sequences of one step.", rich_help_panel=RESOURCE_PANEL),
]
MaxBatchTokens = Annotated[
    str,
    typer.Option(
        "--max-batch-tokens",
        help="Rows of one step: prompt chunks and draft trees together; auto is 512 on a CPU, 2048 on "
        "a GPU.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]
MaxGraphBatch = Annotated[
    int | None,
    typer.Option(
        "--max-graph-batch",
        help="On a GPU: sequences of the largest step that is captured as CUDA graphs; any by default, "
        "0 captures none.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]
NoPrefixCache = Annotated[
    bool,
    typer.Option(
        "--no-prefix-cache",
        help="Do not keep prompts for later requests.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]
Flights = Annotated[
    str,
    typer.Option(
        "--flights",
        help="Steps under way when the next is launched: auto, 0 or 1.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model, and how it is read."""

    model: Model = MODEL.path
    revision: Revision = MODEL.revision
    offline: Offline = MODEL.offline
    dtype: Dtype = DtypeChoice.auto
    max_model_len: MaxModelLen = MODEL.max_model_len


@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """Who proposes tokens, and how many."""

    drafter: Drafter = DRAFT.drafter
    draft_model: DraftModel = DRAFT.model
    draft_steps: DraftSteps = str(DRAFT.steps)
    draft_topk: DraftTopk = DRAFT.topk
    draft_nodes: DraftNodes = str(DRAFT.nodes)
    draft_token_map: DraftTokenMap = DRAFT.token_map


@dataclass(frozen=True, kw_only=True)
class GrammarOptions:
    """Who enforces grammars."""

    grammar_backend: Annotated[
        GrammarChoice,
        typer.Option(
            "--grammar-backend",
            help="Library that enforces schemas, patterns and grammars; xgrammar needs the extra of "
            "that name.",
            rich_help_panel=GRAMMAR_PANEL,
        ),
    ] = GrammarChoice.llguidance
    grammar_timeout: Annotated[
        float,
        typer.Option(
            "--grammar-timeout",
            help="Seconds that compiling one may take.",
            rich_help_panel=GRAMMAR_PANEL,
        ),
    ] = GRAMMAR.compile_seconds
    grammar_memory: Annotated[
        int,
        typer.Option(
            "--grammar-memory",
            help="MiB that compiled grammars may hold, with all that outputs have made of them since; "
            "those not in use go before it is more.",
            rich_help_panel=GRAMMAR_PANEL,
        ),
    ] = GRAMMAR.cache_bytes // 2**20


@dataclass(frozen=True, kw_only=True)
class ResourceOptions:
    """What the engine may use."""

    device: Device = DEVICE.device
    threads: Threads = DEVICE.num_threads
    exact: Exact = DEVICE.exact
    num_slots: NumSlots = CACHE.num_slots
    memory_fraction: MemoryFraction = CACHE.memory_fraction
    max_num_seqs: MaxNumSeqs = SCHEDULER.max_num_seqs
    max_batch_tokens: MaxBatchTokens = str(SCHEDULER.max_batch_tokens)
    max_graph_batch: MaxGraphBatch = SCHEDULER.max_graph_batch


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """The command with every parameter that is a dataclass of options replaced by its fields."""
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if not is_dataclass(hint):
            keyword = parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hint)
            parameters.append(keyword)
            continue
        assert isinstance(hint, type)
        groups[parameter.name] = hint
        inner = get_type_hints(hint, include_extras=True)
        for field in fields(hint):
            parameters.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=field.default,
                    annotation=inner[field.name],
                )
            )

    @wraps(command)
    def run(**given: Any) -> None:
        built = {
            name: group(**{f.name: given.pop(f.name) for f in fields(group) if f.name in given})
            for name, group in groups.items()
        }
        command(**given, **built)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
