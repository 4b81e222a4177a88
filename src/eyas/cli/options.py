"""The options that several commands share: names, help texts and defaults.

Promises: defaults come from `eyas.config`, so that commands, server and Python have the same. Related
options are one dataclass; `flattened` lets a command take such a group as one parameter.
Does not know: what a command does with its engine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from typing import Annotated, Any, Literal, get_type_hints

import typer

from eyas.config import DEFAULTS, GrammarBackend
from eyas.settings import engine_config as engine_config  # noqa: PLC0414, for commands
from eyas.white_space import MAX_INDENTATION

# An option in a panel of --help.
model_option = partial(typer.Option, rich_help_panel="Model")
draft_option = partial(typer.Option, rich_help_panel="Drafting")
resource_option = partial(typer.Option, rich_help_panel="Resources")
grammar_option = partial(typer.Option, rich_help_panel="Grammars, reasoning, tools")
parallel_option = partial(typer.Option, rich_help_panel="Several processes")
sampling_option = partial(typer.Option, rich_help_panel="Sampling")


Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]

Model = Annotated[
    str,
    model_option(
        "--model", "-m", help="Model to load: 'builtin', a directory, or a Hugging Face hub name."
    ),
]
Revision = Annotated[
    str | None,
    model_option(
        help="Branch, tag or commit of the model on the hub. Default: the main branch.",
    ),
]
Offline = Annotated[
    bool,
    model_option(
        "--offline", help="Use only files that were downloaded before; never access the network."
    ),
]
Dtype = Annotated[
    Literal["auto", "bfloat16", "float16", "float32", "half", "float"],
    model_option(
        help="Number format of weights and cache. auto is bfloat16 where the device supports it in "
        "hardware, else float32.",
        metavar="<auto|bfloat16|float16|float32>",
    ),
]
MaxModelLen = Annotated[
    int | None,
    model_option(
        help="Context length: maximum number of tokens of prompt and answer together. Default: the "
        "model's own.",
    ),
]
Drafter = Annotated[
    str,
    draft_option(
        "--drafter",
        "-d",
        help="Source of draft tokens: root (no drafts, plain decoding), ngram (prompt lookup), "
        "model (a smaller model), head (EAGLE or MTP), forced (text that the grammar determines), "
        "several joined by + such as ngram+head, or auto (forced, and --draft-model or the model's "
        "own head). The output is the same with every drafter.",
    ),
]
DraftModel = Annotated[
    str | None,
    draft_option(help="Draft model or draft head: 'builtin', a directory, or a hub name."),
]
DraftSteps = Annotated[
    str,
    draft_option(
        metavar="<int>|auto",
        help="Depth of a draft tree: number of forward passes of the drafter in a step, as in SGLang. "
        "auto is 5, or up to 8 with --draft-nodes auto.",
    ),
]
DraftTopk = Annotated[
    int,
    draft_option(
        help="Number of candidates that each node of a draft tree proposes; 1 drafts a chain.",
    ),
]
DraftNodes = Annotated[
    str,
    draft_option(
        metavar="<int>|auto",
        help="Number of tree nodes that the model verifies in a step, including the root (the last "
        "known token). auto chooses it for every batch by measured cost; it may be 1, which drafts "
        "nothing.",
    ),
]
DraftTokenMap = Annotated[
    str | None,
    draft_option(
        help="File with the token ids that an EAGLE-2 head may propose (FR-Spec); .pt or .json.",
    ),
]
Device = Annotated[
    str,
    resource_option(help="Device to run on: auto, cpu, cuda or cuda:N."),
]
Threads = Annotated[
    int | None,
    resource_option(help="Number of CPU threads. Default: the number of physical cores minus one."),
]
Exact = Annotated[
    bool,
    resource_option(
        "--exact/--no-exact",
        help="On a GPU: use only kernels whose results do not depend on drafts or on the other "
        "sequences of the batch, bit for bit; or use the fastest kernels.",
    ),
]
KVCacheDtype = Annotated[
    str,
    resource_option(
        help="Number format of cached keys and values. auto is that of --dtype; fp8_e4m3 (or fp8) "
        "holds twice as many tokens as 16 bits, with the scales of the checkpoint, or 1.",
        metavar="<format>",
    ),
]
NumSlots = Annotated[
    int | None,
    resource_option(
        help="Capacity of the key/value cache in tokens; with --dp, of each rank. Default: what "
        "--memory-fraction allows.",
    ),
]
MemoryFraction = Annotated[
    float,
    resource_option(
        help="Fraction of the device's memory to use for weights and cache, 0.05 to 0.98.",
    ),
]
MaxNumSeqs = Annotated[
    str,
    resource_option(
        help="Maximum number of sequences in a step. auto is 64 on a CPU, and on a GPU up to 512, as "
        "memory allows.",
    ),
]
MaxBatchTokens = Annotated[
    str,
    resource_option(
        help="Maximum number of tokens in a step, prompt chunks and draft trees together. auto is 512 "
        "on a CPU, 2048 on a GPU.",
    ),
]
MaxStepMs = Annotated[
    str,
    resource_option(
        help="Milliseconds that a step may take while sequences decode: prompt chunks are made smaller "
        "accordingly. auto is 50 on a GPU, no limit on a CPU.",
    ),
]
MaxGraphBatch = Annotated[
    int | None,
    resource_option(
        help="Maximum number of sequences of a step that runs from CUDA graphs (on a CPU from "
        "recordings); 0 disables them. Default: no limit.",
    ),
]
NoPrefixCache = Annotated[
    bool,
    resource_option(
        "--no-prefix-cache",
        help="Do not reuse the cached keys and values of earlier requests with the same prefix.",
    ),
]
KVEvents = Annotated[
    str | None,
    resource_option(
        metavar="<json>",
        help="Publish which prefixes are cached, for routers, as vLLM does: a JSON object such as "
        '\'{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}\'.',
    ),
]
Flights = Annotated[
    str,
    resource_option(
        help="Number of steps that may still run when the next one is launched: auto, 0 or 1.",
    ),
]

TensorParallelSize = Annotated[
    int,
    parallel_option(
        "--tp",
        "--tp-size",
        "--tensor-parallel-size",
        help="Number of processes (ranks) that run the model together, each with a part of every layer "
        "and, on GPUs, a GPU of its own: 1, 2, 4 or 8.",
    ),
]
ExpertParallelSize = Annotated[
    int,
    parallel_option(
        "--ep",
        "--ep-size",
        "--expert-parallel-size",
        help="1: each rank holds a part of every expert. The number of ranks, or 0: each holds some "
        "experts whole.",
    ),
]
DataParallelSize = Annotated[
    int,
    parallel_option(
        "--dp",
        "--dp-size",
        "--data-parallel-size",
        help="With --enable-dp-attention: number of ranks that divide sequences and experts of a model "
        "with latent attention: 1, 2, 4 or 8. Each holds the keys and values of its own sequences.",
    ),
]
EnableDpAttention = Annotated[
    bool,
    parallel_option(
        "--enable-dp-attention",
        help="Divide sequences among the ranks of --dp, not the heads of attention. --ep 0 "
        "(--enable-expert-parallel) with --dp says the same.",
    ),
]
ExactAcrossTp = Annotated[
    bool,
    parallel_option(
        "--exact-across-tp",
        help="Form sums in one order for every number of ranks, so that 1, 2, 4 and 8 ranks give the "
        "same tokens and log-probabilities, bit for bit. On a CPU several ranks always do.",
    ),
]
DistTimeout = Annotated[
    float,
    parallel_option(
        help="Time that a rank may take for its part of an exchange, in seconds, before the engine "
        "counts as failed.",
    ),
]
Nnodes = Annotated[
    int,
    parallel_option(help="Number of machines that the ranks are divided among."),
]
NodeRank = Annotated[
    int,
    parallel_option(help="Number of this machine, from 0; the one with number 0 serves."),
]
DistInitAddr = Annotated[
    str | None,
    parallel_option(
        metavar="<host:port>",
        help="Address of machine 0 at which the ranks meet; needed with several machines.",
    ),
]


Think = Annotated[
    bool | None,
    typer.Option(
        "--think/--no-think",
        help="Turn reasoning on or off. Default: as the chat template does.",
    ),
]
MaxTokens = Annotated[
    int | None,
    sampling_option(
        help="Maximum length of an answer in tokens. Default: the rest of the context.",
    ),
]
Temperature = Annotated[
    float | None,
    sampling_option(
        "--temperature", "-t", help="Sampling temperature; 0 is greedy. Default: the model's."
    ),
]


@dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """The ranks that run a model together on one machine."""

    tensor_parallel_size: TensorParallelSize = DEFAULTS.parallel.tp
    expert_parallel_size: ExpertParallelSize = DEFAULTS.parallel.ep
    data_parallel_size: DataParallelSize = DEFAULTS.parallel.dp
    enable_dp_attention: EnableDpAttention = DEFAULTS.parallel.dp_attention
    exact_across_tp: ExactAcrossTp = DEFAULTS.parallel.exact_across_tp
    dist_timeout: DistTimeout = DEFAULTS.parallel.timeout_seconds


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model, and how to load it."""

    model: Model = DEFAULTS.model.path
    revision: Revision = DEFAULTS.model.revision
    offline: Offline = DEFAULTS.model.offline
    dtype: Dtype = DEFAULTS.model.dtype
    max_model_len: MaxModelLen = DEFAULTS.model.max_model_len


