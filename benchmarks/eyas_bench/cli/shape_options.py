"""What a named shape is measured with: the options of `--shape`, and the engine that they ask for.

Promises: what cannot go together is refused here, with the name of the option. Does not know: what is
measured, or how.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from eyas.cli.options import DraftOptions, engine_config
from eyas.config import USUAL_STEPS

Drafting = TypeVar("Drafting", bound=DraftOptions)

SHAPE_PANEL = "Named shapes"
PROMPT_TOKENS, NEW_TOKENS, REPEATS = 128, 256, 3
TEXT_TOKENS = 448
"""Longest instance with --schemas: all contexts then share the graphs of the shortest."""
MOST_TREE_NODES = 32


@dataclass(frozen=True, kw_only=True)
class DummyOptions:
    """A model without a checkpoint."""

    shape: Annotated[
        str | None,
        typer.Option(
            "--shape",
            help="A model of a known size instead of --model: llama-3.1-8b, qwen3-8b or tiny. Trees "
            "are not paced: without --draft-nodes a chain has all its levels, a tree 32 nodes.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    dummy_weights: Annotated[
        bool,
        typer.Option(
            "--dummy-weights",
            help="Random weights; --shape has no others.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = False
    synthetic_acceptance: Annotated[
        float | None,
        typer.Option(
            "--synthetic-acceptance",
            help="Verify in full, then accept so many tokens a step on average, the one that every "
            "step yields included.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None

    def check(self) -> None:
        """ValueError for what cannot go together."""
        if self.shape is None:
            for field in fields(self):
                if getattr(self, field.name):
                    option = "--" + field.name.replace("_", "-")
                    raise ValueError(f"{option}: goes with --shape, which was not given")
        elif not self.dummy_weights:
            raise ValueError("--shape: there are no weights of a shape; add --dummy-weights")


@dataclass(frozen=True, kw_only=True)
class ShapeOptions(DummyOptions):
    """What is measured of it."""

    synthetic_alike: Annotated[
        bool,
        typer.Option(
            "--synthetic-alike",
            help="With --synthetic-acceptance: all sequences of a step accept as many, as in SGLang's "
            "simulation; otherwise each draws for itself, and a batch ends with its slowest.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = False
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Also tell what a step is made of: device time by kind, kernels, gaps.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = False
    max_model_len: Annotated[
        int | None,
        typer.Option(
            "--max-model-len",
            help="Positions to prepare for; prompt and answer by default.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    max_batch_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-batch-tokens",
            min=1,
            help="Rows of one step; by default as many as a batch's prompts, with --prefill 8192, and "
            "with --interfere 2048.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    schemas: Annotated[
        Path | None,
        typer.Option(
            "--schemas",
            help='Measure steps instead, with schemas and without: folder of {"schema": ..., "tests": '
            "[...]} files, whose valid instances of up to --max-tokens (448) tokens are the answers.",
            exists=True,
            file_okay=False,
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            help="With --schemas: a model directory whose tokens instances are spelled with.",
            exists=True,
            file_okay=False,
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    prefill: Annotated[
        int | None,
        typer.Option(
            "--prefill",
            min=1,
            help="Measure instead how long a prompt of so many tokens takes, such as 8192.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    interfere: Annotated[
        int | None,
        typer.Option(
            "--interfere",
            min=1,
            help="With --prefill: also how long so many sequences, such as 16, wait for their tokens "
            "while such a prompt arrives.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None

    def check(self) -> None:
        """ValueError for what cannot go together."""
        DummyOptions.check(self)
        if (self.schemas is None) != (self.tokenizer is None):
            raise ValueError("--schemas: goes with --tokenizer, which spells the instances")
        if self.synthetic_alike and self.synthetic_acceptance is None:
            raise ValueError("--synthetic-alike: goes with --synthetic-acceptance")
        if self.synthetic_alike and self.schemas is not None:
            raise ValueError("--synthetic-alike: with --schemas every sequence has its own text")
        if self.interfere is not None and self.prefill is None:
            raise ValueError("--interfere: add --prefill, the length of the prompt that arrives")
        asked = {
            "--schemas": self.schemas is not None,
            "--prefill": self.prefill is not None,
            "--profile": self.profile,
        }
        if sum(asked.values()) > 1:
            given = [option for option, is_given in asked.items() if is_given]
            raise ValueError(
                f"{given[0]}: measures something else than {given[1]}; give one of them"
            )


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How the named shape is run."""

    batches: list[int]
    prompt_tokens: int
    max_tokens: int
    temperature: float
    repeats: int
    dtype: str
    device: str
    threads: int | None
    exact: bool


def with_aliases(drafting: Drafting) -> Drafting:
    """eagle3 is another name of head."""
    names = ["head" if name == "eagle3" else name for name in drafting.drafter.split("+")]
    return replace(drafting, drafter="+".join(names))


def unpaced(drafting: DraftOptions) -> DraftOptions:
    """The tree's size in numbers."""
    if drafting.drafter == "root" or drafting.draft_nodes != "auto":
        return drafting
    from eyas.draft import TreeShape

    try:
        steps = USUAL_STEPS if drafting.draft_steps == "auto" else int(drafting.draft_steps)
    except ValueError:
        return drafting  # engine_config says what is wrong with it
    most = TreeShape(steps, drafting.draft_topk, MOST_TREE_NODES).num_candidates
    nodes = steps + 1 if drafting.draft_topk == 1 else min(MOST_TREE_NODES, 1 + most)
    return replace(drafting, draft_steps=str(steps), draft_nodes=str(nodes))


def shape_config(
    options: ShapeOptions, drafting: DraftOptions, protocol: Protocol, *, spare_seats: int = 0
) -> Any:
    """The engine for the largest batch, with seats beside it."""
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
    is_number = drafting.draft_nodes.isdecimal()  # engine_config says what else is wrong with it
    nodes = int(drafting.draft_nodes) if is_number and drafting.drafter != "root" else 1
    return engine_config(
        model=options.shape or "",
        dtype=protocol.dtype,
        device=protocol.device,
        threads=protocol.threads,
        exact=protocol.exact,
        max_model_len=options.max_model_len or needed + SLACK,
        max_num_seqs=largest,
        max_batch_tokens=options.max_batch_tokens or step_rows(largest, prompt_tokens, nodes),
        prefix_cache=False,
        **vars(drafting),
    )
