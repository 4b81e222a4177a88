"""`eyas train head`: train a draft head from prompts.

Promises: every option is a field of `HeadTraining`, which checks it. Does not know: how heads are
trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from eyas.cli.options import flattened

DEMO_OUTPUT = "eyas-head-demo"


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options that are fields of `HeadTraining` with the same names. None is the default there."""

    format: Annotated[
        str | None,
        typer.Option(
            help="Kind of head: eagle3.1, which needs SGLang or vLLM of mid-2026 or newer, or eagle3, "
            "which older releases and SafeAILab's code run as well. Default: eagle3.1.",
        ),
    ] = None
    prompts: Annotated[
        str | None,
        typer.Option(
            help="Prompts that the target answers: a JSON lines file with 'messages' or 'prompt' "
            "in each line, or builtin:N for the first N built-in prompts.",
        ),
    ] = None
    conversations: Annotated[
        str | None,
        typer.Option(
            help="Conversations with answers to train on as they are: a JSON lines file, or builtin:N."
        ),
    ] = None
    thinking: Annotated[
        str | None,
        typer.Option(
            help="Reasoning in the target's answers: as-given (by the prompt), on, off or both. "
            "Default: as-given.",
        ),
    ] = None
    temperatures: Annotated[
        str | None,
        typer.Option(
            help="Temperatures of the target's answers, used in turn. Default: 0,0.7,1.0."
        ),
    ] = None
    max_tokens: Annotated[
        int | None, typer.Option(help="Maximum length of an answer in tokens. Default: 1024.")
    ] = None
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Maximum length of a training text in tokens, prompt included. Default: the target's "
            "context length.",
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        typer.Option(help="Maximum number of answers generated at a time. Default: 256."),
    ] = None
    generate_seconds: Annotated[
        float | None,
        typer.Option(
            help="Time to generate answers, in seconds; training then uses the answers so far. "
            "Default: no limit.",
        ),
    ] = None
    heldout_share: Annotated[
        float | None,
        typer.Option(
            "--heldout",
            help="Fraction of texts that are held out for evaluation. Default: 0.05.",
        ),
    ] = None
    online: Annotated[
        bool | None,
        typer.Option(
            "--online/--stored",
            help="Run the target for every batch, or store its hidden states on disk once. Default: "
            "--stored.",
        ),
    ] = None
    shard_mib: Annotated[
        int | None,
        typer.Option(help="Size of a file of stored hidden states, in MiB. Default: 256."),
    ] = None
    cache_gib: Annotated[
        float | None,
        typer.Option(
            help="Memory to cache stored hidden states in, in GiB. Default: by free memory."
        ),
    ] = None
    draft_vocab_size: Annotated[
        int | None,
        typer.Option(
            help="Number of tokens that the head can propose. Default: 32000, or the target's "
            "vocabulary if that is smaller; 2048 for builtin.",
        ),
    ] = None
    intermediate_size: Annotated[
        int | None,
        typer.Option(help="Width of the head's feed-forward block. Default: the target's."),
    ] = None
    num_heads: Annotated[
        int | None, typer.Option(help="Number of query heads. Default: the target's.")
    ] = None
    num_kv_heads: Annotated[
        int | None, typer.Option(help="Number of key/value heads. Default: the target's.")
    ] = None
    taps: Annotated[
        str | None,
        typer.Option(
            help="Hidden states that the head reads, each the number of layers before it, such as "
            "2,18,33. Default: EAGLE-3's.",
        ),
    ] = None
    ttt_steps: Annotated[
        int | None,
        typer.Option(
            help="Number of draft levels that are trained (training-time test). Default: 7."
        ),
    ] = None
    loss_decay: Annotated[
        float | None,
        typer.Option(help="Factor of a level's loss relative to the level before. Default: 0.8."),
    ] = None
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens in a training step, padding included. Default: 8192; 65536 for builtin."
        ),
    ] = None
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the training texts. Default: 10.")
    ] = None
    train_seconds: Annotated[
        float | None, typer.Option(help="Training time in seconds, instead of --epochs.")
    ] = None
    max_steps: Annotated[
        int | None, typer.Option(help="Maximum number of training steps. Default: no limit.")
    ] = None
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="muon (Muon for matrices, AdamW for the rest), or adamw as in the EAGLE papers. "
            "Default: muon.",
        ),
    ] = None
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Peak learning rate of AdamW. Default: 1e-4; 2e-3 for builtin."),
    ] = None
    matrix_rate: Annotated[
        float | None, typer.Option(help="Peak learning rate of Muon. Default: 0.02.")
    ] = None
    decay: Annotated[
        str | None,
        typer.Option(help="Decay of the learning rates: cosine or linear. Default: cosine."),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of the answers, the initial weights and the order of texts. Default: 0."
        ),
    ] = None
    device: Annotated[
        str | None, typer.Option(help="Device: auto, cuda or cpu. Default: auto.")
    ] = None
    dtype: Annotated[
        str | None, typer.Option(help="Number format of the target. Default: auto.")
    ] = None
    compile: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile", help="Use torch.compile for the head. Default: --no-compile."
        ),
    ] = None
    offline: Annotated[
        bool | None,
        typer.Option(
            "--offline",
            help="Use only files that were downloaded before; never access the network.",
        ),
    ] = None
    stop_after: Annotated[
        float | None,
        typer.Option(
            help="Stop the command after this time in seconds; the same command continues the run. "
            "Default: no limit.",
        ),
    ] = None
    log_every: Annotated[int | None, typer.Option(help="Steps between log lines. Default: 50.")] = (
        None
    )
    eval_every: Annotated[
        int | None, typer.Option(help="Steps between evaluations on held-out texts. Default: 500.")
    ] = None
    evaluate: Annotated[
        bool | None,
        typer.Option(
            "--evaluate/--no-evaluate",
            help="Measure the trained head by decoding held-out prompts. Default: --evaluate.",
        ),
    ] = None


