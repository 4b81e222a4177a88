"""Model law over the engine's own attention: slots in any order, chunks, chains and trees."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from eyas.attention.base import AttentionLayout, ContextRun, NodeGrid, PlannedRows
from eyas.attention.reference import ReferenceAttention
from eyas.cache.kv import KVStore
from eyas.layers.row_order import RowOrder
from eyas.models import Decoder, load_model
from eyas.runner.rows import ForwardRows
from eyas.runner.runner import ModelRunner, plan_rows

from .tiny import MODELS, expected_logits, make_model, save_model, tokens

TOLERANCE = 2e-5
NUM_SLOTS = 200
Pair = tuple[PreTrainedModel, Decoder]
TREE_PARENTS = [-1, 0, 0, 0, 1, 1, 2, 4, 4, 7, 9, 9]
CHAIN_PARENTS = list(range(-1, 5))


@pytest.fixture(scope="module", params=list(MODELS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    model = make_model(request.param)
    directory = save_model(model, tmp_path_factory.mktemp("model"))
    return model, load_model(directory, dtype="float32", order=RowOrder(8))


class OneSequence:
    """One sequence over scattered slots, fed in prompt chunks and then one tree."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        generator = torch.Generator().manual_seed(3)
        self.slots = torch.randperm(NUM_SLOTS, generator=generator) + 1
        kv = KVStore(
            decoder.spec.stores, NUM_SLOTS, dtype=torch.float32, device=torch.device("cpu")
        )
        for layer in kv.layers:
            layer[1:] = float("nan")  # what was never written must never be read
        if kv.states is not None:
            kv.states.resize(2, len(TREE_PARENTS))
        self.backend = ReferenceAttention(kv)

    def run(
        self,
        token_ids: list[int],
        positions: list[int],
        slots: torch.Tensor,
        layout: AttentionLayout,
    ) -> torch.Tensor:
        count = len(token_ids)
        padding = self.decoder.order.pad(count) - count
        write_slots_T = torch.cat([slots, torch.zeros(padding, dtype=torch.int64)])
        with torch.inference_mode():
            rows = PlannedRows(
                torch.tensor(token_ids + [0] * padding),
                torch.tensor(positions + [0] * padding),
                self.backend.plan(layout, write_slots_T),
            )
            hidden_TD, _ = self.decoder.forward(rows)
            return self.decoder.logits(hidden_TD)[:count]

    def chunk(self, token_ids: list[int], start: int) -> torch.Tensor:
        stop = start + len(token_ids)
        context = ContextRun(sequence=0, row=0, start=start, count=len(token_ids))
        seats_B = torch.zeros(1, dtype=torch.int64)
        layout = AttentionLayout(self.slots[None, :stop], seats_B, stop - 1, contexts=(context,))
        return self.run(token_ids, list(range(start, stop)), self.slots[start:stop], layout)

    def nodes(self, token_ids: list[int], start: int, parents: list[int]) -> torch.Tensor:
        is_chain = parents == list(range(-1, len(parents) - 1))
        depths: list[int] = []
        for parent in parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        node_slots = self.slots[start : start + len(parents)]
        nodes = NodeGrid(
            rows_BW=torch.arange(len(parents)).unsqueeze(0),
            slots_BW=node_slots.unsqueeze(0),
            roots_B=torch.tensor([start]),
            parents_BW=None if is_chain else torch.tensor([parents]),
        )
        layout = AttentionLayout(
            slots_AC=self.slots[None, : start + len(parents)],
            seats_B=torch.zeros(1, dtype=torch.int64),
            max_position=start + max(depths),
            nodes=nodes,
        )
        return self.run(token_ids, [start + depth for depth in depths], node_slots, layout)


