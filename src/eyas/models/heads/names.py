"""The names of a head's parameters in files of EAGLE, SpecForge, SGLang and speculators.

Promises: one canonical name for a tensor of any format; readers use that name.
Does not know: which tensors a head has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from eyas.models.dense import LATENT_ATTENTION
from eyas.models.weights import HARMLESS

LAYER_NAMES = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.q.weight": "self_attn.q_proj.weight",
    "attention.k.weight": "self_attn.k_proj.weight",
    "attention.v.weight": "self_attn.v_proj.weight",
    "attention.o.weight": "self_attn.o_proj.weight",
    "attention.q.bias": "self_attn.q_proj.bias",
    "attention.k.bias": "self_attn.k_proj.bias",
    "attention.v.bias": "self_attn.v_proj.bias",
    "attention.o.bias": "self_attn.o_proj.bias",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    **LATENT_ATTENTION,
    "mlp_norm.weight": "post_attention_layernorm.weight",
    "mlp.gate.weight": "mlp.gate_proj.weight",
    "mlp.up.weight": "mlp.up_proj.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
    "mlp.gate.bias": "mlp.gate_proj.bias",
    "mlp.up.bias": "mlp.up_proj.bias",
    "mlp.down.bias": "mlp.down_proj.bias",
}
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
