"""Phi-3, Phi-3.5 and Phi-4: the Llama layer with fused q, k, v and fused gate, up, and longrope.

With longrope the long factors hold if more positions are served than the model was trained for at
first (`max_model_len` above original_max_position_embeddings), and the short ones otherwise, for texts
of any length: a row's angles must not depend on how long the text becomes. Unless more are asked for,
no more are served, so that each text has the factors that transformers gives it.
"""

from __future__ import annotations

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.names_with(
    dense.FUSED_QKV | dense.FUSED_GATE_UP, *dense.QKV, *dense.GATE_UP
)
FIELDS = frozenset(("attention_bias", "sliding_window", "full_attn_mod"))
"""attention_bias is ignored: there is none, as in transformers."""
DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    config.require("full_attn_mod", 1, 1, "1 is: every layer attends in the same way")
    return dense.read_dense(
        config,
        window=config.window(),
        has_partial_rope=True,
        has_longrope=True,
    )
