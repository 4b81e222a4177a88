"""The table of supported architectures; for each of them, the family module that reads it.

Promises: a family module is imported on first use; an unsupported architecture is a ValueError that
lists the supported ones. Does not know: what a family reads.

To add a family, write one module with the members of `Family` and add a line to `ARCHITECTURES`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from eyas.models.config_file import ConfigFile
from eyas.models.fields import check_unread, unsupported_reason
from eyas.models.formats import read_format
from eyas.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Architecture:
    """A supported value of `architectures[0]` in config.json.

    family: module of `eyas.models` that reads it. model_type: the value that `model_type` must have
    where the file has that field. has_vision: the text model is inside a model of images, whose other
    parts are not loaded. other_types: further values of `model_type`.
    """

    family: str
    model_type: str
    has_vision: bool = False
    other_types: tuple[str, ...] = ()


ARCHITECTURES = {
    "CwmForCausalLM": Architecture("cwm", "cwm"),
    "DeepseekV2ForCausalLM": Architecture("deepseek_v2", "deepseek_v2"),
    "DeepseekV3ForCausalLM": Architecture("deepseek_v3", "deepseek_v3", other_types=("kimi_k2",)),
    "DeepseekV4ForCausalLM": Architecture("deepseek_v4", "deepseek_v4"),
    "Dots1ForCausalLM": Architecture("dots1", "dots1"),
    "Ernie4_5ForCausalLM": Architecture("ernie4_5", "ernie4_5"),
    "Ernie4_5_MoeForCausalLM": Architecture("ernie4_5_moe", "ernie4_5_moe"),
    "Exaone4ForCausalLM": Architecture("exaone4", "exaone4"),
    "GemmaForCausalLM": Architecture("gemma", "gemma"),
    "ExaoneMoEForCausalLM": Architecture("exaone_moe", "exaone_moe"),
    "ExaoneMoeForCausalLM": Architecture("exaone_moe", "exaone_moe"),
    "FlexOlmoForCausalLM": Architecture("flex_olmo", "flex_olmo"),
    "Gemma3ForCausalLM": Architecture("gemma3", "gemma3_text"),
    "Gemma3ForConditionalGeneration": Architecture("gemma3", "gemma3", has_vision=True),
    "Glm4ForCausalLM": Architecture("glm4", "glm4"),
    "Glm4MoeForCausalLM": Architecture("glm4_moe", "glm4_moe"),
    "Glm4MoeLiteForCausalLM": Architecture("glm4_moe_lite", "glm4_moe_lite"),
    "Glm4vForConditionalGeneration": Architecture("glm4", "glm4v", has_vision=True),
    "Glm4vMoeForConditionalGeneration": Architecture("glm4_moe", "glm4v_moe", has_vision=True),
    "GlmForCausalLM": Architecture("glm4", "glm"),
    "GptOssForCausalLM": Architecture("gpt_oss", "gpt_oss"),
    "GraniteForCausalLM": Architecture("granite", "granite"),
    "GraniteMoeForCausalLM": Architecture("granite_moe", "granitemoe"),
    "GraniteMoeHybridForCausalLM": Architecture("granite_moe", "granitemoehybrid"),
    "GraniteMoeSharedForCausalLM": Architecture("granite_moe", "granitemoeshared"),
    "HeliumForCausalLM": Architecture("helium", "helium"),
    "HyperCLOVAXForCausalLM": Architecture("hyperclovax", "hyperclovax"),
    "InternLM3ForCausalLM": Architecture("internlm3", "internlm3"),
    "IQuestCoderForCausalLM": Architecture("internlm3", "iquestcoder"),
    "KimiK25ForConditionalGeneration": Architecture("deepseek_v3", "kimi_k25", has_vision=True),
    "LlamaForCausalLM": Architecture("llama", "llama", other_types=("internlm3", "iquestcoder")),
    "MiMoForCausalLM": Architecture("qwen2", "mimo"),
    "MiniMaxM2ForCausalLM": Architecture("minimax_m2", "minimax_m2", other_types=("minimax",)),
    "MinistralForCausalLM": Architecture("llama", "ministral"),
    "MistralForCausalLM": Architecture("llama", "mistral"),
    "Mistral3ForConditionalGeneration": Architecture("llama", "mistral3", has_vision=True),
    "MixtralForCausalLM": Architecture("mixtral", "mixtral"),
    "Olmo2ForCausalLM": Architecture("olmo2", "olmo2"),
    "Olmo3ForCausalLM": Architecture("olmo3", "olmo3"),
    "OlmoeForCausalLM": Architecture("olmoe", "olmoe"),
    "Phi3ForCausalLM": Architecture("phi3", "phi3"),
    "Qwen2ForCausalLM": Architecture("qwen2", "qwen2"),
    "Qwen2MoeForCausalLM": Architecture("qwen2_moe", "qwen2_moe"),
    "Qwen2VLForConditionalGeneration": Architecture("qwen2", "qwen2_vl", has_vision=True),
    "Qwen2_5_VLForConditionalGeneration": Architecture("qwen2", "qwen2_5_vl", has_vision=True),
    "Qwen3ForCausalLM": Architecture("qwen3", "qwen3"),
    "Qwen3MoeForCausalLM": Architecture("qwen3_moe", "qwen3_moe"),
    "Qwen3VLForConditionalGeneration": Architecture("qwen3", "qwen3_vl", has_vision=True),
    "Qwen3VLMoeForConditionalGeneration": Architecture(
        "qwen3_moe", "qwen3_vl_moe", has_vision=True
    ),
    "Qwen3NextForCausalLM": Architecture("qwen3_next", "qwen3_next"),
    "Qwen3_5ForCausalLM": Architecture("qwen3_5", "qwen3_5_text"),
    "Qwen3_5ForConditionalGeneration": Architecture("qwen3_5", "qwen3_5", has_vision=True),
    "Qwen3_5MoeForCausalLM": Architecture("qwen3_5", "qwen3_5_moe_text"),
    "Qwen3_5MoeForConditionalGeneration": Architecture("qwen3_5", "qwen3_5_moe", has_vision=True),
    "SeedOssForCausalLM": Architecture("seed_oss", "seed_oss"),
    "SmolLM3ForCausalLM": Architecture("smollm3", "smollm3"),
    "SolarOpenForCausalLM": Architecture("glm4_moe", "solar_open"),
    "YoutuForCausalLM": Architecture("youtu", "youtu"),
}
_VISION_TENSORS = re.compile(
    r"^(model\.)?(visual|vision_tower|vision_model|multi_modal_projector|mm_projector)\."
)


class Family(Protocol):
    """The members of a family module.

    CHECKPOINT_NAMES: parameter name of `Decoder.parameters` -> tensor name in the checkpoint; `{layer}`
    stands for the layer's index in both.
    FIELDS: fields of config.json that the family reads, or may safely ignore, in addition to
    `fields.READ`. A model with any other field that may change its numbers is refused.
    """

    CHECKPOINT_NAMES: dict[str, str]
    FIELDS: frozenset[str]

    def read(self, config: ConfigFile) -> ModelSpec:
        """Return the model's facts. ValueError: a field is invalid, or its value is not supported."""
        ...