@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """The drafter, and the size of its trees."""

    drafter: Drafter = DEFAULTS.draft.drafter
    draft_model: DraftModel = DEFAULTS.draft.model
    draft_steps: DraftSteps = str(DEFAULTS.draft.steps)
    draft_topk: DraftTopk = DEFAULTS.draft.topk
    draft_nodes: DraftNodes = str(DEFAULTS.draft.nodes)
    draft_token_map: DraftTokenMap = DEFAULTS.draft.token_map


@dataclass(frozen=True, kw_only=True)
class GrammarOptions:
    """The grammar library, its limits, and the white space of JSON where a request sets none."""

    grammar_backend: Annotated[
        GrammarBackend,
        grammar_option(
            help="Library that enforces schemas, patterns and grammars. xgrammar must be installed "
            "separately, with the extra of that name.",
        ),
    ] = DEFAULTS.grammar.backend
    grammar_timeout: Annotated[
        float,
        grammar_option(help="Maximum time to compile a grammar, in seconds."),
    ] = DEFAULTS.grammar.compile_seconds
    grammar_memory: Annotated[
        int,
        grammar_option(
            help="Maximum memory of compiled grammars and their caches, in MiB. Unused grammars are "
            "evicted first.",
        ),
    ] = DEFAULTS.grammar.cache_bytes // 2**20
    whitespace_pattern: Annotated[
        str | None,
        grammar_option(
            help="Pattern of the white space allowed between the parts of JSON, such as '[ ]?'; '' "
            "allows none. Default: at most one blank, then at most one line break with up to "
            f"{MAX_INDENTATION} characters of indentation.",
            metavar="<pattern>",
        ),
    ] = DEFAULTS.grammar.white_space
    disable_any_whitespace: Annotated[
        bool,
        grammar_option(
            "--disable-any-whitespace",
            help="Write JSON with ', ' and ': ' and no other white space.",
        ),
    ] = not DEFAULTS.grammar.any_white_space


@dataclass(frozen=True, kw_only=True)
class ResourceOptions:
    """Device, memory and batch sizes."""

    device: Device = DEFAULTS.device.device
    threads: Threads = DEFAULTS.device.num_threads
    exact: Exact = DEFAULTS.device.exact
    kv_cache_dtype: KVCacheDtype = DEFAULTS.cache.dtype
    num_slots: NumSlots = DEFAULTS.cache.num_slots
    memory_fraction: MemoryFraction = DEFAULTS.cache.memory_fraction
    max_num_seqs: MaxNumSeqs = str(DEFAULTS.scheduler.max_num_seqs)
    max_batch_tokens: MaxBatchTokens = str(DEFAULTS.scheduler.max_batch_tokens)
    max_step_ms: MaxStepMs = str(DEFAULTS.scheduler.max_step_ms)
    max_graph_batch: MaxGraphBatch = DEFAULTS.scheduler.max_graph_batch


def given_names(context: typer.Context) -> set[str]:
    """Return the names of the parameters that are on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with each parameter that is a dataclass of options replaced by its fields."""
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
