"""Text models inside models of images: loaded from either layout of their files, without the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from eyas.layers.row_order import RowOrder
from eyas.models import load_model

from .dense_attend import DenseCache
from .test_model_law import assert_close, chain, forward
from .tiny import EXPERTS, FROM_ZERO, HYBRID, ROUTED_EXPERTS, SHARED_EXPERTS, SIZES, tokens

QWEN_VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
}
GLM_VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
}
MROPE = {
    "rope_type": "default",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.5,
    "mrope_interleaved": True,
    "mrope_section": [2, 1, 1],
}
MROPE_OF_HALVES = {
    "rope_type": "default",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.5,
    "mrope_section": [1, 1, 2],
}
VISION: dict[str, dict[str, Any]] = {
    "Qwen2_5_VL": {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": 64,
        "fullatt_block_indexes": [0],
    },
    "Qwen2VL": {
        "depth": 1,
        "embed_dim": 32,
        "hidden_size": 64,
        "num_heads": 2,
    },
    "Qwen3VL": {**QWEN_VISION, "deepstack_visual_indexes": [0]},
    "Qwen3VLMoe": {**QWEN_VISION, "deepstack_visual_indexes": [0]},
    "Mistral3": {
        "model_type": "pixtral",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    },
    "Gemma3": {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    },
    "Qwen3_5": QWEN_VISION,
    "Qwen3_5Moe": QWEN_VISION,
    "Glm4v": GLM_VISION,
    "Glm4vMoe": GLM_VISION,
}
TEXT: dict[str, dict[str, Any]] = {
    "Qwen2_5_VL": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "mrope_section": [2, 3, 3],
        }
    },
    "Qwen2VL": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "mrope_section": [2, 3, 3],
        }
    },
    "Qwen3VL": {
        "head_dim": 32,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "mrope_interleaved": True,
            "mrope_section": [6, 5, 5],
        },
    },
    "Qwen3VLMoe": {
        **EXPERTS,
        "head_dim": 32,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "mrope_interleaved": True,
            "mrope_section": [6, 5, 5],
        },
    },
    "Mistral3": {"model_type": "mistral", "head_dim": 32, "sliding_window": None},
    "Gemma3": {"head_dim": 32, "sliding_window": 16, "tie_word_embeddings": True},
    "Qwen3_5": {**HYBRID, "rope_parameters": MROPE},
    "Qwen3_5Moe": {**HYBRID, **SHARED_EXPERTS, "rope_parameters": MROPE},
    "Glm4v": {"rope_parameters": MROPE_OF_HALVES},
    "Glm4vMoe": {**ROUTED_EXPERTS, "rope_parameters": MROPE_OF_HALVES},
}
OLD_NAMES: dict[str, tuple[tuple[str, str], ...]] = {
    "Qwen2_5_VL": (("model.language_model.", "model."), ("model.visual.", "visual.")),
    "Qwen2VL": (("model.language_model.", "model."), ("model.visual.", "visual.")),
    "Qwen3VL": (),
    "Qwen3VLMoe": (),
    "Glm4v": (("model.language_model.", "model."), ("model.visual.", "visual.")),
    "Glm4vMoe": (),
    "Qwen3_5": (),
    "Qwen3_5Moe": (),
    "Mistral3": (
        ("model.language_model.", "language_model.model."),
        ("lm_head.", "language_model.lm_head."),
        ("model.vision_tower.", "vision_tower."),
        ("model.multi_modal_projector.", "multi_modal_projector."),
    ),
    "Gemma3": (
        ("model.language_model.", "language_model.model."),
        ("lm_head.", "language_model.lm_head."),
        ("model.vision_tower.", "vision_tower."),
        ("model.multi_modal_projector.", "multi_modal_projector."),
    ),
}


def make_checkpoint(family: str, directory: Path) -> transformers.PreTrainedModel:
    config = getattr(transformers, f"{family}Config")(
        text_config={**SIZES, **TEXT[family]},
        vision_config=VISION[family],
        tie_word_embeddings=TEXT[family].get("tie_word_embeddings", False),
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "language_model" in name or "lm_head" in name:
                noise = torch.randn(parameter.shape, generator=generator)
                base = float(family not in FROM_ZERO or "linear_attn" in name)
                parameter.copy_(base + 0.2 * noise if "norm" in name else noise * 0.1)
                if "embed_tokens" in name and "linear_num_key_heads" in TEXT[family]:
                    parameter.mul_(8)
        text = torch.arange(1, 33).unsqueeze(0)
        scale = 2.5 / model(input_ids=text).logits.std()
        norm = model.model.language_model.norm.weight
        if family in FROM_ZERO:
            norm.copy_((1 + norm) * scale - 1)
        else:
            norm.mul_(scale)
    model.save_pretrained(directory)
    return model


def assert_text_matches(model: transformers.PreTrainedModel, directory: Path) -> None:
    decoder = load_model(directory, dtype="float32", order=RowOrder(2))
    token_ids = tokens(40)
    found = forward(decoder, DenseCache(decoder.spec.stores), token_ids, chain(0, 40))
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([token_ids])).logits[0].float()
    assert_close(found, expected)


@pytest.mark.parametrize("is_old", [False, True], ids=["new names", "old names"])
@pytest.mark.parametrize("family", list(VISION))
def test_text_matches_transformers(family: str, is_old: bool, tmp_path: Path) -> None:
    if is_old and not OLD_NAMES[family]:
        pytest.skip("this family came after the names had changed")
    model = make_checkpoint(family, tmp_path)
    if is_old:
        file = tmp_path / "model.safetensors"
        renamed = {}
        for name, tensor in load_file(file).items():
            for new, old in OLD_NAMES[family]:
                if name.startswith(new):
                    name = old + name.removeprefix(new)
                    break
            renamed[name] = tensor
        save_file(renamed, file)
    assert_text_matches(model, tmp_path)


def test_fields_side_by_side_are_read_where_there_is_no_text_config(tmp_path: Path) -> None:
    """As releases before transformers 4.52 wrote Qwen2.5-VL."""
    model = make_checkpoint("Qwen2_5_VL", tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    inner = config.pop("text_config")
    inner.pop("rope_parameters"), inner.pop("layer_types")
    flat = {**inner, **config, "rope_theta": 1e6}
    flat["rope_scaling"] = {"type": "mrope", "mrope_section": [2, 3, 3]}
    file.write_text(json.dumps(flat))
    assert_text_matches(model, tmp_path)


def test_experts_whose_matrices_are_stored_transposed_are_read_as_transformers_reads_them(
    tmp_path: Path,
) -> None:
    """As in the files of Qwen3-VL's authors."""
    model = make_checkpoint("Qwen3VLMoe", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if ".mlp.experts." in name]:
        tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, file, {"format": "pt"})
    again = type(model).from_pretrained(tmp_path, dtype="float32", attn_implementation="eager")
    assert all(
        torch.equal(ours, theirs)
        for ours, theirs in zip(model.parameters(), again.parameters(), strict=True)
    )
    assert_text_matches(model, tmp_path)
