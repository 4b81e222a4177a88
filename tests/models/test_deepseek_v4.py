"""DeepSeek-V4: its published names and fields, its ties, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.config import DraftConfig, EngineConfig, ModelConfig
from eyas.core import SamplingParams
from eyas.kernels.packed import PackedWeight
from eyas.layers.gemm.products import Products
from eyas.layers.row_order import RowOrder
from eyas.llm import LLM
from eyas.models import load_model, read_spec
from eyas.models.hyper_decoder import HyperDecoder
from eyas.ops.compress import chosen_entries
from eyas.train.head import HeadTraining, train_head
from eyas_bench.shapes import SHAPES, dummy_decoder, dummy_layouts

from .tiny import make_model, save_model, tokens
from .tiny_v4 import published


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("deepseek v4"), tmp_path_factory.mktemp("v4"))


def test_published_files_are_the_same_model(saved: Path, tmp_path: Path) -> None:
    found = load_model(published(saved, tmp_path), dtype="float32")
    expected = load_model(saved, dtype="float32")
    assert found.spec == expected.spec
    assert torch.equal(found.embedding.weight_VD, expected.embedding.weight_VD)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("swiglu_limit", 7.0),
        ("scoring_func", "sigmoid"),
        ("compress_ratios", [0, 4, 2]),
        ("n_shared_experts", 2),
        ("o_groups", 3),
        ("qk_rope_head_dim", 7),
        ("index_share_layers", 2),
        ("num_key_value_heads", 4),
    ],
)
def test_what_would_change_the_numbers_is_refused_by_name(
    field: str, value: Any, saved: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=field):
        read_spec(published(saved, tmp_path, **{field: value}))


def test_a_table_of_experts_that_are_not_there_is_refused(saved: Path, tmp_path: Path) -> None:
    directory = published(saved, tmp_path)
    tensors = load_file(directory / "model.safetensors")
    tensors["layers.0.ffn.gate.tid2eid"][5, 1] = 8
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(ValueError, match=r"tid2eid.*n_routed_experts"):
        load_model(directory, dtype="float32")


def test_its_experts_stay_packed_where_kernels_run_and_streams_are_weighed_in_float32() -> None:
    spec = SHAPES["tiny-compressed"].model
    layouts = dummy_layouts(spec, "fp8")
    device = torch.device("cpu")
    order = RowOrder(products=Products(True, device, 64))
    decoder = dummy_decoder(
        spec, dtype=torch.bfloat16, device=device, max_model_len=64, order=order, layouts=layouts
    )
    assert isinstance(decoder, HyperDecoder) and layouts
    fresh = HyperDecoder(
        spec, dtype=torch.bfloat16, device="meta", max_model_len=64, order=order, layouts=layouts
    )
    kinds = {name: blocks[0] for name, blocks in fresh.parameters().items()}
    assert {name for name, block in kinds.items() if isinstance(block, PackedWeight)} == set(
        layouts
    )
    assert all(".mlp.experts." in name or ".mlp.shared." in name for name in layouts)
    streams = [block for name, block in kinds.items() if name.endswith("_connection.fn")]
    assert len(streams) == 2 * spec.num_layers
    assert {block.dtype for block in streams if isinstance(block, torch.Tensor)} == {torch.float32}


def test_of_equal_scores_the_first_entries_are_chosen() -> None:
    """ReLU makes many scores exactly 0."""
    keys_1EI = torch.full((1, 40, 4), -1.0)
    keys_1EI[0, 30] = 2.0
    ones = torch.ones(1, 2, 4), torch.ones(1, 2)
    assert chosen_entries(*ones, keys_1EI, 4).tolist() == [[0, 1, 2, 30]]


def test_drafts_of_two_requests_at_once_change_nothing(saved: Path) -> None:
    """Through the public API; the start-up check calls the model exact."""
    prompts = [tokens(21, seed=3) * 2, tokens(30, seed=4)]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    answers = []
    for draft in (DraftConfig(drafter="root"), DraftConfig(drafter="ngram")):
        model = ModelConfig(path=str(saved), dtype="float32")
        with LLM(config=EngineConfig(model=model, draft=draft)) as llm:
            assert llm.info.exact, llm.info.exact_reason
            answers.append([each.token_ids for each in llm.generate(prompts, params)])
    assert answers[0] == answers[1]


def test_drafts_may_go_beyond_the_last_position(saved: Path, tmp_path: Path) -> None:
    draft_model = save_model(make_model("llama2"), tmp_path)
    again = SamplingParams(
        temperature=0, max_tokens=20, ignore_eos=True, logprobs=1, logit_bias={7: 100.0}
    )
    own = DraftConfig(drafter="model", model=str(draft_model), steps=8, topk=1, nodes=9)
    answers = []
    for draft in (DraftConfig(drafter="root"), own):
        model = ModelConfig(path=str(saved), dtype="float32", max_model_len=40)
        with LLM(config=EngineConfig(model=model, draft=draft)) as llm:
            answers.append(llm.generate([[7] * 20], again)[0].choices[0])
            assert llm.engine.metrics.num_failed_steps == 0
    assert answers[0].token_ids == answers[1].token_ids == [7] * 20
    assert answers[0].logprobs == answers[1].logprobs


def test_it_cannot_be_a_draft_model_nor_the_model_of_a_trained_head(
    saved: Path, tmp_path: Path
) -> None:
    target = save_model(make_model("qwen3", max_position_embeddings=128), tmp_path / "target")
    draft = DraftConfig(drafter="model", model=str(saved))
    with pytest.raises(ValueError, match=r"draft\.model: .* has compressed attention"):
        LLM(config=EngineConfig(model=ModelConfig(path=str(target)), draft=draft))
    config = HeadTraining(
        output=tmp_path / "head", model=str(saved), conversations="builtin:4", device="cpu"
    )
    with pytest.raises(ValueError, match=r"model: .* has 2 residual streams"):
        train_head(config)
