"""The names of a head's parameters in files of EAGLE, SpecForge, SGLang and speculators.

Promises: one canonical name for a tensor of any format; readers use that name.
Does not know: which tensors a head has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from eyas.models.families.dense import CHECKPOINT_NAMES
from eyas.models.weights import HARMLESS

LAYER_NAMES = {
    parameter.removeprefix("layers.{layer}."): name.removeprefix("model.layers.{layer}.")
    for parameter, name in CHECKPOINT_NAMES.items()
}
"""Names within a layer: those of Llama."""
HEAD_NAMES = {
    "embedding.weight": "embed_tokens.weight",
    "embedding_norm.weight": "layers.0.input_layernorm.weight",
    "feature_norm.weight": "layers.0.hidden_norm.weight",
    "head.weight": "lm_head.weight",
}
"""Names of EAGLE heads. Parameters in neither map (fc, fc_norm, input_norm, norm) keep their name."""

OLD_NAMES = (
    (re.compile(r"^model\."), ""),
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"^aux_norm_low\."), "fc_norm.0."),
    (re.compile(r"^aux_norm_mid\."), "fc_norm.1."),
    (re.compile(r"^aux_norm_high\."), "fc_norm.2."),
)
UNUSED = re.compile(r"^(d2t|t2d|verifier_norm\.weight|verifier_lm_head\.weight)$")
"""Tensors that are no parameters: the vocabulary maps, which `vocabulary` reads, and copies of the
target's weights, which are not read."""


def file_name(parameter: str) -> str:
    """Return the canonical tensor name of an EAGLE head's parameter: that of the speculators format."""
    if parameter in HEAD_NAMES:
        return HEAD_NAMES[parameter]
    layer = re.match(r"layers\.\d+\.", parameter)
    return parameter if layer is None else layer.group() + LAYER_NAMES[parameter[layer.end() :]]


def stored_names(names: Iterable[str], directory: Path) -> dict[str, str]:
    """Return canonical name -> name in the file, for all tensors but the harmless buffers.

    ValueError: two names stand for the same parameter.
    """
    stored: dict[str, str] = {}
    for name in names:
        if HARMLESS.search(name):
            continue
        canonical = name
        for pattern, replacement in OLD_NAMES:
            canonical = pattern.sub(replacement, canonical)
        if canonical in stored:
            raise ValueError(
                f"{directory} holds {stored[canonical]!r} and {name!r}, which name the same parameter"
            )
        stored[canonical] = name
    return stored
