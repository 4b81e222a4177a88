"""`eyas models`: list the supported architectures, or show the facts of a model or draft head."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyas.cli import options

if TYPE_CHECKING:
    from eyas.llm import LLM


def models(
    model: Annotated[
        str | None,
        typer.Argument(
            help="Model or draft head: 'builtin', a directory or a hub name. Without it, the supported "
            "architectures are listed."
        ),
    ] = None,
    revision: options.Revision = None,
    offline: options.Offline = False,
    as_json: options.Json = False,
) -> None:
    """List the supported architectures, or show the facts of a model or draft head."""
    from eyas.models import locate_model, supported_architectures
    from eyas.models.heads import is_head, locate_head

    if model is not None:
        directory = locate_head(model, revision, offline)
        facts_of = head_facts if is_head(directory) else checkpoint_facts
        facts = facts_of(model, directory)
        print(json.dumps(facts)) if as_json else _show_facts(facts)
        return
    directory = locate_model("builtin")
    builtin = None
    if (directory / "config.json").is_file():
        builtin = checkpoint_facts("builtin", directory)
    architectures = supported_architectures()
    if as_json:
        print(json.dumps({"architectures": architectures, "builtin": builtin}))
        return
    from rich.console import Console

    console = Console()
    console.print("[bold]Supported architectures[/bold]")
    for name in architectures:
        console.print(f"  {name}")
    if builtin is not None:
        console.print()
        _show_facts(builtin)


def checkpoint_facts(name: str, directory: Path) -> dict[str, Any]:
    """Return the facts of a model from its configuration and its file sizes; weights are not read.

    name: of the model, as the user wrote it.
    """
    from eyas.models import num_parameters, read_spec
    from eyas.models.formats import format_of
    from eyas.text import sampling_defaults

    spec, stored = read_spec(directory), format_of(directory)
    kv_numbers = sum(math.prod(store.slot_shape) for store in spec.attention_stores)
    state_bytes = sum(store.num_bytes(0, 2) for store in spec.state_stores)
    return {
        "model": name,
        "architecture": spec.architecture,
        "parameters": num_parameters(spec),
        "weights_bytes": sum(file.stat().st_size for file in directory.glob("*.safetensors")),
        "quantised": None if stored is None else stored.description,
        "layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "query_heads": spec.num_query_heads,
        "kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocabulary": spec.vocab_size,
        "tied_embeddings": spec.tie_embeddings,
        "context": spec.max_position,
        "kv_bytes_per_token_16_bit": 2 * kv_numbers,
        "state_bytes_per_sequence": state_bytes or None,
        "eos_token_ids": list(spec.eos_token_ids),
        **sampling_defaults(directory),
        "chat_template": has_chat_template(directory),
        "draft_head": own_head_kind(name, directory),
        "directory": str(directory),
    }


def head_facts(name: str, directory: Path) -> dict[str, Any]:
    """Return the facts of a draft head from its configuration and the headers of its files."""
    from eyas.models.heads import read_facts

    facts = read_facts(directory)
    return {
        "draft_head": name,
        "kind": facts.kind,
        "parameters": facts.num_parameters,
        "layers": facts.num_layers,
        "hidden_size": facts.hidden_size,
        "target_hidden_size": facts.target_hidden_size,
        "vocabulary": facts.vocab_size,
        "draft_vocabulary": facts.draft_vocab_size,
        "use": f"eyas serve MODEL --draft-model {name}",
        "directory": str(directory),
    }


def own_head_kind(name: str, directory: Path) -> str | None:
    """Return the kind of the model's own draft head; None where it has none."""
    from eyas.builtin import head_path
    from eyas.models import read_spec
    from eyas.models.heads import has_supported_mtp, read_head

    if has_supported_mtp(directory):
        return "mtp"
    head = head_path() if name == "builtin" else None
    if head is None:
        return None
    return read_head(head, read_spec(directory), target_directory=directory).kind


def model_directory(llm: LLM) -> Path:
    """Return the directory of a loaded model's files."""
    from eyas.models import locate_model

    model = llm.config.model
    return locate_model(model.path, model.revision, offline=True)


def has_chat_template(directory: Path) -> bool:
    """Whether the model has a chat template, in a file or in the tokenizer's configuration."""
    from eyas.text import template_sources

    return bool(template_sources(directory))


def _show_facts(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2))
    for key, value in facts.items():
        if value is not None:
            table.add_row(key.replace("_", " "), _readable(key, value))
    Console().print(table)


def _readable(key: str, value: Any) -> str:
    if key == "parameters":
        return f"{value / 1e6:.1f} M"
    if key == "weights_bytes":
        return f"{value / 2**20:.1f} MiB"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return str(value)
