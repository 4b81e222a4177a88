"""MTP layers of Qwen3-Next and Qwen3.5: what `DraftHead` computes is their definition.

The definition: the norms of embedding and state, joined by fc, one decoder layer of transformers with
gated attention, and a last norm, whose output is the next level's state. A row stands at the position
of the state that it reads.

Legend: L rows, D hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from eyas.attention.base import PlannedRows
from eyas.layers.row_order import RowOrder
from eyas.models import Decoder, load_model
from eyas.models.heads import DraftHead, has_supported_mtp, load_head, read_head
from eyas.models.heads.hyper import parameter_shapes
from eyas.models.heads.spec import HeadSpec

from .dense_attend import DenseCache
from .tiny import MODELS, make_model, save_model

MODULES = {"Qwen3Next": "qwen3_next", "Qwen3_5": "qwen3_5", "Qwen3_5Moe": "qwen3_5_moe"}
NUM_ROWS = 12


@dataclass
class Definition:
    """The parts of an MTP layer, beside the model that it belongs to."""

    model: PreTrainedModel
    embedding_norm: nn.Module
    state_norm: nn.Module
    fc: nn.Linear
    layer: nn.Module
    norm: nn.Module

    @torch.no_grad()
    def rows(self, tokens_L: torch.Tensor, states_LD: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Logits [L, V] and states of a chain, whose first row is at position 1 of the text."""
        embedded_LD = self.model.get_input_embeddings()(tokens_L)
        pair = [self.embedding_norm(embedded_LD), self.state_norm(states_LD)]
        stream_1LD = self.fc(torch.cat(pair, -1)).unsqueeze(0)
        positions_1L = torch.arange(len(tokens_L)).unsqueeze(0)
        hidden = torch.full((len(tokens_L),) * 2, -torch.inf).triu(1)[None, None]
        stream_1LD = self.layer(
            stream_1LD,
            position_embeddings=self.model.model.rotary_emb(stream_1LD, positions_1L),
            attention_mask=hidden,
            position_ids=positions_1L,
        )
        states_LD = self.norm(stream_1LD)[0]
        return self.model.get_output_embeddings()(states_LD), states_LD


def make_definition(name: str) -> Definition:
    model = make_model(name)
    family, config = MODELS[name][0], model.config
    module: Any = import_module(f"transformers.models.{MODULES[family]}.modeling_{MODULES[family]}")
    size, epsilon = config.hidden_size, config.rms_norm_eps

    def norm() -> nn.Module:
        return getattr(module, f"{family}RMSNorm")(size, eps=epsilon)

    attention = config.layer_types.index("full_attention")
    definition = Definition(
        model,
        norm(),
        norm(),
        nn.Linear(2 * size, size, bias=False),
        getattr(module, f"{family}DecoderLayer")(config, attention),
        norm(),
    )
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for part in tensors_of(definition, is_packed=True).values():
            scale = 0.2 if part.dim() == 1 else part.shape[-1] ** -0.5
            part.copy_(scale * torch.randn(part.shape, generator=generator))
    return definition


def tensors_of(definition: Definition, *, is_packed: bool) -> dict[str, torch.Tensor]:
    """Tensors as published checkpoints name them: experts one by one, or packed."""
    found = {
        "mtp.pre_fc_norm_embedding.weight": definition.embedding_norm.weight,
        "mtp.pre_fc_norm_hidden.weight": definition.state_norm.weight,
        "mtp.fc.weight": definition.fc.weight,
        "mtp.norm.weight": definition.norm.weight,
    }
    for name, tensor in definition.layer.named_parameters():
        stem, is_experts, rest = name.partition("mlp.experts.")
        prefix = f"mtp.layers.0.{stem}"
        if not is_experts or is_packed:
            found[f"mtp.layers.0.{name}"] = tensor
            continue
        for expert, weights in enumerate(tensor):
            parts = {"down_proj": weights}
            if rest == "gate_up_proj":
                gate, up = weights.chunk(2)
                parts = {"gate_proj": gate, "up_proj": up}
            for part, weight in parts.items():
                found[f"{prefix}mlp.experts.{expert}.{part}.weight"] = weight
    return {name: tensor.detach() for name, tensor in found.items()}


def save(definition: Definition, directory: Path, *, is_packed: bool = False) -> Path:
    save_model(definition.model, directory)
    own = tensors_of(definition, is_packed=is_packed)
    change(directory, lambda held: held.update({k: v.contiguous() for k, v in own.items()}))
    return directory


