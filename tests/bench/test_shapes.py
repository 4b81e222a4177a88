"""Named shapes: their facts, and random weights that stay within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from eyas.cache.store import LayerStore
from eyas.models import Decoder
from eyas.models.heads import DraftHead
from eyas_bench.shapes import SHAPES, draft_ids, dummy_decoder, dummy_head, find_shape
from tests.models.dense_attend import DenseCache

TINY = SHAPES["tiny"]


def _attend(stores: Sequence[LayerStore]) -> Any:
    return DenseCache(stores).extend(range(-1, 31))


def _decoder(seed: int = 0) -> Decoder:
    return dummy_decoder(TINY.model, dtype=torch.float32, device="cpu", max_model_len=64, seed=seed)


def test_the_shapes_have_as_many_parameters_as_the_models_of_their_names() -> None:
    assert SHAPES["llama-3.1-8b"].model.num_parameters == 8_030_261_248
    assert SHAPES["qwen3-8b"].model.num_parameters == 8_190_735_360
    assert round(SHAPES["gpt-oss-20b"].model.num_parameters / 1e7) == 2091
    assert SHAPES["deepseek-v2-lite"].model.num_parameters == 15_706_484_224
    head = SHAPES["llama-3.1-8b"].head
    assert head.taps == (2, 16, 29) and head.fc_shape == (4096, 3 * 4096)
    assert head.draft_vocab_size == 32000 and head.own_head and not head.own_embedding
    names = {"norm.weight", "embedding_norm.weight", "feature_norm.weight", "head.weight"}
    assert names <= head.parameter_shapes.keys()


def test_an_unknown_shape_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"shape: 'gpt' is unknown; there are llama-3.1-8b, qwen3"):
        find_shape("gpt")


@pytest.mark.parametrize("name", SHAPES)
def test_draft_ids_are_ascending_and_in_range(name: str) -> None:
    spec = SHAPES[name].head
    ids_V = draft_ids(spec)
    assert ids_V.shape == (spec.draft_vocab_size,) and ids_V.dtype == torch.int64
    assert bool((ids_V[1:] > ids_V[:-1]).all())
    assert int(ids_V[0]) == 0 and int(ids_V[-1]) < spec.vocab_size
    assert int(ids_V[-1]) > spec.vocab_size * 0.98, "spread over all of it"


def test_weights_are_the_same_for_a_seed_and_keep_activations_in_bounds() -> None:
    one, same, other = _decoder(0), _decoder(0), _decoder(1)
    tokens_T = torch.arange(1, 33)
    results = []
    with torch.inference_mode():
        for decoder in (one, same, other):
            hidden_TD, taps = decoder.forward(
                tokens_T, torch.arange(32), _attend(TINY.model.stores), TINY.head.taps
            )
            results.append((decoder.logits(hidden_TD), taps))
    logits_RV, taps = results[0]
    assert torch.equal(logits_RV, results[1][0]) and not torch.equal(logits_RV, results[2][0])
    assert bool(logits_RV.isfinite().all()) and 0.5 < float(logits_RV.std()) < 2
    for tap_TD in taps:
        assert 0.01 < float(tap_TD.float().std()) < 20


def test_a_head_shares_the_embedding_and_is_sure_of_its_best_token() -> None:
    decoder = _decoder()
    head = dummy_head(TINY.head, decoder)
    assert isinstance(head, DraftHead) and head.target_ids_V is not None
    assert torch.equal(head.target_ids_V, draft_ids(TINY.head))
    with torch.inference_mode():
        tokens_T = torch.arange(1, 33)
        taps = [torch.randn(32, TINY.model.hidden_size) for _ in TINY.head.taps]
        hidden_TD, feature_TF = head.forward(
            tokens_T, torch.arange(32), head.combine(taps), _attend(TINY.head.stores)
        )
        logits_RV = head.logits(hidden_TD)
    assert logits_RV.shape == (32, TINY.head.draft_vocab_size)
    assert bool(logits_RV.isfinite().all()) and bool(feature_TF.isfinite().all())
    best_R = logits_RV.softmax(dim=1).amax(dim=1)
    assert float(best_R.median()) > 0.5
