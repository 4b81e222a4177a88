"""`eyas train head`: from prompts to a draft head.

Promises: every option is a setting of the training, which checks it. Does not know: how heads are
trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEMO_OUTPUT = "eyas-head-demo"


def head(
    model: Annotated[
        str, typer.Argument(help="Target: 'builtin', a directory, or a Hugging Face name.")
    ] = "builtin",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Directory of the run; the same command goes on in it."
        ),
    ] = None,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo",
            help="Train a small head for the built-in model with prompts that come along, in some "
            f"minutes on two CPU cores and without a network; --output is {DEMO_OUTPUT} by default.",
        ),
    ] = False,
    head_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="eagle3.1 (the default; SGLang and vLLM since the middle of 2026), or eagle3, which "
            "older ones and SafeAILab's code run too.",
        ),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            "--prompts",
            help="JSONL with 'messages' or 'prompt' a line, or builtin:N; the target answers.",
        ),
    ] = None,
    conversations: Annotated[
        str | None,
        typer.Option("--conversations", help="The same, with answers to learn from as they stand."),
    ] = None,
    thinking: Annotated[
        str | None, typer.Option("--thinking", help="as-given, on, off or both.")
    ] = None,
    temperatures: Annotated[
        str | None, typer.Option("--temperatures", help="Of the answers, in turn: 0,0.7,1.0.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="Longest answer.", min=1)
    ] = None,
    max_length: Annotated[
        int | None, typer.Option("--max-length", help="Longest text, prompt included.", min=8)
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option("--max-num-seqs", help="Answers written at a time.", min=1)
    ] = None,
    generate_seconds: Annotated[
        float | None,
        typer.Option("--generate-seconds", help="Go on with the answers there are by then."),
    ] = None,
    heldout_share: Annotated[
        float | None, typer.Option("--heldout", help="Share of texts kept for evaluation.")
    ] = None,
    online: Annotated[
        bool | None,
        typer.Option(
            "--online/--stored", help="Run the target for every batch instead of storing features."
        ),
    ] = None,
    shard_mib: Annotated[
        int | None, typer.Option("--shard-mib", help="Size of a feature file.", min=1)
    ] = None,
    cache_gib: Annotated[
        float | None, typer.Option("--cache-gib", help="Features kept in memory at most.")
    ] = None,
    draft_vocab_size: Annotated[
        int | None, typer.Option("--draft-vocab-size", help="Tokens the head can propose.", min=1)
    ] = None,
    intermediate_size: Annotated[
        int | None,
        typer.Option("--intermediate-size", help="Width of the feed-forward; the target's.", min=1),
    ] = None,
    num_heads: Annotated[
        int | None, typer.Option("--num-heads", help="Query heads; the target's.", min=1)
    ] = None,
    num_kv_heads: Annotated[
        int | None, typer.Option("--num-kv-heads", help="Key/value heads; the target's.", min=1)
    ] = None,
    taps: Annotated[
        str | None,
        typer.Option(
            "--taps", help="States to read, in layers applied: 2,18,33; EAGLE-3's by default."
        ),
    ] = None,
    ttt_steps: Annotated[
        int | None, typer.Option("--ttt-steps", help="Levels of training-time test.", min=1)
    ] = None,
    loss_decay: Annotated[
        float | None, typer.Option("--loss-decay", help="Weight of a level over the one before.")
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option("--batch-tokens", help="Tokens of a step, padded.", min=16)
    ] = None,
    epochs: Annotated[
        float | None, typer.Option("--epochs", help="How often each text is seen.")
    ] = None,
    train_seconds: Annotated[
        float | None,
        typer.Option("--train-seconds", help="Train for so long, instead of for epochs."),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option("--max-steps", help="Train for so many steps at most.", min=1),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            "--optimizer",
            help="muon (matrices by Muon, the rest by AdamW), or adamw, which the EAGLE papers used.",
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option("--learning-rate", help="AdamW's highest rate; 1e-4, for builtin 2e-3."),
    ] = None,
    matrix_rate: Annotated[
        float | None, typer.Option("--matrix-rate", help="Muon's highest rate; 0.02.")
    ] = None,
    decay: Annotated[
        str | None, typer.Option("--decay", help="How rates fall: cosine or linear.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Of answers, first weights and order.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="auto, cuda or cpu.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="Of the target.")] = None,
    compile_head: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="Use torch.compile.")
    ] = None,
    offline: Annotated[
        bool | None, typer.Option("--offline", help="Use downloaded files; never the network.")
    ] = None,
    stop_after: Annotated[
        float | None,
        typer.Option("--stop-after", help="Stop after so many seconds; the same command goes on."),
    ] = None,
    log_every: Annotated[
        int | None, typer.Option("--log-every", help="Steps from report to report.", min=1)
    ] = None,
    eval_every: Annotated[
        int | None,
        typer.Option("--eval-every", help="Steps from one held-out evaluation to the next.", min=1),
    ] = None,
    evaluate: Annotated[
        bool | None,
        typer.Option("--evaluate/--no-evaluate", help="Decode with the head at the end."),
    ] = None,
) -> None:
    """Train an EAGLE-3 or EAGLE-3.1 draft head for a model, from a file of prompts.

    It is written for eyas, SGLang and vLLM, as far as they run its --format, with a model card.
    What was done stays in --output: an interrupted run goes on with the same command.
    """
    from eyas.cli.watching import Stopped, watching
    from eyas.train.head import HeadTraining, demo_settings, summary, train_head

    if output is None and demo:
        output = Path(DEMO_OUTPUT)
    if output is None:
        raise ValueError("output: give a directory for the run")
    asked = {
        "prompts": prompts,
        "conversations": conversations,
        "thinking": thinking,
        "temperatures": _numbers(temperatures, "temperatures"),
        "max_tokens": max_tokens,
        "max_length": max_length,
        "max_num_seqs": max_num_seqs,
        "generate_seconds": generate_seconds,
        "heldout_share": heldout_share,
        "online": online,
        "shard_mib": shard_mib,
        "cache_gib": cache_gib,
        "draft_vocab_size": draft_vocab_size,
        "intermediate_size": intermediate_size,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "taps": _whole(taps),
        "format": None if head_format is None else head_format.lower().replace("-", ""),
        "ttt_steps": ttt_steps,
        "loss_decay": loss_decay,
        "batch_tokens": batch_tokens,
        "epochs": epochs,
        "train_seconds": train_seconds,
        "max_steps": max_steps,
        "optimizer": optimizer,
        "learning_rate": learning_rate,
        "matrix_rate": matrix_rate,
        "decay": decay,
        "seed": seed,
        "device": device,
        "dtype": dtype,
        "compile": compile_head,
        "offline": offline,
        "stop_after": stop_after,
        "log_every": log_every,
        "eval_every": eval_every,
        "evaluate": evaluate,
    }
    changes = {name: value for name, value in asked.items() if value is not None}
    if demo:
        changes = demo_settings(model, changes)
    config = HeadTraining(output=output, model=model, **changes)  # pyrefly: ignore
    try:
        with watching() as run:
            done = train_head(config, run.say, run.watch)
    except Stopped as stopped:
        print("stopped; run the same command again to go on", flush=True)
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
        raise ValueError(f"{name}: {text!r} is no list of numbers, such as 0,0.7,1.0") from None


def _whole(text: str | None) -> tuple[int, ...] | None:
    values = _numbers(text, "taps")
    if values is None:
        return None
    if any(value != int(value) for value in values):
        raise ValueError(f"taps: {text!r} are no whole numbers")
    return tuple(int(value) for value in values)
