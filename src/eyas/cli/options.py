"""The options that several commands share: names, help texts and defaults.

Promises: defaults come from `eyas.config`, so that commands, server and Python have the same. Related
options are one dataclass; `flattened` lets a command take such a group as one parameter.
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

from eyas.settings import CACHE, DEVICE, DRAFT, GRAMMAR, MODEL, PARALLEL, SCHEDULER
from eyas.settings import engine_config as engine_config  # noqa: PLC0414, for commands

MODEL_PANEL, DRAFT_PANEL, RESOURCE_PANEL = "Model", "Drafting", "Resources"
GRAMMAR_PANEL = "Grammars, reasoning, tools"
PARALLEL_PANEL = "Several processes"
SAMPLING_PANEL = "Sampling"


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
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="Model to load: 'builtin', a directory, or a Hugging Face hub name.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(
        "--revision",
        help="Branch, tag or commit of the model on the hub. Default: the main branch.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Offline = Annotated[
    bool,
    typer.Option(
        "--offline",
        help="Use only files that were downloaded before; never access the network.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Dtype = Annotated[
    DtypeChoice,
    typer.Option(
        "--dtype",
        help="Number format of weights and cache. auto is bfloat16 where the device supports it in "
        "hardware, else float32.",
        metavar="<auto|bfloat16|float16|float32>",
        rich_help_panel=MODEL_PANEL,
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        "--max-model-len",
        help="Context length: maximum number of tokens of prompt and answer together. Default: the "
        "model's own.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Drafter = Annotated[
    str,
    typer.Option(
        "--drafter",
        "-d",
        help="Source of draft tokens: root (no drafts, plain decoding), ngram (prompt lookup), "
        "model (a smaller model), head (EAGLE or MTP), forced (text that the grammar determines), "
        "several joined by + such as ngram+head, or auto (forced, and --draft-model or the model's "
        "own head). The output is the same with every drafter.",
        rich_help_panel=DRAFT_PANEL,
    ),
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        "--draft-model",
        help="Draft model or draft head: 'builtin', a directory, or a hub name.",
        rich_help_panel=DRAFT_PANEL,
    ),
]
DraftSteps = Annotated[
    str,
    typer.Option(
        "--draft-steps",
        metavar="<int>|auto",
        help="Depth of a draft tree: number of forward passes of the drafter in a step, as in SGLang. "
        "auto is 5, or up to 8 with --draft-nodes auto.",
        rich_help_panel=DRAFT_PANEL,
    ),
]
DraftTopk = Annotated[
    int,
    typer.Option(
        "--draft-topk",
        help="Number of candidates that each node of a draft tree proposes; 1 drafts a chain.",
        rich_help_panel=DRAFT_PANEL,
    ),
]
DraftNodes = Annotated[
    str,
    typer.Option(
        "--draft-nodes",
        metavar="<int>|auto",
        help="Number of tree nodes that the model verifies in a step, including the root (the last "
        "known token). auto chooses it for every batch by measured cost; it may be 1, which drafts "
        "nothing.",
        rich_help_panel=DRAFT_PANEL,
    ),
]
DraftTokenMap = Annotated[
    str | None,
    typer.Option(
        "--draft-token-map",
        help="File with the token ids that an EAGLE-2 head may propose (FR-Spec); .pt or .json.",
        rich_help_panel=DRAFT_PANEL,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        help="Device to run on: auto, cpu, cuda or cuda:N.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        help="Number of CPU threads. Default: the number of physical cores minus one.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact/--no-exact",
        help="On a GPU: use only kernels whose results do not depend on drafts or on the other "
        "sequences of the batch, bit for bit; or use the fastest kernels.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]
KVCacheDtype = Annotated[
    str,
    typer.Option(
        "--kv-cache-dtype",
        help="Number format of cached keys and values. auto is that of --dtype; fp8_e4m3 (or fp8) "
        "holds twice as many tokens as 16 bits, with the scales of the checkpoint, or 1.",
        metavar="<format>",
        rich_help_panel=RESOURCE_PANEL,
    ),
]
NumSlots = Annotated[
    int | None,
    typer.Option(
        "--num-slots",
        help="Capacity of the key/value cache in tokens; with --dp, of each rank. Default: what "
        "--memory-fraction allows.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]
MemoryFraction = Annotated[
    float,
    typer.Option(
        "--memory-fraction",
        help="Fraction of the device's memory to use for weights and cache, 0.05 to 0.98.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]
MaxNumSeqs = Annotated[
    str,
    typer.Option(
        "--max-num-seqs",
        help="Maximum number of sequences in a step. auto is 64 on a CPU, and on a GPU up to 512, as "
        "memory allows.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]
MaxBatchTokens = Annotated[
    str,
    typer.Option(
        "--max-batch-tokens",
        help="Maximum number of tokens in a step, prompt chunks and draft trees together. auto is 512 "
        "on a CPU, 2048 on a GPU.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]
MaxStepMs = Annotated[
    str,
    typer.Option(
        "--max-step-ms",
        help="Milliseconds that a step may take while sequences decode: prompt chunks are made smaller "
        "accordingly. auto is 50 on a GPU, no limit on a CPU.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]
MaxGraphBatch = Annotated[
    int | None,
    typer.Option(
        "--max-graph-batch",
        help="On a GPU: maximum number of sequences of a step that runs as CUDA graphs; 0 disables "
        "CUDA graphs. Default: no limit.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]
NoPrefixCache = Annotated[
    bool,
    typer.Option(
        "--no-prefix-cache",
        help="Do not reuse the cached keys and values of earlier requests with the same prefix.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]
KVEvents = Annotated[
    str | None,
    typer.Option(
        "--kv-events-config",
        metavar="<json>",
        help="Publish which prefixes are cached, for routers, as vLLM does: a JSON object such as "
        '\'{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}\'.',
        rich_help_panel=RESOURCE_PANEL,
    ),
]
Flights = Annotated[
    str,
    typer.Option(
        "--flights",
        help="Number of steps that may still run when the next one is launched: auto, 0 or 1.",
        rich_help_panel=RESOURCE_PANEL,
    ),
]

TensorParallelSize = Annotated[
    int,
    typer.Option(
        "--tp",
        "--tp-size",
        "--tensor-parallel-size",
        help="Number of processes (ranks) that run the model together, each with a part of every layer "
        "and, on GPUs, a GPU of its own: 1, 2, 4 or 8.",
        rich_help_panel=PARALLEL_PANEL,
    ),
]
ExpertParallelSize = Annotated[
    int,
    typer.Option(
        "--ep",
        "--ep-size",
        "--expert-parallel-size",
        help="1: each rank holds a part of every expert. The number of ranks, or 0: each holds some "
        "experts whole.",
        rich_help_panel=PARALLEL_PANEL,
    ),
]
DataParallelSize = Annotated[
    int,
    typer.Option(
        "--dp",
        "--dp-size",
        "--data-parallel-size",
        help="With --enable-dp-attention: number of ranks that divide sequences and experts of a model "
        "with latent attention: 1, 2, 4 or 8. Each holds the keys and values of its own sequences.",
        rich_help_panel=PARALLEL_PANEL,
    ),
]
EnableDpAttention = Annotated[
    bool,
    typer.Option(
        "--enable-dp-attention",
        help="Divide sequences among the ranks of --dp, not the heads of attention. --ep 0 "
        "(--enable-expert-parallel) with --dp says the same.",
        rich_help_panel=PARALLEL_PANEL,
    ),
]
ExactAcrossTp = Annotated[
    bool,
    typer.Option(
        "--exact-across-tp",
        help="Form sums in one order for every number of ranks, so that 1, 2, 4 and 8 ranks give the "
        "same tokens and log-probabilities, bit for bit. On a CPU several ranks always do.",
        rich_help_panel=PARALLEL_PANEL,
    ),
]
DistTimeout = Annotated[
    float,
    typer.Option(
        "--dist-timeout",
        help="Time that a rank may take for its part of an exchange, in seconds, before the engine "
        "counts as failed.",
        rich_help_panel=PARALLEL_PANEL,
    ),
]
Nnodes = Annotated[
    int,
    typer.Option(
        "--nnodes",
        help="Number of machines that the ranks are divided among.",
        rich_help_panel=PARALLEL_PANEL,
    ),
]
NodeRank = Annotated[
    int,
    typer.Option(
        "--node-rank",
        help="Number of this machine, from 0; the one with number 0 serves.",
        rich_help_panel=PARALLEL_PANEL,
    ),
]
DistInitAddr = Annotated[
    str | None,
    typer.Option(
        "--dist-init-addr",
        metavar="<host:port>",
        help="Address of machine 0 at which the ranks meet; needed with several machines.",
        rich_help_panel=PARALLEL_PANEL,
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
    typer.Option(
        "--max-tokens",
        help="Maximum length of an answer in tokens. Default: the rest of the context.",
        rich_help_panel=SAMPLING_PANEL,
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        "-t",
        help="Sampling temperature; 0 is greedy. Default: the model's.",
        rich_help_panel=SAMPLING_PANEL,
    ),
]


@dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """The ranks that run a model together on one machine."""

    tensor_parallel_size: TensorParallelSize = PARALLEL.tp
    expert_parallel_size: ExpertParallelSize = PARALLEL.ep
    data_parallel_size: DataParallelSize = PARALLEL.dp
    enable_dp_attention: EnableDpAttention = PARALLEL.dp_attention
    exact_across_tp: ExactAcrossTp = PARALLEL.exact_across_tp
    dist_timeout: DistTimeout = PARALLEL.timeout_seconds


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model, and how to load it."""

    model: Model = MODEL.path
    revision: Revision = MODEL.revision
    offline: Offline = MODEL.offline
    dtype: Dtype = DtypeChoice.auto
    max_model_len: MaxModelLen = MODEL.max_model_len