def change(directory: Path, function: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(directory / "model.safetensors")
    function(tensors)
    save_file(tensors, directory / "model.safetensors")


def load(directory: Path) -> tuple[Decoder, DraftHead]:
    target = load_model(directory, dtype="float32", order=RowOrder(2))
    return target, load_head(directory, target, directory)


@pytest.mark.parametrize(
    ("name", "is_packed"),
    [
        ("qwen3 next", False),
        ("qwen3 next in other layers", False),
        ("qwen3.5", False),
        ("qwen3.5 moe", False),
        ("qwen3.5 moe", True),
    ],
)
def test_a_head_computes_its_definition(name: str, is_packed: bool, tmp_path: Path) -> None:
    definition = make_definition(name)
    save(definition, tmp_path, is_packed=is_packed)
    assert has_supported_mtp(tmp_path)
    _, head = load(tmp_path)
    generator = torch.Generator().manual_seed(1)
    tokens_L = torch.randint(1, 256, (NUM_ROWS,), generator=generator)
    states_LD = torch.randn(NUM_ROWS, 64, generator=generator)
    expected, expected_states = definition.rows(tokens_L, states_LD)
    cache = DenseCache(head.spec.stores)
    found, found_states, start = [], [], 0
    for count in (6, 2, 4):
        attend = cache.extend(range(start - 1, start + count - 1))
        rows = slice(start, start + count)
        with torch.inference_mode():
            features_LD = head.combine([states_LD[rows]])
            planned = PlannedRows(tokens_L[rows], attend.positions() + 1, attend)
            hidden_LD, next_LD = head.forward(planned, features_LD)
            found.append(head.logits(hidden_LD))
        found_states.append(next_LD)
        start += count
    assert expected.abs().max() > 1
    assert (torch.cat(found) - expected).abs().max() <= 2e-5
    assert (torch.cat(found_states) - expected_states).abs().max() <= 2e-5


def test_a_head_reads_the_final_state_and_leaves_the_first_embedding(tmp_path: Path) -> None:
    target, head = load(save(make_definition("qwen3 next"), tmp_path))
    assert head.spec.taps == (target.spec.num_layers + 1,)
    assert head.spec.norm_output and not head.spec.zero_first_embedding
    assert not head.spec.own_embedding and not head.spec.own_head
    assert sum(map(math.prod, parameter_shapes(head.spec).values())) == sum(
        tensor.numel()
        for tensor in tensors_of(make_definition("qwen3 next"), is_packed=True).values()
    )


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda held: held.pop("mtp.norm.weight"), r"lacks tensor 'mtp\.norm\.weight'"),
        (
            lambda held: held.pop("mtp.layers.0.mlp.experts.down_proj"),
            r"lacks tensor 'mtp\.layers\.0\.mlp\.experts\.down_proj'",
        ),
        (
            lambda held: held.update({"mtp.layers.0.self_attn.q_proj.weight": torch.ones(64, 64)}),
            r"q_proj\.weight' has shape \[64, 64\], expected \[128, 64\]",
        ),
        (
            lambda held: held.update(
                {"mtp.layers.0.mlp.experts.gate_up_proj": torch.ones(8, 9, 64)}
            ),
            r"gate_up_proj' has shape \[8, 9, 64\], expected \[8, 96, 64\]",
        ),
        (
            lambda held: held.update({"mtp.embed_tokens.weight": torch.ones(256, 64)}),
            r"'mtp\.embed_tokens\.weight', which an MTP layer",
        ),
    ],
)
def test_a_damaged_head_is_refused_by_the_tensors_name(
    function: Callable[[dict[str, torch.Tensor]], Any], message: str, tmp_path: Path
) -> None:
    save(make_definition("qwen3.5 moe"), tmp_path, is_packed=True)
    change(tmp_path, function)
    target = load_model(tmp_path, dtype="float32")
    assert not has_supported_mtp(tmp_path)
    with pytest.raises(ValueError, match=message):
        read_head(tmp_path, target.spec)


def test_the_heads_of_both_layouts_are_one(tmp_path: Path) -> None:
    specs: list[HeadSpec] = []
    for is_packed in (False, True):
        directory = tmp_path / str(is_packed)
        save(make_definition("qwen3.5 moe"), directory, is_packed=is_packed)
        specs.append(load(directory)[1].spec)
    assert specs[0] == specs[1]
