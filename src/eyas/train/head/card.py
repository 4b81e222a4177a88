"""Write the model card of each head: its base model, training, measurements and use.

Promises: README.md with metadata of the Hugging Face hub, made from the run's report alone; it
contains no path of this machine, and only numbers that were measured.
Does not know: training.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eyas.train.head.config import HeadTraining
from eyas.train.head.layouts import TITLES, WHAT_IT_IS, commands

CARD_FILE = "README.md"


def write_cards(
    config: HeadTraining, directories: Mapping[str, Path], report: dict[str, Any]
) -> None:
    """Write a card into the directory of each layout. report: of the run."""
    for layout, directory in directories.items():
        text = card(config, layout, report)
        (directory / CARD_FILE).write_text(text, encoding="utf-8")


def card(config: HeadTraining, layout: str, report: dict[str, Any]) -> str:
    """Return the card of a head: YAML front matter and Markdown."""
    from huggingface_hub import ModelCardData

    title = TITLES[report["format"]]
    tags = ["eyas", "eagle3", report["format"], "speculative-decoding", "draft-model", layout]
    base = report["base_model"]
    data = ModelCardData(
        base_model=base,
        library_name="eyas",
        pipeline_tag="text-generation",
        tags=list(dict.fromkeys(tags)),
    )
    name = base or _local_name(config.model)
    engines = report["heads"][layout]["read_by"]
    head = report["heads"][layout]
    unnamed = (
        ""
        if base or config.is_builtin
        else " The base model was loaded from a local directory: before publishing, set `base_model:` "
        "above to its name on the hub."
    )
    parts = [
        f"---\n{data.to_yaml()}\n---",
        f"# {title} draft head for {name}",
        f"A draft head for speculative decoding of {_linked(base) or name}, trained by "
        "`eyas train head`. eyas generates the same tokens with it as without, in fewer steps. It "
        f"needs its base model.{unnamed}",
        "## Format",
        f"{title}: {WHAT_IT_IS[report['format']]}. File layout `{layout}`, read by "
        f"{', '.join(engines)}. {report['num_parameters']:,} parameters in bfloat16 "
        f"({head['num_bytes']:,} bytes); it reads the states after layers "
        f"{', '.join(map(str, report['taps']))} of {report['num_target_layers']} and proposes "
        f"{report['draft_vocab_size']:,} of {report['vocab_size']:,} tokens.",
        "## Accepted length",
        _measured(report),
        "## Training data",
        _data(config, report),
        "## Training",
        _training(report),
        "## Usage",
        _usage(engines, base, name, config),
        "## Licence",
        "No licence is set; set `license:` above before publishing. The output layer was initialised "
        "with rows of the base model's, and the head was trained on the base model's states and "
        "answers: the licences of the base model and of the prompts may apply.",
    ]
    return "\n\n".join(parts) + "\n"


def _local_name(model: str) -> str:
    return "the model built into eyas" if model == "builtin" else Path(model).expanduser().name


def _linked(base: str | None) -> str | None:
    return f"[{base}](https://huggingface.co/{base})" if base else None


def _measured(report: dict[str, Any]) -> str:
    records = report.get("engine")
    if not records:
        simulated = report["heldout"]
        if simulated is None:
            return "Not measured: the run held out no texts."
        return (
            "Not measured by decoding. Simulated on held-out answers, as consecutive correct greedy "
            "drafts and the token that every step yields: "
            f"{simulated['acceptance_length']:.2f} tokens of {report['settings']['ttt_steps'] + 1}."
        )
    rows = [
        "| drafts | temperature | tokens per step | accepted by depth |",
        "|---|---|---|---|",
    ]
    for record in records:
        depths = ", ".join(f"{100 * share:.0f} %" for share in record["accepted_by_depth"])
        rows.append(
            f"| {record['shape']} | {record['temperature']:g} | {record['tokens_per_step']:.2f} "
            f"| {depths} |"
        )
    return (
        f"Measured by decoding {report['num_eval_prompts']} held-out prompts with eyas. Chain 5 drafts "
        "5 consecutive tokens; tree 5/4/16 has 5 levels, 4 children per node and 16 nodes, including "
        "the root.\n\n" + "\n".join(rows)
    )


def _data(config: HeadTraining, report: dict[str, Any]) -> str:
    data = report["data"]
    lines = []
    if config.prompts:
        temperatures = ", ".join(f"{value:g}" for value in config.temperatures)
        lines.append(
            f"- prompts from `{_source(config.prompts)}`, answered by the base model itself at "
            f"temperatures {temperatures}, up to {config.max_tokens} tokens"
        )
    if config.conversations:
        lines.append(
            f"- conversations from `{_source(config.conversations)}`, with their own answers"
        )
    lines.append(
        f"- {data['texts']:,} texts to train on: {data['tokens']:,} tokens, {data['answer_tokens']:,} "
        f"of them in answers; {data['heldout_texts']:,} held out, {data['left_out']:,} left out"
    )
    lines.append(f"- the draft vocabulary covers {100 * report['coverage']:.2f} % of answer tokens")
    return "\n".join(lines)


def _source(source: str) -> str:
    return source if source.startswith("builtin:") else Path(source).name


def _training(report: dict[str, Any]) -> str:
    settings = report["settings"]
    shown = {
        "steps": report["steps"],
        "seconds": round(report["seconds"]),
        "tokens per step": settings["step_tokens"],
        "levels of training-time test": settings["ttt_steps"],
        "loss factor of a level to the one before": settings["loss_decay"],
        "optimizer": settings["optimizer"],
        "learning rate (AdamW)": settings["rate"],
        "learning rate (Muon)": settings["matrix_rate"]
        if settings["optimizer"] == "muon"
        else None,
        "decay": settings["decay"],
        "seed": settings["seed"],
    }
    rows = [f"| {name} | {value} |" for name, value in shown.items() if value is not None]
    return "\n".join(["| | |", "|---|---|", *rows])


def _usage(engines: list[str], base: str | None, name: str, config: HeadTraining) -> str:
    model = base or ("builtin" if config.model == "builtin" else name)
    parts = ["`DIR` is the directory of these files."]
    for engine, command in commands(engines, model, Path("DIR")).items():
        language = "python" if engine.startswith("SafeAILab") else "sh"
        parts.append(f"{engine}:\n\n```{language}\n{command}\n```")
    return "\n\n".join(parts)
