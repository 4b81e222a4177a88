"""Write a draft head to a directory in the format of SafeAILab, of SpecForge (SGLang) or speculators.

Promises: `read_head` reads a written head back to the same facts and numbers; a head that the readers
of a format would run differently is refused.
Does not know: how the head was trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import save_file

from eyas.layers.rope import RopeSpec
from eyas.models.heads.hyper import parameter_shapes
from eyas.models.heads.names import file_name
from eyas.models.heads.spec import HeadSpec, default_taps

HeadFormat = Literal["safeailab", "specforge", "speculators"]

PROPOSED_TOKENS = 5
"""The draft length in tokens that the speculators format suggests to its readers."""


def save_head(
    directory: Path | str,
    spec: HeadSpec,
    tensors: Mapping[str, torch.Tensor],
    *,
    format: HeadFormat,  # noqa: A002
    dtype: torch.dtype = torch.bfloat16,
    target: str | None = None,
) -> None:
    """Write config.json and model.safetensors into `directory`, which is created where it is missing.

    tensors: one for each of `parameter_shapes`, and "d2t" (int64 [draft vocabulary], target id
    minus draft id) where the draft vocabulary is smaller than the target's. dtype: to store them in.
    target: hub name of the target model; only the speculators format has a field for it.
    ValueError: the format cannot hold this head.
    """
    if format not in get_args(HeadFormat):
        raise ValueError(f"format {format!r} is unknown; use {', '.join(get_args(HeadFormat))}")
    if gaps := format_gaps(spec, format):
        raise ValueError(
            f"format {format!r} cannot hold a head with {', '.join(gaps)}: its readers would run it "
            "differently; use another format"
        )
    needs_map = spec.draft_vocab_size != spec.vocab_size
    expected = parameter_shapes(spec)
    if needs_map:
        expected["d2t"] = (spec.draft_vocab_size,)
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert given == expected, f"tensors differ from the spec's: {set(given) ^ set(expected)}"
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name == "d2t":
            continue
        canonical = file_name(name)
        if format != "speculators" and spec.kind == "eagle3":
            canonical = canonical.replace("layers.0.", "midlayer.", 1)
        stored[canonical] = tensor.detach().to("cpu", dtype).contiguous().clone()
    if needs_map:
        offsets_V = tensors["d2t"].detach().to("cpu", torch.int64).contiguous()
        ids_V = offsets_V + torch.arange(spec.draft_vocab_size)
        assert bool((ids_V[1:] > ids_V[:-1]).all()) and int(ids_V[0]) >= 0
        assert int(ids_V[-1]) < spec.vocab_size, "d2t holds offsets: target id minus draft id"
        stored["d2t"] = offsets_V.clone()
        stored["t2d"] = torch.zeros(spec.vocab_size, dtype=torch.bool)
        stored["t2d"][ids_V] = True
    config = _speculators_config(spec, target) if format == "speculators" else _flat(spec, format)
    config["torch_dtype"] = str(dtype).removeprefix("torch.")
    if spec.calibration:
        beta = {str(temperature): value for temperature, value in spec.calibration.items()}
        config["eyas"] = {"noise_beta": beta}
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def format_gaps(spec: HeadSpec, format: HeadFormat) -> list[str]:  # noqa: A002
    """Return the features of this head that readers of the format ignore; [] if it can be written."""
    is_default = spec.taps == default_taps(spec.num_target_layers)
    is_plain = spec.kind == "eagle" or is_default
    is_speculators = format == "speculators"
    is_safeailab = format == "safeailab"
    checks = {
        "the layout of an MTP layer, which lives in its model's checkpoint": spec.kind == "mtp",
        "the layout of EAGLE-1": is_speculators and spec.kind == "eagle",
        "layers to read of its own": is_safeailab and not is_plain,
        "fc_norm": is_safeailab and spec.fc_norm,
        "input_norm": is_safeailab and spec.input_norm,
        "norm_output": is_safeailab and spec.norm_output,
        "norm_before_residual": not is_speculators and spec.norm_before_residual,
        "qk_norm": not is_speculators and spec.qk_norm,
        "a bias in fc": spec.kind == "eagle3" and format != "specforge" and spec.fc_bias,
        "biases in q, k and v": spec.qkv_bias
        and (format == "specforge" or (is_speculators and not spec.output_bias)),
        "a bias in o": spec.output_bias and not (is_speculators and spec.qkv_bias),
        "biases in the feed-forward": spec.mlp_bias and not (is_speculators and not spec.qk_norm),
        "more than one layer": not is_speculators and spec.num_layers > 1,
        "windows": is_safeailab and any(spec.windows),
        "windows of several sizes": len({window for window in spec.windows if window}) > 1,
        "both fc_norm and input_norm": spec.fc_norm and spec.input_norm,
    }
    return [name for name, is_gap in checks.items() if is_gap]


def _layer_config(spec: HeadSpec) -> dict[str, Any]:
    """Return the fields of the layers, which are the same in every format."""
    config: dict[str, Any] = {
        "model_type": "qwen3" if spec.qk_norm else "llama",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_query_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": spec.norm_epsilon,
        "attention_bias": spec.qkv_bias,
        "mlp_bias": spec.mlp_bias,
        "tie_word_embeddings": False,
        **_rope_config(spec.rope, spec.max_position),
    }
    if any(spec.windows):
        config["sliding_window"] = next(window for window in spec.windows if window)
        config["use_sliding_window"] = True
        config["layer_types"] = [
            "sliding_attention" if window else "full_attention" for window in spec.windows
        ]
    return config


def _rope_config(rope: RopeSpec, max_position: int) -> dict[str, Any]:
    """Return the rope fields of transformers 5 together with those of the releases before it."""
    values: dict[str, Any] = {"rope_type": rope.kind}
    if rope.kind != "default":
        values["factor"] = rope.factor
    if rope.kind in ("llama3", "yarn"):
        values["original_max_position_embeddings"] = rope.original_max_position
    if rope.kind == "llama3":
        values["low_freq_factor"] = rope.low_freq_factor
        values["high_freq_factor"] = rope.high_freq_factor
    if rope.kind == "yarn":
        values["beta_fast"] = rope.beta_fast
        values["beta_slow"] = rope.beta_slow
        values["truncate"] = rope.truncate
        values["attention_factor"] = rope.attention_factor
    written = round(max_position / rope.factor) if rope.kind == "linear" else max_position
    config: dict[str, Any] = {
        "max_position_embeddings": written,
        "rope_theta": rope.theta,
        "rope_parameters": {**values, "rope_theta": rope.theta},
    }
    if rope.kind != "default":
        config["rope_scaling"] = values
    return config


def _flat(spec: HeadSpec, format: HeadFormat) -> dict[str, Any]:  # noqa: A002
    config = {"architectures": ["LlamaForCausalLM"], **_layer_config(spec)}
    if spec.kind == "eagle":
        config["bias"] = spec.fc_bias
        if format == "specforge":
            config["architectures"] = ["LlamaForCausalLMEagle"]
        return config
    config["draft_vocab_size"] = spec.draft_vocab_size
    config["target_hidden_size"] = spec.target_hidden_size
    if format == "safeailab":
        if spec.qkv_bias:
            config |= {"qkv_bias": config.pop("attention_bias")}
        return config
    inner: dict[str, Any] = {"use_aux_hidden_state": True}
    # Readers agree on the default layers, but differ by one in how they count listed layers.
    if spec.taps != default_taps(spec.num_target_layers):
        inner["eagle_aux_hidden_state_layer_ids"] = [tap - 1 for tap in spec.taps]
    return config | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "bias": spec.fc_bias,
        "fc_norm": spec.fc_norm,
        "norm_before_fc": spec.input_norm,
        "norm_output": spec.norm_output,
        "num_aux_hidden_states": len(spec.taps),
        "eagle_config": inner,
    }


def _speculators_config(spec: HeadSpec, target: str | None) -> dict[str, Any]:
    is_narrow = spec.hidden_size != spec.target_hidden_size
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": _layer_config(spec),
        "draft_vocab_size": spec.draft_vocab_size,
        "norm_before_residual": spec.norm_before_residual,
        "norm_before_fc": spec.input_norm,
        "fc_norm": spec.fc_norm,
        "norm_output": spec.norm_output,
        "target_hidden_size": spec.target_hidden_size if is_narrow else None,
        "eagle_aux_hidden_state_layer_ids": list(spec.taps),
        "embed_requires_grad": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": PROPOSED_TOKENS}
            ],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": target, "architectures": []},
        },
    }