@pytest.mark.parametrize("sizes", [[96], [40, 1, 30, 24, 1]], ids=["whole", "chunked"])
def test_a_prompt_over_slots_matches_transformers(pair: Pair, sizes: list[int]) -> None:
    model, decoder = pair
    token_ids = tokens(sum(sizes))
    sequence, start = OneSequence(decoder), 0
    pieces = []
    for size in sizes:
        pieces.append(sequence.chunk(token_ids[start : start + size], start))
        start += size
    expected = expected_logits(model, token_ids)
    assert (torch.cat(pieces) - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize(
    "parents", [TREE_PARENTS, CHAIN_PARENTS, [-1]], ids=["tree", "chain", "root"]
)
def test_nodes_over_slots_match_a_forward_of_their_own_path(pair: Pair, parents: list[int]) -> None:
    model, decoder = pair
    prompt = tokens(40)
    sequence = OneSequence(decoder)
    sequence.chunk(prompt, 0)
    node_tokens = tokens(len(parents), seed=2)
    found = sequence.nodes(node_tokens, len(prompt), parents)
    for leaf in set(range(len(parents))) - set(parents):
        path, at = [], leaf
        while at >= 0:
            path.insert(0, at)
            at = parents[at]
        text = prompt + [node_tokens[node] for node in path]
        expected = expected_logits(model, text)[-len(path) :]
        assert (found[path] - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("parents", [TREE_PARENTS, [-1], []], ids=["tree", "root", "no node"])
def test_outputs_that_are_not_read_can_be_left_out(pair: Pair, parents: list[int]) -> None:
    """The other outputs, and all keys and values, keep their bits."""
    _, decoder = pair
    num_layers = decoder.spec.num_layers
    assert not decoder.ends_early((num_layers,)) and not decoder.ends_early((1, num_layers + 1))
    if not decoder.ends_early((num_layers - 1,)):
        spec = decoder.spec
        assert spec.latent or spec.hyper or spec.state_of(num_layers - 1) is not None
        pytest.skip("a layer of another kind is last")
    found = [_tree_beside_a_chunk(decoder, parents, num) for num in (None, len(parents))]
    (whole_RV, whole_kv, all_rows), (logits_RV, kv, num_rows) = found
    assert all_rows == decoder.order.pad(len(parents) + 30)
    assert num_rows == (decoder.order.pad(len(parents)) if parents else 0)
    assert all(map(torch.equal, whole_kv, kv))
    if parents:
        assert whole_RV is not None and logits_RV is not None
        assert torch.equal(whole_RV, logits_RV)


def _tree_beside_a_chunk(
    decoder: Decoder, parents: list[int], num_outputs: int | None
) -> tuple[torch.Tensor | None, list[torch.Tensor], int]:
    """Return the logits of a tree that stands before a chunk of another sequence in one forward pass,
    what is stored after it, and the number of rows of its output. num_outputs: as `ForwardRows`."""
    sequence, prompt, num = OneSequence(decoder), tokens(70), len(parents)
    sequence.chunk(prompt[:40], 0)
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    slots_2C = sequence.slots.view(2, -1)
    own = slots_2C[0, 40 : 40 + num]
    rooted = bool(num)
    grid = NodeGrid(
        torch.arange(num).unsqueeze(0),
        own.unsqueeze(0),
        torch.tensor([40]),
        torch.tensor([parents]) if num > 1 else None,
    )
    layout = AttentionLayout(
        slots_2C,
        torch.tensor([0, 1])[not rooted :],
        99,
        (ContextRun(int(rooted), num, 0, 30),),
        grid if rooted else None,
    )
    rows = ForwardRows(
        tokens_T=torch.tensor([*tokens(num, seed=2), *prompt[40:]]),
        positions_T=torch.tensor([*(40 + depth for depth in depths), *range(30)]),
        write_slots_T=torch.cat([own, slots_2C[1, :30]]),
        layout=layout,
        logits_rows_R=torch.arange(num) if rooted else None,
        num_leading=num,
        num_outputs=num_outputs,
    )
    backend = sequence.backend
    logits_RV = ModelRunner(decoder, backend).forward(rows).logits_RV
    stored = [layer.nan_to_num(-1.0) for layer in backend.kv.layers]
    with torch.inference_mode():  # once more, for what the network returns
        planned = plan_rows(rows, backend, decoder.order, ends_early=decoder.ends_early())
        hidden_TD, _ = decoder.forward(planned)
    return logits_RV, stored, len(hidden_TD)