def supported_architectures() -> tuple[str, ...]:
    """Return the supported values of `architectures[0]` in config.json, in alphabetical order."""
    return tuple(sorted(ARCHITECTURES))


def family_of(architecture: str) -> Family:
    """Import and return the family module of a supported architecture."""
    return cast(Family, import_module(f"eyas.models.families.{ARCHITECTURES[architecture].family}"))


def checkpoint_names(architecture: str, tensors: Container[str]) -> Mapping[str, str]:
    """Return the names of a family's parameters in a checkpoint with these tensors.

    They are CHECKPOINT_NAMES, or the family's PUBLISHED_NAMES if it has other names for the files of
    the model's authors and the embedding is there under that name.
    """
    published = published_names(architecture)
    is_published = published["embedding.weight"] in tensors
    return published if is_published else family_of(architecture).CHECKPOINT_NAMES


def published_names(architecture: str) -> Mapping[str, str]:
    """Return the names of a family's parameters in the files of the model's authors."""
    family = family_of(architecture)
    return getattr(family, "PUBLISHED_NAMES", family.CHECKPOINT_NAMES)


def ignored_tensors(architecture: str) -> re.Pattern[str] | None:
    """Return the names of tensors that belong to parts which are not loaded."""
    return _VISION_TENSORS if ARCHITECTURES[architecture].has_vision else None


def describes_head(config: ConfigFile) -> bool:
    """Whether a config.json says that it is of a draft head. That of an EAGLE-1 head may not."""
    fields = ("speculators_model_type", "draft_vocab_size", "eagle_config")
    names = config.values.get("architectures")
    names_eagle = isinstance(names, list) and any("eagle" in str(name).lower() for name in names)
    return names_eagle or any(field in config.values for field in fields)


def read_spec(directory: Path | str) -> ModelSpec:
    """Read the facts of the checkpoint in `directory` from its JSON files; weights are not opened.

    ValueError: config.json is missing or malformed, describes a draft head or an unknown
    quantisation, or asks for something that is not supported.
    """
    config = ConfigFile.of_model(directory)
    names = config.values.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise config.error("architectures", "is missing; it must name the model's class")
    architecture = names[0]
    if describes_head(config):
        raise ValueError(
            f"{config.path} is of a draft head ({architecture}), not of a model; give the model that "
            "it was made for as --model, and this as --draft-model"
        )
    if architecture not in ARCHITECTURES:
        remote = " (code that a checkpoint brings along is never run)"
        raise ValueError(
            f"{config.path}: architecture {architecture!r} is not supported"
            f"{unsupported_reason(architecture, config)}"
            f"{remote if 'auto_map' in config.values else ''}; "
            f"supported: {', '.join(supported_architectures())}"
        )
    model_type = config.values.get("model_type")
    known = ARCHITECTURES[architecture]
    expected = known.model_type
    if model_type not in (None, expected, *known.other_types):
        raise config.error(
            "model_type",
            f"{model_type!r} is not that of {architecture} in architectures, and libraries differ in "
            f"which of them they read; correct the wrong one ({architecture} goes with {expected!r})",
        )
    read_format(config)  # called for its checks; `Checkpoint.open` uses the format
    if ARCHITECTURES[architecture].has_vision:
        config = config.text_config()
    family = family_of(architecture)
    check_unread(config, family.FIELDS)
    return family.read(config)
