"""Tiny DeepSeek-V4 checkpoints as its authors write them, with an MTP layer, and what that computes."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from .tiny import make_model, save_model


def save_v4(directory: Path, **changes: Any) -> CompressedDefinition:
    """Write a published checkpoint with an MTP layer. changes: of the configuration."""
    with TemporaryDirectory() as scratch:
        saved = save_model(make_model("deepseek v4", **changes), Path(scratch))
        mtp = {"compress_ratios": [0, 4, 128, 0], "num_nextn_predict_layers": 1}
        published(saved, directory, **mtp)
    definition = CompressedDefinition(directory, **changes)
    add_tensors(directory, definition.tensors())
    return definition


def add_tensors(directory: Path, tensors: dict[str, torch.Tensor]) -> None:
    path = directory / "model.safetensors"
    save_file(load_file(path) | tensors, path)


def published(saved: Path, directory: Path, **changes: Any) -> Path:
    """The same checkpoint as the model's authors write one."""
    config = json.loads((saved / "config.json").read_text())
    rope = config.pop("rope_parameters")["compress"]
    for field in ("layer_types", "mlp_layer_types", "compress_rates", "partial_rotary_factor"):
        del config[field]
    config |= {
        "rope_scaling": {
            "type": "yarn",
            "factor": rope["factor"],
            "original_max_position_embeddings": rope["original_max_position_embeddings"],
        },
        "compress_ratios": [0, 4, 128],
        "compress_rate_hca": 16,
        "num_hash_layers": 1,
    }
    (directory / "config.json").write_text(json.dumps({**config, **changes}))
    saved_tensors = load_file(saved / "model.safetensors").items()
    tensors = {published_name(name): tensor for name, tensor in saved_tensors}
    save_file(tensors, directory / "model.safetensors")
    return directory


def published_name(name: str) -> str:
    name = name.removeprefix("model.").replace("embed_tokens", "embed")
    return name.replace("hc_head.hc_", "hc_head_").replace("attn.norm.", "attn.kv_norm.")


class CompressedDefinition:
    """What `test_heads.run_definition` runs: two projections written out, transformers' layer over a
    mask that is written out, and the last sum of the streams. directory: of the target."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        kinds = {"layer_types": ["sliding_attention"], "mlp_layer_types": ["moe"]}
        self.model = make_model("deepseek v4", 5, num_hidden_layers=1, **{**changes, **kinds})
        with TemporaryDirectory() as scratch:
            self.saved = load_file(save_model(self.model, Path(scratch)) / "model.safetensors")
        generator = torch.Generator().manual_seed(6)

        def noise(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        hidden = self.model.config.hidden_size
        self.entry = {f"{part}_proj.weight": 0.1 * noise(hidden, hidden) for part in ("e", "h")} | {
            f"{part}norm.weight": 1 + 0.2 * noise(hidden) for part in ("e", "h")
        }
        held = load_file(directory / "model.safetensors")
        self.embedding, self.output = held["embed.weight"], held["head.weight"]

    def tensors(self) -> dict[str, torch.Tensor]:
        """The layer as the model's authors store it."""
        stored = dict(self.entry)
        for name, tensor in self.saved.items():
            name = name.removeprefix("model.").removeprefix("layers.0.")
            if name not in ("embed_tokens.weight", "head.weight"):
                stored[published_name(name)] = tensor
        return {f"mtp.0.{name}": tensor for name, tensor in stored.items()}

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
        model, entry = self.model.model, self.entry
        embedded = self._norm(self.embedding[tokens], "e") @ entry["e_proj.weight"].T
        streams = features.unflatten(1, (model.config.hc_mult, -1))
        streams = self._norm(streams, "h") @ entry["h_proj.weight"].T + embedded.unsqueeze(1)
        places = (positions - 1).unsqueeze(0)
        seen = seen & (positions[:, None] - positions[None, :] < model.config.sliding_window)
        streams = model.layers[0](
            streams.unsqueeze(0),
            position_embeddings={"main": model.rotary_emb(streams, places, layer_type="main")},
            position_ids=places,
            attention_mask=torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))[None, None],
            past_key_values=None,
        )
        hidden = model.norm(model.hc_head(streams))[0]
        return hidden @ self.output.T, streams[0].flatten(1)

    def _norm(self, x: torch.Tensor, part: str) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.model.config.rms_norm_eps)
        return x * scale * self.entry[f"{part}norm.weight"]
