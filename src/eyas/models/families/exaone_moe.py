"""K-EXAONE: norms of heads, windows in three of four layers, and only layers with a window rotate;
DeepSeek-V3's experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.expert_fields import read_corrected_experts
from eyas.models.families import dense, exaone4
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.names_with(
    {
        **dense.EXPERT_NAMES,
        **dense.SHARED_EXPERT_NAMES,
        "mlp.router.correction": "mlp.e_score_correction_bias",
    }
)
FIELDS = exaone4.FIELDS | {
    *("first_k_dense_replace", "mlp_layer_types", "num_experts", "num_experts_per_tok"),
    *("num_shared_experts", "moe_intermediate_size", "norm_topk_prob", "routed_scaling_factor"),
    *("n_group", "topk_group", "scoring_func", "topk_method", "output_router_logits"),
    "is_moe_layer",
}
DEFAULTS: dict[str, Any] = {
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 1024,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "routed_scaling_factor": 2.5,
}
"""transformers' defaults of fields that a file may omit; EXAONE 4 has the others."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    config.require("scoring_func", "sigmoid", "sigmoid", "sigmoid is")
    config.require("topk_method", "noaux_tc", "noaux_tc", "noaux_tc is")
    spec = exaone4.read(config)
    names = {
        "n_routed_experts": config.count("num_experts"),
        "n_shared_experts": config.index("num_shared_experts", 1),
    }
    return replace(
        spec,
        traits=replace(spec.traits, norms="input"),
        experts=read_corrected_experts(ConfigFile(config.path, {**config.values, **names})),
        expert_layers=_expert_layers(config, spec.num_layers),
    )


def _expert_layers(config: ConfigFile, num_layers: int) -> frozenset[int]:
    """Return the layers with experts: those that a field lists, or all after the first dense ones."""
    first = config.index("first_k_dense_replace", 1)
    kinds = config.values.get("mlp_layer_types")
    flags = config.values.get("is_moe_layer")
    if kinds is None and flags is not None:
        names = {True: "sparse", False: "dense"}
        kinds = [names.get(each) for each in flags] if isinstance(flags, list) else flags
    if kinds is None:
        return frozenset(range(first, num_layers))
    is_list = isinstance(kinds, list) and len(kinds) == num_layers
    if not is_list or any(kind not in ("dense", "sparse") for kind in kinds):
        field = (
            "is_moe_layer" if config.values.get("mlp_layer_types") is None else "mlp_layer_types"
        )
        raise config.error(
            field, f"must say for each of {num_layers} layers whether it has experts"
        )
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == "sparse")
