"""DeepSeek-V4: compressed attention, hyper-connections, experts that a table names in some layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eyas.layers.compressed_attention import CompressedSizes
from eyas.layers.hyper_connections import HyperSizes
from eyas.layers.rope import RopeSpec
from eyas.models.config_file import ConfigFile
from eyas.models.expert_fields import read_experts
from eyas.models.families import dense
from eyas.models.rope_fields import max_position, read_rope
from eyas.models.spec import LayerTraits, ModelSpec
from eyas.ops.gate import SILU_LIMIT

_ATTENTION = {
    "q_a": "wq_a",
    "q_a_norm": "q_norm",
    "q_b": "wq_b",
    "kv": "wkv",
    "kv_norm": "norm",
    "o_a": "wo_a",
    "o_b": "wo_b",
    "compressor.kv": "compressor.wkv",
    "compressor.gate": "compressor.wgate",
    "compressor.norm": "compressor.norm",
    "indexer.kv": "indexer.compressor.wkv",
    "indexer.gate": "indexer.compressor.wgate",
    "indexer.norm": "indexer.compressor.norm",
    "indexer.q": "indexer.wq_b",
    "indexer.weights": "indexer.weights_proj",
}
_MLP = {
    f"mlp.{block}.{part}.weight": f"ffn.{name}.{number}.weight"
    for block, name in (("experts.{expert}", "experts.{expert}"), ("shared", "shared_experts"))
    for part, number in (("gate", "w1"), ("down", "w2"), ("up", "w3"))
}
_WITHIN_LAYER = {
    **{f"attention.{part}.weight": f"attn.{name}.weight" for part, name in _ATTENTION.items()},
    **_MLP,
    "attention.sinks": "attn.attn_sink",
    "attention.compressor.position_bias": "attn.compressor.ape",
    "attention.indexer.position_bias": "attn.indexer.compressor.ape",
    "attention_norm.weight": "attn_norm.weight",
    "mlp_norm.weight": "ffn_norm.weight",
    "mlp.router.weight": "ffn.gate.weight",
    "mlp.router.correction": "ffn.gate.bias",
    "mlp.router.table": "ffn.gate.tid2eid",
    **{f"attention_connection.{part}": f"hc_attn_{part}" for part in ("fn", "base", "scale")},
    **{f"mlp_connection.{part}": f"hc_ffn_{part}" for part in ("fn", "base", "scale")},
}
CHECKPOINT_NAMES = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "head.weight",
    **{f"collapse.{part}": f"model.hc_head.hc_{part}" for part in ("fn", "base", "scale")},
    **{
        f"layers.{{layer}}.{parameter}": f"model.layers.{{layer}}.{name}"
        for parameter, name in _WITHIN_LAYER.items()
    },
}
"""As transformers saves a model."""
PUBLISHED_NAMES = {
    parameter: name.removeprefix("model.").replace("attn.norm", "attn.kv_norm")
    for parameter, name in CHECKPOINT_NAMES.items()
} | {
    "embedding.weight": "embed.weight",
    **{f"collapse.{part}": f"hc_head_{part}" for part in ("fn", "base", "scale")},
}
"""As the authors' files name them."""
FIELDS = frozenset(
    (
        *("q_lora_rank", "o_groups", "o_lora_rank", "sliding_window", "qk_rope_head_dim"),
        *("compress_rates", "compress_ratios", "compress_rope_theta", "compress_rate_csa"),
        *("compress_rate_hca", "index_n_heads", "index_head_dim", "index_topk"),
        *("hc_mult", "hc_sinkhorn_iters", "hc_eps", "mlp_layer_types", "num_hash_layers"),
        *("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size"),
        *("scoring_func", "norm_topk_prob", "routed_scaling_factor", "swiglu_limit"),
        *("topk_method", "attention_bias", "mlp_bias", "expert_dtype"),
    )
)
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 1,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "sliding_window": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 2048,
    "routed_scaling_factor": 1.5,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "compress_rope_theta": 160000.0,
    "max_position_embeddings": 1048576,
}
"""transformers' defaults of fields that a file may omit."""
WINDOW, SPARSE, HEAVY = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
RATES = {SPARSE: 4, HEAVY: 128}
RATE_FIELDS = {SPARSE: "compress_rate_csa", HEAVY: "compress_rate_hca"}
NUM_TABLE_LAYERS = 3


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    config.require("num_key_value_heads", 1, 1, "1 is")
    config.require("n_shared_experts", 1, 1, "1 is")
    config.require("scoring_func", "sqrtsoftplus", "sqrtsoftplus", "sqrtsoftplus is")
    config.require("norm_topk_prob", True, True, "true is")
    config.require("topk_method", "noaux_tc", "noaux_tc", "noaux_tc is")
    config.require("swiglu_limit", SILU_LIMIT, SILU_LIMIT, f"{SILU_LIMIT} is")
    config.require("tie_word_embeddings", False, False, "false is")
    for field in ("attention_bias", "mlp_bias"):
        config.require(field, False, False, "false is")
    num_layers = config.count("num_hidden_layers")
    kinds = _attention_kinds(config, num_layers)
    main, compress = _ropes(config)
    size = config.count("moe_intermediate_size")
    plain = {
        **config.values,
        "head_dim": main.head_dim,
        "intermediate_size": size,
        "partial_rotary_factor": None,
        "rope_parameters": None,
        "rope_scaling": None,
        "layer_types": None,
    }
    spec = dense.read_dense(
        ConfigFile(config.path, plain),
    )
    experts = read_experts(
        config,
        number="n_routed_experts",
        size="moe_intermediate_size",
        routing={"scoring": "sqrtsoftplus", "scale": config.number("routed_scaling_factor")},
        has_correction=True,
        shared_size=config.count("n_shared_experts") * size,
    )
    window = config.count("sliding_window")
    return replace(
        spec,
        head_dim=config.count("head_dim"),
        rope=compress,
        window_rope=main,
        max_position=max_position(config, compress),
        windows=tuple(window if kind == WINDOW else None for kind in kinds),
        experts=experts,
        expert_layers=frozenset(range(num_layers)),
        table_layers=_table_layers(config, num_layers),
        compressed=_compressed(config, kinds),
        hyper=HyperSizes(
            config.count("hc_mult"), config.count("hc_sinkhorn_iters"), config.number("hc_eps")
        ),
        traits=LayerTraits(activation="clamped_silu", has_sinks=True),
    )


