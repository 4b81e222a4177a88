"""Model law: logits equal transformers' in float32, however the rows are brought."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from eyas.attention.base import PlannedRows
from eyas.layers.row_order import RowOrder
from eyas.models import Decoder, load_model, num_parameters, read_spec
from tests.thorough import drawn

from .dense_attend import DenseCache, RowByRow
from .tiny import MODELS, expected_logits, make_model, save_model, tokens

TOLERANCE = 2e-5
Pair = tuple[PreTrainedModel, Decoder]


@pytest.fixture(scope="module", params=list(MODELS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    model = make_model(request.param)
    directory = save_model(model, tmp_path_factory.mktemp("model"))
    return model, load_model(directory, dtype="float32", order=RowOrder(2))


def forward(
    decoder: Decoder, cache: DenseCache, token_ids: list[int], parents: list[int]
) -> torch.Tensor:
    """Logits of these rows, padded as the decoder's row order asks."""
    num_padding = decoder.order.pad(len(token_ids)) - len(token_ids)
    attend = cache.extend(parents, num_padding)
    tokens_T = torch.tensor(token_ids + [0] * num_padding, device=decoder.device)
    rows = PlannedRows(tokens_T, attend.positions().to(decoder.device), attend)
    with torch.inference_mode():
        hidden_TD, _ = decoder.forward(rows)
        return decoder.logits(hidden_TD)[: len(token_ids)].cpu()


def chain(start: int, count: int) -> list[int]:
    return list(range(start - 1, start + count - 1))


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert expected.abs().max() > 4, (
        "logits must be large enough for the tolerance to mean something"
    )
    assert (found - expected).abs().max() <= TOLERANCE


def test_a_whole_prompt_matches_transformers(pair: Pair) -> None:
    model, decoder = pair
    token_ids = tokens()
    found = forward(decoder, DenseCache(decoder.spec.stores), token_ids, chain(0, len(token_ids)))
    assert found.dtype == torch.float32
    assert_close(found, expected_logits(model, token_ids))


@pytest.mark.parametrize(
    "sizes", [[40, 2, 30, 24], [1] * drawn(20, 36)], ids=["chunked", "one by one"]
)
def test_pieces_of_a_prompt_match_transformers(pair: Pair, sizes: list[int]) -> None:
    model, decoder = pair
    token_ids = tokens(sum(sizes))
    cache = DenseCache(decoder.spec.stores)
    pieces, start = [], 0
    for size in sizes:
        piece = token_ids[start : start + size]
        pieces.append(forward(decoder, cache, piece, chain(start, size)))
        start += size
    assert_close(torch.cat(pieces), expected_logits(model, token_ids))


def test_every_node_of_a_tree_matches_a_forward_of_its_own_path(pair: Pair) -> None:
    model, decoder = pair
    prompt = tokens(40)
    cache = DenseCache(decoder.spec.stores)
    forward(decoder, cache, prompt, chain(0, len(prompt)))
    last = len(prompt) - 1
    tree_parents = [-1, 0, 0, 0, 1, 1, 2, 4, 4, 7, 9, 9]
    tree_tokens = tokens(len(tree_parents), seed=2)
    parents = [last if parent < 0 else len(prompt) + parent for parent in tree_parents]
    found = forward(decoder, cache, tree_tokens, parents)
    for leaf in set(range(len(tree_parents))) - set(tree_parents):
        path = [entry for entry in cache.ancestors(len(prompt) + leaf) if entry > last]
        nodes = [entry - len(prompt) for entry in path]
        text = prompt + [tree_tokens[node] for node in nodes]
        assert_close(found[nodes], expected_logits(model, text)[-len(nodes) :])