@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """The drafter, and the size of its trees."""

    drafter: Drafter = DRAFT.drafter
    draft_model: DraftModel = DRAFT.model
    draft_steps: DraftSteps = str(DRAFT.steps)
    draft_topk: DraftTopk = DRAFT.topk
    draft_nodes: DraftNodes = str(DRAFT.nodes)
    draft_token_map: DraftTokenMap = DRAFT.token_map


@dataclass(frozen=True, kw_only=True)
class GrammarOptions:
    """The grammar library, and its limits."""

    grammar_backend: Annotated[
        GrammarChoice,
        typer.Option(
            "--grammar-backend",
            help="Library that enforces schemas, patterns and grammars. xgrammar must be installed "
            "separately, with the extra of that name.",
            rich_help_panel=GRAMMAR_PANEL,
        ),
    ] = GrammarChoice.llguidance
    grammar_timeout: Annotated[
        float,
        typer.Option(
            "--grammar-timeout",
            help="Maximum time to compile a grammar, in seconds.",
            rich_help_panel=GRAMMAR_PANEL,
        ),
    ] = GRAMMAR.compile_seconds
    grammar_memory: Annotated[
        int,
        typer.Option(
            "--grammar-memory",
            help="Maximum memory of compiled grammars and their caches, in MiB. Unused grammars are "
            "evicted first.",
            rich_help_panel=GRAMMAR_PANEL,
        ),
    ] = GRAMMAR.cache_bytes // 2**20


@dataclass(frozen=True, kw_only=True)
class ResourceOptions:
    """Device, memory and batch sizes."""

    device: Device = DEVICE.device
    threads: Threads = DEVICE.num_threads
    exact: Exact = DEVICE.exact
    kv_cache_dtype: KVCacheDtype = CACHE.dtype
    num_slots: NumSlots = CACHE.num_slots
    memory_fraction: MemoryFraction = CACHE.memory_fraction
    max_num_seqs: MaxNumSeqs = str(SCHEDULER.max_num_seqs)
    max_batch_tokens: MaxBatchTokens = str(SCHEDULER.max_batch_tokens)
    max_step_ms: MaxStepMs = str(SCHEDULER.max_step_ms)
    max_graph_batch: MaxGraphBatch = SCHEDULER.max_graph_batch


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
