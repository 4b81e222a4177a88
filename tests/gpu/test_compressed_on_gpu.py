"""DeepSeek-V4 on a GPU: its logits, bits of rows however they are computed, drafts of its MTP layer.

Legend: T rows of a forward pass.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eyas import LLM
from eyas.attention.base import AttentionLayout, ContextRun, NodeGrid, PlannedRows
from eyas.attention.triton import TritonAttention
from eyas.cache.kv import KVStore
from eyas.config import DraftConfig
from eyas.layers.gemm.products import Products
from eyas.layers.row_order import RowOrder
from eyas.models import Decoder, load_model
from tests.gpu.test_layers_on_gpu import PROMPTS, ask, make_config, shown
from tests.models.tiny import expected_logits, make_model, save_model, tokens
from tests.models.tiny_v4 import save_v4

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
NUM_SLOTS = 400
SIZES = {"q_lora_rank": 32, "intermediate_size": 96, "max_position_embeddings": 512}
DTYPES = ["float32", "float16"]


class OnDevice:
    """One sequence over scattered slots of a device, fed in prompt chunks and then nodes."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, device = decoder, decoder.device
        generator = torch.Generator().manual_seed(3)
        self.slots = (torch.randperm(NUM_SLOTS, generator=generator) + 1).to(device)
        self.kv = KVStore(decoder.spec.stores, NUM_SLOTS, dtype=decoder.dtype, device=device)
        self.backend = TritonAttention(self.kv, pdl=True)

    @torch.inference_mode()
    def run(
        self,
        token_ids: list[int],
        positions: list[int],
        slots: torch.Tensor,
        layout: AttentionLayout,
    ) -> torch.Tensor:
        count, device = len(token_ids), slots.device
        padding = self.decoder.order.pad(count) - count
        write_slots_T = torch.cat([slots, slots.new_zeros(padding)])
        rows = PlannedRows(
            torch.tensor(token_ids + [0] * padding, device=device),
            torch.tensor(positions + [0] * padding, device=device),
            self.backend.plan(layout, write_slots_T),
        )
        hidden_TD, _ = self.decoder.forward(rows)
        return self.decoder.logits(hidden_TD)[:count].clone()

    def chunk(self, token_ids: list[int], start: int) -> torch.Tensor:
        stop = start + len(token_ids)
        run = ContextRun(sequence=0, row=0, start=start, count=len(token_ids))
        seats_B = torch.zeros(1, dtype=torch.int64, device=self.slots.device)
        layout = AttentionLayout(self.slots[None], seats_B, stop - 1, contexts=(run,))
        return self.run(token_ids, list(range(start, stop)), self.slots[start:stop], layout)

    def nodes(self, token_ids: list[int], start: int, parents: list[int] | None) -> torch.Tensor:
        count, device = len(token_ids), self.slots.device
        depths = list(range(count))
        if parents is not None:
            depths = []
            for parent in parents:
                depths.append(0 if parent < 0 else depths[parent] + 1)
        slots = self.slots[start : start + count]
        layout = AttentionLayout(
            slots_AC=self.slots[None],
            seats_B=torch.zeros(1, dtype=torch.int64, device=device),
            max_position=start + max(depths),
            nodes=NodeGrid(
                rows_BW=torch.arange(count, device=device).unsqueeze(0),
                slots_BW=slots.unsqueeze(0),
                roots_B=torch.tensor([start], device=device),
                parents_BW=None if parents is None else torch.tensor([parents], device=device),
            ),
        )
        return self.run(token_ids, [start + depth for depth in depths], slots, layout)


def load(directory: Path, dtype: str) -> Decoder:
    device = torch.device("cuda")
    order = RowOrder(products=Products(True, device, 512))
    return load_model(directory, dtype=dtype, device=device, order=order)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_oracles_logits_and_the_same_bits_in_any_pass(
    dtype: str, tmp_path: Path
) -> None:
    model = make_model("deepseek v4", **SIZES)
    decoder = load(save_model(model, tmp_path), dtype)
    token_ids = tokens(150)
    whole = OnDevice(decoder).chunk(token_ids, 0)
    expected = expected_logits(model, token_ids)
    errors = (whole.cpu() - expected).abs()
    if dtype == "float32":
        assert errors.max() <= 2e-3
    assert errors.mean() <= 0.1  # the indexer may choose others of nearly equal scores
    chunked, pieces, start = OnDevice(decoder), [], 0
    for size in (70, 1, 3, 26):
        pieces.append(chunked.chunk(token_ids[start : start + size], start))
        start += size
    assert torch.equal(torch.cat(pieces), whole[:start])
    chain = chunked.nodes(token_ids[start : start + 40], start, None)
    assert torch.equal(chain, whole[start : start + 40])
    parents = [-1]
    nodes = [token_ids[start]]
    path = [0]  # each node of the path has a sibling that is computed first
    for token in token_ids[start + 1 : start + 12]:
        parents += [path[-1], path[-1]]
        nodes += [(token + 7) % 250, token]
        path.append(len(nodes) - 1)
    tree = chunked.nodes(nodes, start, parents)
    assert torch.equal(tree[path], whole[start : start + 12])


DRAFTING = {
    "root": DraftConfig(drafter="root"),
    "ngram": DraftConfig(drafter="ngram", nodes=6),
    "chain": DraftConfig(drafter="head", steps=3, topk=1, nodes=4),
    "tree": DraftConfig(drafter="head", steps=3, topk=3, nodes=8),
}


def test_an_mtp_layer_drafts_for_several_sequences_in_captured_steps(tmp_path: Path) -> None:
    save_v4(tmp_path, **SIZES)
    prompts = [[token % 250 for token in prompt] for prompt in PROMPTS]
    with LLM(config=make_config(tmp_path, DRAFTING["root"], "bfloat16")) as llm:
        assert llm.info.exact, llm.info.exact_reason
        expected = shown(ask(llm, prompts, batch=1))
    for drafter in ("ngram", "chain", "tree"):
        config = make_config(tmp_path, DRAFTING[drafter], "bfloat16", max_batch_tokens=100)
        with LLM(config=config) as llm:
            for batch in (2, len(prompts)):
                assert shown(ask(llm, prompts, batch=batch)) == expected, (drafter, batch)
            graphs = llm.engine.launcher.graphs
            assert graphs is not None and graphs.num_replays > 0
