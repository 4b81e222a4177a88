"""What each parameter of a head is called in the files of EAGLE, SpecForge, SGLang and speculators.

Promises: one canonical name for a tensor whoever wrote it, so that readers ask for it by that name.
Does not know: which of them a head has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

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
"""Of EAGLE heads; a name that is in neither map (fc, fc_norm, input_norm, norm) is itself."""

OLD_NAMES = (
    (re.compile(r"^model\."), ""),
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"^aux_norm_low\."), "fc_norm.0."),
    (re.compile(r"^aux_norm_mid\."), "fc_norm.1."),
    (re.compile(r"^aux_norm_high\."), "fc_norm.2."),
)
UNUSED = re.compile(r"^(d2t|t2d|verifier_norm\.weight|verifier_lm_head\.weight)$")
"""No parameters: the vocabulary map is read by itself, the target's own copies not at all."""


def file_name(parameter: str) -> str:
    """The canonical name in an EAGLE head's file (that of the speculators format)."""
    if parameter in HEAD_NAMES:
        return HEAD_NAMES[parameter]
    layer = re.match(r"layers\.\d+\.", parameter)
    return parameter if layer is None else layer.group() + LAYER_NAMES[parameter[layer.end() :]]


def stored_names(names: Iterable[str], directory: Path) -> dict[str, str]:
    """Canonical name -> name in the file, of all that may be a parameter or the vocabulary map."""
    found: dict[str, str] = {}
    for name in names:
        canonical = name
        for pattern, replacement in OLD_NAMES:
            canonical = pattern.sub(replacement, canonical)
        if HARMLESS.search(name):
            continue
        if canonical in found:
            raise ValueError(f"{directory} holds {found[canonical]!r} and {name!r}, which are one")
        found[canonical] = name
    return found
