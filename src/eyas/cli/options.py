"""The options that commands share, once: names, help texts, and how they become an EngineConfig.

Promises: defaults come from `eyas.config`, so commands, server and Python cannot differ.
Does not know: what a command does with its engine.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from eyas.config import (
    CacheConfig,
    DeviceConfig,
    DraftConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)

MODEL_PANEL, DRAFT_PANEL, RESOURCE_PANEL = "Model", "Drafting", "Resources"


class DrafterChoice(StrEnum):
    """Who proposes draft tokens."""

    root = "root"
    ngram = "ngram"
    model = "model"


class DtypeChoice(StrEnum):
    """Number format of weights and cache."""

    auto = "auto"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


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
    typer.Option("--dtype", help="Number format of the weights.", rich_help_panel=MODEL_PANEL),
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
    DrafterChoice,
    typer.Option(
        "--drafter",
        "-d",
        help="Who proposes tokens: root (plain decoding), ngram (prompt lookup), model.",
        rich_help_panel=DRAFT_PANEL,
    ),
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        "--draft-model",
        help="The draft model of --drafter model: a directory or hub name.",
        rich_help_panel=DRAFT_PANEL,
    ),
]
DraftTokens = Annotated[
    int,
    typer.Option("--draft-tokens", help="Tokens proposed for a step.", rich_help_panel=DRAFT_PANEL),
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
    int,
    typer.Option(
        "--max-batch-tokens",
        help="Rows of one step: prompt chunks and draft trees together.",
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

MODEL = ModelConfig()
CACHE = CacheConfig()
SCHEDULER = SchedulerConfig()
DRAFT = DraftConfig()
DEVICE = DeviceConfig()


def engine_config(
    *,
    model: str = MODEL.path,
    revision: str | None = MODEL.revision,
    offline: bool = MODEL.offline,
    dtype: str = MODEL.dtype,
    max_model_len: int | None = MODEL.max_model_len,
    drafter: str = DRAFT.drafter,
    draft_model: str | None = DRAFT.model,
    draft_tokens: int = DRAFT.num_tokens,
    device: str = DEVICE.device,
    threads: int | None = DEVICE.num_threads,
    num_slots: int | None = CACHE.num_slots,
    memory_fraction: float = CACHE.memory_fraction,
    max_num_seqs: int = SCHEDULER.max_num_seqs,
    max_batch_tokens: int = SCHEDULER.max_batch_tokens,
    prefix_cache: bool = CACHE.prefix_cache,
    flights: str = "auto",
) -> EngineConfig:
    """The configuration that options ask for. Raises ValueError that begins with the setting."""
    if flights not in ("auto", "0", "1"):
        raise ValueError(f"scheduler.flights: 'auto', 0 or 1, not {flights!r}")
    return EngineConfig(
        model=ModelConfig(
            path=model,
            revision=revision,
            dtype=DtypeChoice(dtype).value,
            max_model_len=max_model_len,
            offline=offline,
        ),
        cache=CacheConfig(
            num_slots=num_slots, memory_fraction=memory_fraction, prefix_cache=prefix_cache
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_batch_tokens=max_batch_tokens,
            flights="auto" if flights == "auto" else int(flights),
        ),
        draft=DraftConfig(
            drafter=DrafterChoice(drafter).value, num_tokens=draft_tokens, model=draft_model
        ),
        device=DeviceConfig(device=device, num_threads=threads),
    )
