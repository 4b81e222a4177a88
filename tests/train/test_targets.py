"""Targets of every kind of attention: what training reads of them is what transformers computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eyas.attention.base import PlannedRows
from eyas.layers.rope import rope_frequencies
from eyas.models import load_model, read_spec
from eyas.models.heads import read_head
from eyas.train.head.config import HeadTraining
from eyas.train.head.export import export_head, head_spec
from eyas.train.head.network import TrainableHead
from eyas.train.head.target import PaddedAttend, Target
from tests.models.tiny import expected_logits, make_model, save_model, tokens


@pytest.mark.parametrize("name", ["llama3.1", "deepseek v3 experts", "deepseek v2 lite yarn"])
def test_padded_texts_have_transformers_logits(name: str, tmp_path: Path) -> None:
    model = make_model(name)
    decoder = load_model(save_model(model, tmp_path), dtype="float32")
    texts = [tokens(40, seed=1), tokens(23, seed=2)]
    padded = torch.tensor([text + [0] * (40 - len(text)) for text in texts])
    attend = PaddedAttend(decoder.spec.stores, 2, 40, torch.float32, torch.device("cpu"))
    rows = PlannedRows(padded.flatten(), torch.arange(40).repeat(2), attend)
    with torch.inference_mode():
        hidden_TD, _ = decoder.forward(rows)
        logits = decoder.logits(hidden_TD).view(2, 40, -1)
    for found, text in zip(logits, texts, strict=True):
        assert (found[: len(text)] - expected_logits(model, text)).abs().max() <= 2e-5


@pytest.mark.parametrize("name", ["llama tied", "granite", "granite tied with biases"])
def test_the_rows_that_a_head_begins_with_give_the_targets_logits(
    name: str, tmp_path: Path
) -> None:
    decoder = load_model(save_model(make_model(name), tmp_path), dtype="float32")
    target = Target(decoder, tmp_path, taps=(1,))
    ids_U = torch.tensor([5, 200, 7])
    with torch.inference_mode():
        _, final_PD = target.states(torch.tensor([tokens(20)]))
        expected = target.logits(final_PD)[:, ids_U]
        torch.testing.assert_close(final_PD @ target.head_rows(ids_U).T, expected)


def test_a_head_for_latent_attention_has_plain_attention(tmp_path: Path) -> None:
    target = load_model(save_model(make_model("deepseek v2 lite yarn"), tmp_path), dtype="float32")
    latent = target.spec.latent
    assert latent is not None
    spec = head_spec(HeadTraining(output=tmp_path, draft_vocab_size=100), target.spec)
    assert spec.latent is None and spec.attention_scale is None
    assert spec.head_dim == spec.rope.head_dim == latent.plain_dim
    assert (spec.rope.kind, spec.rope.is_interleaved) == ("yarn", False)
    assert spec.stores[0].slot_shape == (2, spec.num_kv_heads, spec.head_dim)


@pytest.mark.parametrize(
    "name", ["glm4", "glm4 moe", "phi3 long longrope", "qwen3 next", "gpt-oss"]
)
def test_a_head_rotates_whole_heads_and_is_read_as_it_was_trained(
    name: str, tmp_path: Path
) -> None:
    """Also for targets that rotate a part of each head, pairs of neighbours, or with longrope."""
    target = read_spec(save_model(make_model(name), tmp_path / "target"))
    config = HeadTraining(output=tmp_path, draft_vocab_size=256, taps=(0, 1, 2))
    spec = head_spec(config, target)
    assert len(rope_frequencies(spec.rope)) == spec.head_dim // 2
    head = TrainableHead(spec, torch.zeros(spec.vocab_size, spec.hidden_size), None, 2)
    ids_C = torch.arange(spec.draft_vocab_size)
    for place in export_head(tmp_path, spec, head.state_dict(), ids_C, {}).values():
        assert read_head(place, target, target_directory=tmp_path / "target").rope == spec.rope
