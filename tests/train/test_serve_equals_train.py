"""What a head computes in training is what it computes when it drafts."""

from __future__ import annotations

import pytest
import torch

from eyas.attention.base import PlannedRows
from eyas.cache.store import LayerStore
from eyas.layers.compute import Compute
from eyas.layers.embedding import Embedding
from eyas.layers.row_order import RowOrder
from eyas.models.heads import DraftHead
from eyas.models.heads.hyper import parameter_shapes
from eyas.train.head.batches import Batch, make_batch
from eyas.train.head.network import TrainableHead
from eyas.train.head.target import PaddedAttend, Target
from tests.models.dense_attend import DenseCache
from tests.train.tiny import make_spec, make_target, make_texts

LEVELS = 4


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return make_target(tmp_path_factory.mktemp("target"))


def served(trained: TrainableHead) -> DraftHead:
    """The same weights behind the engine's network."""
    spec = trained.spec
    device = torch.device("cpu")
    embedding = Embedding(spec.vocab_size, spec.hidden_size, Compute(torch.float32, device))
    embedding.weight_VD.copy_(trained.get_buffer("_embedding_VD"))
    head = DraftHead(
        spec,
        dtype=torch.float32,
        device=device,
        max_model_len=256,
        order=RowOrder(),
        embedding=embedding,
        target_ids_V=torch.arange(spec.draft_vocab_size),
    )
    weights = trained.state_dict()
    assert set(weights) == set(parameter_shapes(spec))
    for name, blocks in head.parameters().items():
        for block, part in zip(blocks, weights[name].split([len(b) for b in blocks]), strict=True):
            block.copy_(part)
    head.seal()
    return head


@pytest.mark.parametrize("changes", [{}, {"norm_output": False}, {"fc_norm": False}])
@torch.no_grad()
def test_every_level_gives_the_logits_of_a_chain_that_drafts_these_tokens(
    target: Target, changes: dict[str, bool]
) -> None:
    torch.manual_seed(1)
    trained = TrainableHead(make_spec(**changes), target.embedding_VD, None, LEVELS)
    for weight in trained.parameters():
        weight.add_(0.3 * torch.randn_like(weight) / max(1, weight.shape[-1]) ** 0.5)
    texts = make_texts(3)
    batch = make_batch(texts, LEVELS)
    tapped_TS, _ = target.states(batch.tokens_BL)
    logits_K = [trained.head(hidden) for hidden in trained.levels(batch, tapped_TS)]
    head = served(trained)
    num_places = batch.tokens_BL.shape[1]
    num_checked = 0
    for row in range(0, len(batch.row_R), 3):
        b, t = divmod(int(batch.row_R[row]), num_places)
        tokens = texts[b].tokens.tolist()
        taps = tapped_TS[b * num_places : b * num_places + t + 1].split(64, -1)
        for level, logits_V in enumerate(chain_logits(head, tokens, t, taps)):
            if batch.is_trained_ZR[level, row]:
                torch.testing.assert_close(logits_K[level][row], logits_V, atol=1e-5, rtol=1e-5)
                num_checked += 1
    assert num_checked > 20


def chain_logits(
    head: DraftHead, tokens: list[int], t: int, taps: tuple[torch.Tensor, ...]
) -> list[torch.Tensor]:
    """Logits after the committed tokens 0..t + 1 and then after each further token of the text."""
    cache = DenseCache(head.spec.stores)
    positions = torch.arange(1, t + 2)
    attend = cache.extend(list(range(-1, t)))
    rows = PlannedRows(torch.tensor(tokens[1 : t + 2]), positions, attend)
    hidden, states = head.forward(rows, head.combine(taps))
    found = [head.logits(hidden[-1:])[0]]
    for level in range(1, LEVELS):
        position = t + 1 + level
        if position >= len(tokens):
            break
        attend = cache.extend([t + level - 1])
        rows = PlannedRows(torch.tensor([tokens[position]]), torch.tensor([position]), attend)
        hidden, states = head.forward(rows, states[-1:])
        found.append(head.logits(hidden)[0])
    return found


def test_target_states_do_not_depend_on_padding(target: Target) -> None:
    texts = make_texts(2)
    batch = make_batch(texts, LEVELS)
    together, final = target.states(batch.tokens_BL)
    num_places = batch.tokens_BL.shape[1]
    for b, text in enumerate(texts):
        alone, alone_final = target.states(torch.from_numpy(text.tokens).long()[None])
        rows = slice(b * num_places, b * num_places + len(text.tokens))
        torch.testing.assert_close(together[rows], alone, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(final[rows], alone_final, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("sinks", [None, (0.5, -3.0, 4.0, 1.0)])
def test_the_targets_attention_is_the_engines(
    window: int | None, sinks: tuple[float, ...] | None
) -> None:
    store, num_texts, num_places = LayerStore(4, 2, 16, window=window), 2, 19
    sinks_N = None if sinks is None else torch.tensor(sinks)
    generator = torch.Generator().manual_seed(1)
    q_TNH = torch.randn(num_texts * num_places, 4, 16, generator=generator)
    kv_T2GH = torch.randn(num_texts * num_places, 2, 2, 16, generator=generator)
    together = PaddedAttend([store], num_texts, num_places, torch.float32, torch.device("cpu"))
    together.destination(0).kv_S2GH.copy_(kv_T2GH)
    found = together(0, q_TNH, sinks_N)
    for rows in torch.arange(len(q_TNH)).split(num_places):
        alone = DenseCache([store]).extend(range(-1, num_places - 1))
        alone.destination(0).kv_S2GH.copy_(kv_T2GH[rows])
        torch.testing.assert_close(found[rows], alone(0, q_TNH[rows], sinks_N))


def test_rows_and_targets_of_a_batch_are_the_answers_own() -> None:
    texts = make_texts(5, seed=3)
    batch: Batch = make_batch(texts, LEVELS)
    num_places = batch.tokens_BL.shape[1]
    for row, place in enumerate(batch.row_R.tolist()):
        b, t = divmod(place, num_places)
        text = texts[b]
        assert text.is_answer[t + 2]
        assert batch.cell_time_BT.view(-1)[batch.cell_R[row]] == t
        for level in range(LEVELS):
            inside = text.is_answer[t + 2 : t + 3 + level]
            expected = len(inside) == level + 1 and bool(inside.all())
            assert bool(batch.is_trained_ZR[level, row]) == expected
            if expected:
                assert batch.tokens_ZR[level, row] == text.tokens[t + 1 + level]
                state = batch.position_P[batch.target_ZR[level, row]]
                assert state == b * num_places + t + 1 + level