def _attention_kinds(config: ConfigFile, num_layers: int) -> list[str]:
    """Return each layer's kind of attention, from `layer_types` or from `compress_ratios`."""
    kinds = config.values.get("layer_types")
    if kinds is None and (ratios := config.values.get("compress_ratios")) is not None:
        by_ratio = {0: WINDOW} | {rate: kind for kind, rate in RATES.items()}
        if not isinstance(ratios, list) or any(ratio not in by_ratio for ratio in ratios):
            raise config.error(
                "compress_ratios", f"must list {', '.join(map(str, by_ratio))} alone"
            )
        kinds = [by_ratio[ratio] for ratio in ratios]
    if kinds is None:
        kinds = [HEAVY, HEAVY, *[HEAVY, SPARSE] * num_layers]
    if not isinstance(kinds, list) or len(kinds) < num_layers:
        raise config.error("layer_types", f"must list {num_layers} layers")
    kinds = kinds[:num_layers]
    if unknown := [kind for kind in kinds if kind not in (WINDOW, *RATES)]:
        raise config.error("layer_types", f"{unknown[0]!r} is not supported")
    return kinds


def _table_layers(config: ConfigFile, num_layers: int) -> frozenset[int]:
    """Return the layers whose experts a table names."""
    kinds = config.values.get("mlp_layer_types")
    if kinds is None:
        return frozenset(range(min(num_layers, config.index("num_hash_layers", NUM_TABLE_LAYERS))))
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise config.error("mlp_layer_types", f"must list {num_layers} layers")
    if unknown := [kind for kind in kinds if kind not in ("hash_moe", "moe")]:
        raise config.error("mlp_layer_types", f"{unknown[0]!r} is not supported")
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == "hash_moe")


def _compressed(config: ConfigFile, kinds: list[str]) -> tuple[CompressedSizes, ...]:
    """Return the sizes of each layer's attention."""
    num_heads, head_dim = config.count("num_attention_heads"), config.count("head_dim")
    num_groups = config.count("o_groups")
    if num_heads % num_groups:
        raise config.error("o_groups", f"{num_groups} must divide {num_heads} attention heads")
    plain = CompressedSizes(
        num_heads,
        head_dim,
        config.count("q_lora_rank"),
        config.count("sliding_window"),
        num_groups,
        config.count("o_lora_rank"),
    )
    written = config.nested("compress_rates")
    rates = {
        kind: config.count(RATE_FIELDS[kind], written.count(kind, rate))
        for kind, rate in RATES.items()
    }
    sparse = replace(
        plain,
        rate=rates[SPARSE],
        overlaps=True,
        num_index_heads=config.count("index_n_heads"),
        index_dim=config.count("index_head_dim"),
        num_chosen=config.count("index_topk"),
    )
    by_kind = {WINDOW: plain, SPARSE: sparse, HEAVY: replace(plain, rate=rates[HEAVY])}
    return tuple(by_kind[kind] for kind in kinds)


def _ropes(config: ConfigFile) -> tuple[RopeSpec, RopeSpec]:
    """Return the rope of layers with a window alone, and that of layers with compressed entries.

    Both rotate the last dimensions of a head. Positions are scaled in the second alone, whose cosine
    and sine are not (`attention_factor` 1 unless the file gives another, or a rope for each kind).
    """
    head_dim = config.count("head_dim")
    rope = config.nested("rope_parameters").values or config.nested("rope_scaling").values
    main: dict[str, Any] = {"rope_theta": config.number("rope_theta", 10000.0)}
    compress: dict[str, Any] = {"attention_factor": 1.0, **rope}
    compress["rope_theta"] = config.number("compress_rope_theta")
    if isinstance(rope.get("main"), dict) and isinstance(rope.get("compress"), dict):
        main, compress = rope["main"], dict(rope["compress"])
    factor = config.optional_number("partial_rotary_factor") or compress.get(
        "partial_rotary_factor"
    )
    rotated = config.count("qk_rope_head_dim", int(head_dim * (factor or 64 / 512)))
    if rotated % 2 or not 0 < rotated <= head_dim:
        raise config.error("qk_rope_head_dim", f"must be even, 2 to {head_dim}, not {rotated}")
    specs = []
    for values in (main, compress):
        own = {k: v for k, v in values.items() if k != "partial_rotary_factor"}
        fields = {**config.values, "rope_parameters": own, "rope_scaling": None}
        fields |= {"partial_rotary_factor": None}
        specs.append(read_rope(ConfigFile(config.path, fields), rotated))
    return specs[0], specs[1]
