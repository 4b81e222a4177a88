"""Compares the sizes in config.json with the shapes of a checkpoint's tensors.

Promises: an error names the field of config.json and both numbers. Does not know: how tensors are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from eyas.models.checkpoint import Checkpoint
from eyas.models.spec import ModelSpec
from eyas.models.weights import MTP_MARKER


def check_sizes(spec: ModelSpec, checkpoint: Checkpoint, names: Mapping[str, str]) -> None:
    """Compare the sizes in config.json with the shapes in the files, before a decoder is built.

    names: from `stored_names`. Missing tensors are left to `wanted_tensors`.
    ValueError: a size differs; the text names the field and both numbers.
    """
    _check_num_layers(spec, checkpoint, names)
    sizes = _sizes(spec)
    first_expert_layer = min(spec.expert_layers, default=0)
    first_state_layer = min(spec.state_layers, default=0)
    with_attention = (i for i in range(spec.num_layers) if i not in spec.state_layers)
    first_attention_layer = next(with_attention, 0)
    plain = (i for i in range(spec.num_layers) if i not in spec.expert_layers)
    first_plain_layer = next(plain, spec.num_layers)
    for parameter, rows, columns, layer in (
        ("embedding.weight", "vocab", "hidden", 0),
        ("layers.{layer}.attention.q.weight", "query", "hidden", first_attention_layer),
        ("layers.{layer}.attention.k.weight", "kv", "hidden", first_attention_layer),
        ("layers.{layer}.attention.qkv.weight", "fused", "hidden", 0),
        ("layers.{layer}.attention.q_a.weight", "query latent", "hidden", 0),
        ("layers.{layer}.attention.q_b.weight", "query", "query latent", 0),
        ("layers.{layer}.attention.kv_a.weight", "row", "hidden", 0),
        ("layers.{layer}.attention.kv_b.weight", "of latent", "latent", 0),
        ("layers.{layer}.delta.qkvz.weight", "qkvz", "hidden", first_state_layer),
        ("layers.{layer}.delta.ba.weight", "ba", "hidden", first_state_layer),
        ("layers.{layer}.delta.qkv.weight", "qkv", "hidden", first_state_layer),
        ("layers.{layer}.delta.z.weight", "z", "hidden", first_state_layer),
        ("layers.{layer}.delta.b.weight", "value heads", "hidden", first_state_layer),
        ("layers.{layer}.mlp.gate.weight", "inner", "hidden", first_plain_layer),
        ("layers.{layer}.mlp.gate_up.weight", "fused inner", "hidden", first_plain_layer),
        ("layers.{layer}.mlp.router.weight", "experts", "hidden", first_expert_layer),
        (
            "layers.{layer}.mlp.experts.{expert}.gate.weight",
            "expert inner",
            "hidden",
            first_expert_layer,
        ),
    ):
        if parameter not in names or not {rows, columns} <= sizes.keys():
            continue
        tensor = checkpoint.tensors.get(names[parameter].format(layer=layer, expert=0))
        if tensor is None:
            continue
        described = (sizes[rows], sizes[columns])
        expected = tuple(size for _, size in described)
        if tensor.shape != expected:
            pairs = zip(described, (*tensor.shape, 0, 0), strict=False)
            wrong = [field for (field, size), stored in pairs if size != stored]
            raise ValueError(
                f"{tensor.file}: tensor {tensor.name!r} has shape {list(tensor.shape)}, expected "
                f"{list(expected)} by {' and '.join(wrong)} in config.json; config.json and weights "
                "are of different models"
            )


def _check_num_layers(spec: ModelSpec, checkpoint: Checkpoint, names: Mapping[str, str]) -> None:
    """Raise ValueError if the files hold another number of layers."""
    first_products = ("kv_a",) if spec.latent is not None else ("q", "qkv")
    parameters = [f"layers.{{layer}}.attention.{part}.weight" for part in first_products]
    if spec.state is not None or spec.compressed:  # not every layer has these projections
        parameters = ["layers.{layer}.attention_norm.weight"]
    query = next(names[parameter] for parameter in parameters if parameter in names)
    query_pattern = re.compile(re.escape(query).replace(r"\{layer\}", r"(\d+)"))
    layers = [
        int(match[1])
        for name in checkpoint.tensors
        if (match := query_pattern.fullmatch(name))
        and f"{name[: match.end(1)]}.{MTP_MARKER}" not in checkpoint.tensors
    ]
    last = max(layers, default=None)
    if last is not None and last + 1 != spec.num_layers:
        raise ValueError(
            f"{checkpoint.directory}/config.json: num_hidden_layers is {spec.num_layers}, but the "
            f"files hold {last + 1} layers (the last one has "
            f"{query.format(layer=last)!r}); correct it, or download the checkpoint again"
        )


def _sizes(spec: ModelSpec) -> dict[str, tuple[str, int]]:
    """Return the fields of config.json that a dimension comes from, and its size, by a short name."""
    gated = "2 x " if spec.has_output_gate else ""
    sizes = {
        "hidden": (f"hidden_size ({spec.hidden_size})", spec.hidden_size),
        "vocab": (f"vocab_size ({spec.vocab_size})", spec.vocab_size),
        "inner": (f"intermediate_size ({spec.intermediate_size})", spec.intermediate_size),
        "query": (
            f"{gated}num_attention_heads x head_dim "
            f"({gated}{spec.num_query_heads} x {spec.head_dim})",
            spec.num_query_heads * spec.head_dim * (1 + spec.has_output_gate),
        ),
        "kv": (
            f"num_key_value_heads x head_dim ({spec.num_kv_heads} x {spec.head_dim})",
            spec.num_kv_heads * spec.head_dim,
        ),
        "fused": (
            "(num_attention_heads + 2 x num_key_value_heads) x head_dim "
            f"(({spec.num_query_heads} + 2 x {spec.num_kv_heads}) x {spec.head_dim})",
            (spec.num_query_heads + 2 * spec.num_kv_heads) * spec.head_dim,
        ),
        "fused inner": (
            f"2 x intermediate_size (2 x {spec.intermediate_size})",
            2 * spec.intermediate_size,
        ),
        **_latent_sizes(spec),
    }
    if spec.experts is not None:
        experts = spec.experts
        sizes["experts"] = (f"number of experts ({experts.num_experts})", experts.num_experts)
        sizes["expert inner"] = (
            f"feed-forward size of an expert ({experts.intermediate_size})",
            experts.intermediate_size,
        )
    return sizes | _state_sizes(spec)


def _state_sizes(spec: ModelSpec) -> dict[str, tuple[str, int]]:
    """Return the descriptions and sizes of delta nets that `check_sizes` compares."""
    state = spec.state
    if state is None:
        return {}
    keys = f"linear_num_key_heads x linear_key_head_dim ({state.num_key_heads} x {state.key_dim})"
    values = (
        "linear_num_value_heads x linear_value_head_dim "
        f"({state.num_value_heads} x {state.value_dim})"
    )
    heads = f"linear_num_value_heads ({state.num_value_heads})"
    return {
        "qkvz": (f"2 x {keys} + 2 x {values}", state.convolved + state.output_width),
        "qkv": (f"2 x {keys} + {values}", state.convolved),
        "z": (values, state.output_width),
        "ba": (f"2 x {heads}", 2 * state.num_value_heads),
        "value heads": (heads, state.num_value_heads),
    }


def _latent_sizes(spec: ModelSpec) -> dict[str, tuple[str, int]]:
    """Return the descriptions and sizes of latent attention that `check_sizes` compares."""
    latent, heads = spec.latent, spec.num_query_heads
    if latent is None:
        return {}
    plain, rotated, value = latent.plain_dim, latent.rotated_dim, latent.value_dim
    sizes = {
        "query": (
            "num_attention_heads x (qk_nope_head_dim + qk_rope_head_dim) "
            f"({heads} x ({plain} + {rotated}))",
            heads * latent.query_dim,
        ),
        "latent": (f"kv_lora_rank ({latent.rank})", latent.rank),
        "row": (
            f"kv_lora_rank + qk_rope_head_dim ({latent.rank} + {rotated})",
            latent.row_dim,
        ),
        "of latent": (
            "num_attention_heads x (qk_nope_head_dim + v_head_dim) "
            f"({heads} x ({plain} + {value}))",
            heads * (plain + value),
        ),
    }
    if latent.query_rank is not None:
        sizes["query latent"] = (f"q_lora_rank ({latent.query_rank})", latent.query_rank)
    return sizes
