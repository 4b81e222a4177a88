"""MTP layers with latent attention compute their definition: transformers' layer, whose keys and values
are made of the latents, over a mask that is written out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpLayer

from eyas.models import load_model
from eyas.models.heads import has_supported_mtp, load_head, read_head

from .test_heads import check, same_model
from .tiny import LATENT_MODELS, SIZES
from .tiny_heads import NUM_TARGET_LAYERS, save_target

STORED_NAMES = {"mtp_block.": "", "post_norm.": "shared_head.norm."}
"""Prefixes of a layer of transformers, and of checkpoints."""


class LatentDefinition:
    """What `run_definition` runs, by transformers' layer."""

    def __init__(self, name: str, directory: Path, seed: int = 5) -> None:
        family, settings = LATENT_MODELS[name]
        sizes = {
            **SIZES,
            **settings,
            **changes_of(name),
            "num_hidden_layers": NUM_TARGET_LAYERS,
        }
        config = getattr(transformers, f"{family}Config")(**sizes)
        config._attn_implementation = "eager"
        if (
            family == "Glm4MoeLite"
        ):  # lists the layers' feed-forward blocks, without the MTP layer's
            config.mlp_layer_types = [*config.mlp_layer_types, "sparse"]
        modeling = sys.modules[getattr(transformers, f"{family}ForCausalLM").__module__]
        block, norm = (getattr(modeling, f"{family}{part}") for part in ("DecoderLayer", "RMSNorm"))
        self.layer = MtpLayer(config, block, norm, NUM_TARGET_LAYERS).eval()
        self.rotary = getattr(modeling, f"{family}RotaryEmbedding")(config)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for key, parameter in self.layer.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(1 + 0.2 * noise if "norm" in key else 0.1 * noise)
            for buffer in self.layer.buffers():
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
        held = load_file(directory / "model.safetensors")
        self.embedding, self.output = held["model.embed_tokens.weight"], held["lm_head.weight"]

    def tensors(self) -> dict[str, torch.Tensor]:
        """The layer as a checkpoint stores it."""
        stored = {}
        for name, tensor in self.layer.state_dict().items():
            for prefix, other in STORED_NAMES.items():
                name = name.replace(prefix, other)
            name = f"model.layers.{NUM_TARGET_LAYERS}.{name}"
            if ".experts." in name:
                stored |= separate_experts(name, tensor)
            else:
                stored[name] = tensor.contiguous()
        return stored

    def combine(self, taps: list[torch.Tensor]) -> torch.Tensor:
        return taps[0]

    @torch.no_grad()
    def rows(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        features: torch.Tensor,
        seen: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        embedded = torch.where(positions[:, None] == 1, 0.0, self.embedding[tokens])
        places = (positions - 1).unsqueeze(0)
        states = self.layer(
            embedded.unsqueeze(0),
            features.unsqueeze(0),
            position_embeddings=self.rotary(embedded, places),
            attention_mask=torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))[None, None],
            position_ids=places,
            past_key_values=None,
        )[0]
        return states @ self.output.T, states


def separate_experts(name: str, packed: torch.Tensor) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors of what transformers packs into one, gate_up_proj or down_proj."""
    prefix, _, kind = name.rpartition(".")
    parts = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
    return {
        f"{prefix}.{expert}.{part}.weight": block.contiguous()
        for expert, matrix in enumerate(packed)
        for part, block in zip(parts, matrix.chunk(len(parts)), strict=True)
    }


def changes_of(name: str) -> dict[str, Any]:
    """Settings of a target of `NUM_TARGET_LAYERS` layers, dense where all of the tiny one are."""
    first = LATENT_MODELS[name][1]["first_k_dense_replace"]
    return {"first_k_dense_replace": 1 if first == 1 else NUM_TARGET_LAYERS + 1}


def save_with_layer(name: str, directory: Path) -> LatentDefinition:
    """A target, and its MTP layer beside it."""
    save_target(directory, name, **changes_of(name))
    definition = LatentDefinition(name, directory)
    path = directory / "model.safetensors"
    save_file(load_file(path) | definition.tensors(), path)
    return definition


@pytest.mark.parametrize("name", LATENT_MODELS)
def test_an_mtp_layer_computes_its_definition(name: str, tmp_path: Path) -> None:
    before = load_model(save_target(tmp_path, name, **changes_of(name)), dtype="float32")
    assert not has_supported_mtp(tmp_path)
    definition = save_with_layer(name, tmp_path)
    assert has_supported_mtp(tmp_path)
    target = load_model(tmp_path, dtype="float32")
    assert same_model(target, before)
    head = load_head(tmp_path, target, tmp_path, dtype="float32")
    assert (head.spec.experts is None) == (changes_of(name)["first_k_dense_replace"] > 1)
    (store,) = head.spec.stores
    rotated = LATENT_MODELS[name][1]["qk_rope_head_dim"]
    assert store.slot_shape == (1, 1, 32 + rotated)
    assert (store.output_dim, store.first_position) == (32, 1)
    check(head, definition)  # type: ignore[arg-type]


def test_a_layer_of_another_kind_of_attention_is_refused(tmp_path: Path) -> None:
    definition = save_with_layer("deepseek v3", tmp_path / "latent")
    plain = save_target(tmp_path / "plain", "llama2")
    path = plain / "model.safetensors"
    save_file(load_file(path) | definition.tensors(), path)
    target = load_model(plain, dtype="float32")
    assert not has_supported_mtp(plain)
    with pytest.raises(ValueError, match=r"lacks tensors 'model\.layers\.8\.self_attn\.k_proj"):
        read_head(plain, target.spec)
