"""Which family file serves which architecture name.

Promises: families are imported when asked for; an architecture that is not here is a ValueError
that lists those that are. Does not know: what a family does.

A further family is one file with `read(config) -> ModelSpec` and `CHECKPOINT_NAMES`, and a line
here.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from eyas.models.config_file import ConfigFile
from eyas.models.fields import check_unread, why_not
from eyas.models.spec import ModelSpec

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MiMoForCausalLM": "mimo",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


MODEL_TYPES = {
    "LlamaForCausalLM": ("llama",),
    "MiMoForCausalLM": ("mimo",),
    "MistralForCausalLM": ("mistral",),
    "Qwen2ForCausalLM": ("qwen2",),
    "Qwen3ForCausalLM": ("qwen3",),
}
"""What `model_type` may say in a file of theirs."""


class Family(Protocol):
    """A family module.

    CHECKPOINT_NAMES: parameter name -> name in the checkpoint, both with `{layer}`.
    FIELDS: what it reads of config.json beside `fields.READ`, or may leave unread.
    """

    CHECKPOINT_NAMES: dict[str, str]
    FIELDS: frozenset[str]

    def read(self, config: ConfigFile) -> ModelSpec: ...


def supported_architectures() -> tuple[str, ...]:
    return tuple(sorted(FAMILIES))


def family_of(architecture: str) -> Family:
    return cast(Family, import_module(f"eyas.models.{FAMILIES[architecture]}"))


def _names_a_head(config: ConfigFile, architecture: str) -> bool:
    fields = ("speculators_model_type", "draft_vocab_size", "eagle_config")
    return "eagle" in architecture.lower() or any(name in config.values for name in fields)


def read_spec(directory: Path | str) -> ModelSpec:
    """The facts of the checkpoint in `directory`, from its JSON files alone."""
    config = ConfigFile.of_model(directory)
    names = config.values.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise config.bad("architectures", "is missing; it must name the model's class")
    architecture = names[0]
    if _names_a_head(config, architecture):
        raise ValueError(
            f"{config.path} is of a draft head ({architecture}), not of a model; give the model that "
            "it was made for as --model, and this as --draft-model"
        )
    if architecture not in FAMILIES:
        remote = " (code that a checkpoint brings along is never run)"
        raise ValueError(
            f"{config.path}: architecture {architecture!r} is not supported"
            f"{why_not(architecture, config)}"
            f"{remote if 'auto_map' in config.values else ''}; "
            f"supported: {', '.join(supported_architectures())}"
        )
    kind = config.values.get("model_type")
    if kind is not None and kind not in MODEL_TYPES[architecture]:
        raise config.bad(
            "model_type",
            f"{kind!r} is not that of {architecture} in architectures, and libraries differ in which "
            f"of them they read; correct the wrong one ({architecture} goes with "
            f"{MODEL_TYPES[architecture][0]!r})",
        )
    quantization = config.nested("quantization_config").values
    if quantization:
        method = quantization.get("quant_method", "unknown")
        raise ValueError(
            f"{config.path}: the checkpoint is quantised ({method}), which is not supported; "
            "use the unquantised checkpoint of the same model"
        )
    family = family_of(architecture)
    check_unread(config, family.FIELDS)
    return family.read(config)