@flattened
def head(
    *,
    model: Annotated[
        str,
        typer.Argument(help="Target model: 'builtin', a directory, or a Hugging Face hub name."),
    ] = "builtin",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Directory of the run. The same command with the same directory continues a run.",
        ),
    ] = None,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo",
            help="Train a small head for the built-in model with built-in prompts, in a few minutes on "
            f"two CPU cores and without a network. --output is {DEMO_OUTPUT} by default.",
        ),
    ] = False,
    training: TrainingOptions,
) -> None:
    """Train an EAGLE-3 or EAGLE-3.1 draft head for a model from a file of prompts.

    The head is written in the file formats of eyas, SGLang and vLLM that support its --format, with a
    model card. An interrupted run continues when the same command is run again.
    """
    from eyas.cli.watching import Stopped, run_display
    from eyas.train.head import HeadTraining, demo_settings, summary, train_head

    if output is None and demo:
        output = Path(DEMO_OUTPUT)
    if output is None:
        raise ValueError("output: give a directory for the run")
    settings = {
        **vars(training),
        "temperatures": _numbers(training.temperatures, "temperatures"),
        "taps": _whole_numbers(training.taps),
    }
    if training.format is not None:
        settings["format"] = training.format.lower().replace("-", "")
    changes = {name: value for name, value in settings.items() if value is not None}
    if demo:
        changes = demo_settings(model, changes)
    config = HeadTraining(output=output, model=model, **changes)  # pyrefly: ignore
    try:
        with run_display() as display:
            done = train_head(config, display.print_line, display.show_progress)
    except Stopped as stopped:
        print("stopped; run the same command again to continue", flush=True)
        raise typer.Exit(stopped.status) from None
    if done is not None:
        for line in summary(config):
            print(line, flush=True)


def _numbers(text: str | None, name: str) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name}: {text!r} is not a list of numbers, such as 0,0.7,1.0") from None


def _whole_numbers(text: str | None) -> tuple[int, ...] | None:
    values = _numbers(text, "taps")
    if values is None:
        return None
    if any(value != int(value) for value in values):
        raise ValueError(f"taps: {text!r} must be whole numbers")
    return tuple(int(value) for value in values)
