"""The options of `--shape`, and the engine configuration that follows from them.

Promises: options that cannot be combined are refused here, with the name of the option.
Does not know: what is measured, or how.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from eyas.cli.options import (
    DraftOptions,
    ExactAcrossTp,
    ExpertParallelSize,
    MaxGraphBatch,
    TensorParallelSize,
    engine_config,
)
from eyas.config import USUAL_STEPS

Drafting = TypeVar("Drafting", bound=DraftOptions)

SHAPE_PANEL = "Named shapes"
PROMPT_TOKENS, NEW_TOKENS, REPEATS = 128, 256, 3
TEXT_TOKENS = 448
"""The default of --max-tokens with --schemas; all contexts then use the same CUDA graphs."""
MAX_TREE_NODES = 32


@dataclass(frozen=True, kw_only=True)
class DummyOptions:
    """Options of a model with random weights."""

    shape: Annotated[
        str | None,
        typer.Option(
            help="Sizes of a model to run with random weights instead of --model: llama-3.1-8b, "
            "qwen3-8b or tiny. Without --draft-nodes a chain has all its levels and a tree has 32 "
            "nodes.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    dummy_weights: Annotated[
        bool,
        typer.Option(
            "--dummy-weights",
            help="Use random weights; required with --shape.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = False
    quantization: Annotated[
        str | None,
        typer.Option(
            help="Pack the weights of layers, on a CUDA device: fp8 (blocks of 128 x 128), fp8-row (a "
            "scale for each row), mxfp4 (experts alone) or w4a16 (4-bit integers in groups of 128).",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    synthetic_acceptance: Annotated[
        float | None,
        typer.Option(
            help="Replace the result of verification: yield this many tokens per step on average, "
            "including the token that every step yields.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None

    def check(self) -> None:
        """Check the options. ValueError: they cannot be combined."""
        if self.shape is None:
            for field in fields(self):
                if getattr(self, field.name) != field.default:
                    option = "--" + field.name.replace("_", "-")
                    raise ValueError(f"{option}: needs --shape")
        elif not self.dummy_weights:
            raise ValueError("--shape: a shape has no weights; add --dummy-weights")


@dataclass(frozen=True, kw_only=True)
class ShapeOptions(DummyOptions):
    """Options of the measurement."""

    synthetic_alike: Annotated[
        bool,
        typer.Option(
            "--synthetic-alike",
            help="With --synthetic-acceptance: all sequences of a step accept the same number of "
            "tokens, as in SGLang's simulation. By default each sequence draws its own number.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = False
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Also report the parts of a step: device time by kind of kernel, and gaps.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = False
    max_model_len: Annotated[
        int | None,
        typer.Option(
            help="Context length in tokens. Default: the length of prompt and answer.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    max_batch_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of tokens in a step. Default: all prompts of the batch; 8192 with "
            "--prefill; 2048 with --interfere.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    schemas: Annotated[
        Path | None,
        typer.Option(
            help="Measure steps with and without schemas instead: directory of files "
            '{"schema": ..., "tests": [...]}, whose valid instances of up to --max-tokens '
            "(default 448) "
            "tokens are the answers.",
            exists=True,
            file_okay=False,
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="With --schemas: model directory whose tokenizer is used.",
            exists=True,
            file_okay=False,
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    prefill: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Measure the time to first token of a prompt of this many tokens instead, such "
            "as 8192.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    interfere: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --prefill: also measure the time between tokens of this many running sequences, "
            "such as 16, while the prompt is stored.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    tensor_parallel_size: TensorParallelSize = 1
    expert_parallel_size: ExpertParallelSize = 1
    exact_across_tp: ExactAcrossTp = False
    max_graph_batch: MaxGraphBatch = None

    def check(self) -> None:
        """Check the options. ValueError: they cannot be combined."""
        DummyOptions.check(self)
        if (self.schemas is None) != (self.tokenizer is None):
            raise ValueError("--schemas: needs --tokenizer, and the other way round")
        if self.synthetic_alike and self.synthetic_acceptance is None:
            raise ValueError("--synthetic-alike: needs --synthetic-acceptance")
        if self.synthetic_alike and self.schemas is not None:
            raise ValueError("--synthetic-alike: with --schemas every sequence has its own text")
        if self.interfere is not None and self.prefill is None:
            raise ValueError("--interfere: add --prefill, the length of the prompt that arrives")
        measurements = {
            "--schemas": self.schemas is not None,
            "--prefill": self.prefill is not None,
            "--profile": self.profile,
        }
        given = [option for option, is_given in measurements.items() if is_given]
        if len(given) > 1:
            raise ValueError(f"{given[0]}: cannot be combined with {given[1]}; give one of them")


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The settings of a measurement of a shape."""

    batches: list[int]
    prompt_tokens: int
    max_tokens: int
    temperature: float
    repeats: int
    dtype: str
    device: str
    threads: int | None
    exact: bool
    kv_cache_dtype: str = "auto"


def with_aliases(drafting: Drafting) -> Drafting:
    """Replace `eagle3` in the drafter by `head`, of which it is another name."""
    names = ["head" if name == "eagle3" else name for name in drafting.drafter.split("+")]
    return replace(drafting, drafter="+".join(names))


def unpaced(drafting: DraftOptions) -> DraftOptions:
    """Replace automatic tree sizes by fixed ones."""
    if drafting.drafter == "root" or drafting.draft_nodes != "auto":
        return drafting
    from eyas.draft import TreeShape

    try:
        steps = USUAL_STEPS if drafting.draft_steps == "auto" else int(drafting.draft_steps)
    except ValueError:
        return drafting  # engine_config reports the error
    num_candidates = TreeShape(steps, drafting.draft_topk, MAX_TREE_NODES).num_candidates
    nodes = steps + 1 if drafting.draft_topk == 1 else min(MAX_TREE_NODES, 1 + num_candidates)
    return replace(drafting, draft_steps=str(steps), draft_nodes=str(nodes))


def shape_config(
    options: ShapeOptions, drafting: DraftOptions, protocol: Protocol, *, spare_seats: int = 0
) -> Any:
    """Return the engine configuration for the largest batch and `spare_seats` more sequences."""
    from eyas_bench.together import SLACK, step_rows

    largest, prompt_tokens = max(protocol.batches) + spare_seats, protocol.prompt_tokens
    if prompt_tokens < 1 or protocol.max_tokens < 2:
        raise ValueError(
            "--max-tokens: at least 2, and --prompt-tokens at least 1, are needed here"
        )
    needed = prompt_tokens + protocol.max_tokens
    if options.max_model_len is not None and options.max_model_len < needed:
        raise ValueError(
            f"--max-model-len: {options.max_model_len} is less than prompt and answer, {needed}"
        )
    is_number = drafting.draft_nodes.isdecimal()  # if not, engine_config reports the error
    nodes = int(drafting.draft_nodes) if is_number and drafting.drafter != "root" else 1
    return engine_config(
        model=options.shape or "",
        dtype=protocol.dtype,
        device=protocol.device,
        threads=protocol.threads,
        exact=protocol.exact,
        kv_cache_dtype=protocol.kv_cache_dtype,
        max_model_len=options.max_model_len or needed + SLACK,
        max_num_seqs=largest,
        max_batch_tokens=options.max_batch_tokens or step_rows(largest, prompt_tokens, nodes),
        prefix_cache=False,
        tensor_parallel_size=options.tensor_parallel_size,
        expert_parallel_size=options.expert_parallel_size,
        exact_across_tp=options.exact_across_tp,
        max_graph_batch=options.max_graph_batch,
        **vars(drafting),
    )