def test_taps_are_the_residual_stream_after_k_layers(pair: Pair) -> None:
    model, decoder = pair
    token_ids, num_layers = tokens(24), decoder.spec.num_layers
    attend = DenseCache(decoder.spec.stores).extend(chain(0, 24))
    with torch.inference_mode():
        rows = PlannedRows(torch.tensor(token_ids), attend.positions(), attend)
        _, (second, embedded, last) = decoder.forward(rows, taps=(2, 0, num_layers))
        states = model(torch.tensor([token_ids]), output_hidden_states=True).hidden_states
        if decoder.spec.hyper is not None:  # several residual streams
            embedded, second, last = (
                tap.unflatten(1, (decoder.spec.hyper.num_streams, -1))
                for tap in (embedded, second, last)
            )
            last = model.model.hc_head(last.unsqueeze(0))[0]
        normed = model.model.norm(last)
    final = states[num_layers]
    for found, expected in ((embedded, states[0]), (second, states[2]), (normed, final)):
        assert (found - expected[0]).abs().max() < 2e-5


def test_a_row_has_the_same_bits_in_any_forward_of_the_model(pair: Pair) -> None:
    _, decoder = pair

    def answer(q_TNH: torch.Tensor, k_TGH: torch.Tensor, v_TGH: torch.Tensor) -> torch.Tensor:
        per_kv = q_TNH.shape[1] // v_TGH.shape[1]
        return q_TNH + (k_TGH * v_TGH).repeat_interleave(per_kv, 1)

    def attend(num_rows: int) -> RowByRow:
        return RowByRow(decoder.spec.stores, decoder.dtype, answer, num_rows)

    tokens_T = torch.tensor(tokens(300))
    positions_T = torch.randint(0, 500, (300,), generator=torch.Generator().manual_seed(0))
    positions_T %= decoder.max_model_len
    with torch.inference_mode():
        full, _ = decoder.forward(PlannedRows(tokens_T, positions_T, attend(300)))
        full_logits = decoder.logits(full)
        for start, stop in ((0, 2), (7, 10), (100, 133), (1, 300), (250, 291)):
            rows = slice(start, stop)
            chunk = PlannedRows(tokens_T[rows], positions_T[rows], attend(stop - start))
            hidden, _ = decoder.forward(chunk)
            assert torch.equal(hidden, full[rows])
            assert torch.equal(decoder.logits(hidden), full_logits[rows])


def test_the_parameters_are_as_many_as_the_checkpoint_has(pair: Pair, tmp_path: Path) -> None:
    model, decoder = pair
    corrections = [b for name, b in model.named_buffers() if name.endswith("correction_bias")]
    expected = model.num_parameters() + sum(buffer.numel() for buffer in corrections)
    assert num_parameters(decoder.spec) == expected
    assert read_spec(save_model(model, tmp_path)) == decoder.spec


def test_a_bucketed_order_gives_the_same_logits(tmp_path: Path) -> None:
    model = make_model("llama3.1")
    decoder = load_model(save_model(model, tmp_path), dtype="float32", order=RowOrder(32, 32))
    token_ids = tokens(70)
    found = forward(decoder, DenseCache(decoder.spec.stores), token_ids, chain(0, 70))
    assert_close(found, expected_logits(model, token_ids))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", list(MODELS))
def test_a_prompt_on_a_gpu_matches_transformers(name: str, tmp_path: Path) -> None:
    model = make_model(name)
    directory = save_model(model, tmp_path)
    decoder = load_model(directory, dtype="float32", device="cuda")
    token_ids = tokens()
    cache = DenseCache(decoder.spec.stores, device=decoder.device)
    pieces = [
        forward(decoder, cache, token_ids[start : start + 32], chain(start, 32))
        for start in (0, 32, 64)
    ]
    assert_close(torch.cat(pieces), expected_logits(model, token_ids))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_bfloat16_logits_on_a_gpu_are_float32_and_not_rounded(tmp_path: Path) -> None:
    directory = save_model(make_model("qwen3"), tmp_path)
    decoder = load_model(directory, dtype="auto", device="cuda")
    assert decoder.dtype == torch.bfloat16
    hidden_RD = torch.randn(4, 64, device="cuda").bfloat16()
    with torch.inference_mode():
        logits_RV = decoder.logits(hidden_RD)
    assert logits_RV.dtype == torch.float32
    assert not torch.equal(logits_RV, logits_RV.bfloat16().float())
