"""DeepSeek-V4's MTP layer in its authors' layout computes its definition, and drafts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.config import DraftConfig, EngineConfig, ModelConfig
from eyas.core import SamplingParams
from eyas.llm import LLM
from eyas.models import load_model
from eyas.models.heads import has_supported_mtp, load_head, read_head

from .test_heads import check, same_model
from .tiny import make_model, save_model, tokens
from .tiny_v4 import CompressedDefinition, add_tensors, published, save_v4

WINDOW = 6


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("v4")


@pytest.fixture(scope="module")
def definition(directory: Path) -> CompressedDefinition:
    return save_v4(directory, sliding_window=WINDOW)


def test_an_mtp_layer_computes_its_definition(
    directory: Path, definition: CompressedDefinition, tmp_path: Path
) -> None:
    saved = save_model(make_model("deepseek v4", sliding_window=WINDOW), tmp_path / "saved")
    assert not has_supported_mtp(published(saved, tmp_path))
    assert has_supported_mtp(directory)
    target = load_model(directory, dtype="float32")
    assert same_model(target, load_model(tmp_path, dtype="float32"))
    head = load_head(directory, target, directory, dtype="float32")
    (store,) = head.spec.stores
    assert (store.window, store.first_position, store.slot_shape) == (WINDOW, 1, (1, 1, 16))
    assert head.spec.taps == (3,) and head.feature_size == 2 * head.spec.hidden_size
    check(head, definition)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("added", "removed", "words"),
    [
        ("attn.compressor.wkv.weight", "", "an MTP layer with compressed entries is not supported"),
        ("main_proj.weight", "", "drafting in blocks is not supported"),
        ("ffn.gate.tid2eid", "", "tid2eid"),
        ("", "h_proj.weight", r"lacks tensor 'mtp\.0\.h_proj\.weight'"),
        ("", "ffn.experts.2.w1.weight", r"lacks tensor 'mtp\.0\.ffn\.experts\.2\.w1\.weight'"),
    ],
)
def test_a_layer_of_another_kind_is_refused_by_name(
    added: str,
    removed: str,
    words: str,
    directory: Path,
    definition: CompressedDefinition,
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text((directory / "config.json").read_text())
    tensors = load_file(directory / "model.safetensors")
    tensors.pop(f"mtp.0.{removed}", None)
    save_file(tensors, tmp_path / "model.safetensors")
    if added:
        add_tensors(tmp_path, {f"mtp.0.{added}": torch.ones(2, 2)})
    target = load_model(tmp_path, dtype="float32")
    assert not has_supported_mtp(tmp_path)
    with pytest.raises(ValueError, match=words):
        read_head(tmp_path, target.spec)


def test_auto_drafts_with_it_for_two_requests_at_once(
    directory: Path, definition: CompressedDefinition
) -> None:
    """Through the public API; the start-up check calls the model exact."""
    prompts = [tokens(21, seed=3) * 2, tokens(30, seed=4)]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    answers = []
    tree = DraftConfig(drafter="head", steps=3, topk=2, nodes=6)
    found = []
    for draft in (DraftConfig(drafter="root"), DraftConfig(drafter="auto"), tree):
        model = ModelConfig(path=str(directory), dtype="float32")
        with LLM(config=EngineConfig(model=model, draft=draft)) as llm:
            assert llm.info.exact, llm.info.exact_reason
            answers.append([each.token_ids for each in llm.generate(prompts, params)])
            found.append(llm.info.drafter.split("+")[0])
    assert found == ["root", "head", "head"]
    assert answers[0] == answers[1] == answers[2]
