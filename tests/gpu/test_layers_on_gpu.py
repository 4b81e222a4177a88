"""Every kind of layer on a GPU: bit for bit, whoever drafts, alone and together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from eyas import LLM, SamplingParams
from eyas.config import (
    CacheConfig,
    DeviceConfig,
    DraftConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from eyas.kernels.packed import Layout, PackedWeight
from eyas.layers.compute import Compute
from eyas.layers.expert_spec import ExpertSpec
from eyas.layers.experts import MixtureOfExperts
from eyas.layers.gemm.products import Products
from eyas.layers.row_order import RowOrder
from eyas.ops.add_norm import summed
from eyas.ops.dequantise import dequantised
from eyas.ops.route import Routing
from eyas.outputs import Choice
from tests.laws.cases import walk_text
from tests.laws.world import LAYERS, write_layers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DRAFTING = {
    "root": DraftConfig(drafter="root"),
    "ngram": DraftConfig(drafter="ngram", nodes=6),
    "chain": DraftConfig(drafter="model", model="SAME", steps=4, topk=1, nodes=5),
    "tree": DraftConfig(drafter="model", model="SAME", steps=3, topk=3, nodes=8),
}
PROMPTS = [walk_text(97 + 3 * i, 5 + 17 * i, [0, 1, 0, i % 2]) for i in range(9)]


def make(directory: Path, drafter: str, dtype: str, *, max_batch_tokens: int = 512) -> LLM:
    draft = DRAFTING[drafter]
    if draft.model is not None:
        draft = DraftConfig(
            drafter="model",
            model=str(directory),
            steps=draft.steps,
            topk=draft.topk,
            nodes=draft.nodes,
        )
    return LLM(config=make_config(directory, draft, dtype, max_batch_tokens=max_batch_tokens))


def make_config(
    directory: Path,
    draft: DraftConfig,
    dtype: str,
    *,
    max_batch_tokens: int = 512,
    num_slots: int = 20_000,
    max_num_seqs: int = 16,
) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(path=str(directory), dtype=dtype, max_model_len=512),
        device=DeviceConfig(device="cuda", num_threads=4),
        draft=draft,
        cache=CacheConfig(num_slots=num_slots),
        scheduler=SchedulerConfig(
            flights=1, max_batch_tokens=max_batch_tokens, max_num_seqs=max_num_seqs
        ),
    )


def ask(llm: LLM, prompts: Sequence[list[int]], *, batch: int) -> list[Choice]:
    params = [
        SamplingParams(temperature=0.8 * (i % 2), seed=i, max_tokens=32, logprobs=1)
        for i in range(len(prompts))
    ]
    outputs = [
        output
        for first in range(0, len(prompts), batch)
        for output in llm.generate(prompts[first : first + batch], params[first : first + batch])
    ]
    llm.engine.check()
    assert llm.engine.metrics.num_failed_steps == 0
    return [output.choices[0] for output in outputs]


def shown(choices: Sequence[Choice]) -> list[object]:
    return [
        (one.token_ids, [(entry.token_id, entry.logprob) for entry in one.logprobs or ()])
        for one in choices
    ]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("layers", LAYERS)
def test_answers_are_the_same_however_they_are_made(
    layers: str, dtype: str, tmp_path: Path
) -> None:
    directory = write_layers(tmp_path, layers)
    with make(directory, "root", dtype) as llm:
        assert llm.info.exact, llm.info.exact_reason
        expected = shown(ask(llm, PROMPTS, batch=1))
        assert shown(ask(llm, PROMPTS, batch=len(PROMPTS))) == expected
    # a model with a state per sequence, or with compressed entries, cannot draft for itself
    for drafter in ("ngram",) if layers in ("state", "compressed") else ("ngram", "chain", "tree"):
        with make(directory, drafter, dtype, max_batch_tokens=100) as llm:
            for batch in (1, 4, len(PROMPTS)):
                assert shown(ask(llm, PROMPTS, batch=batch)) == expected, (drafter, batch)
            assert llm.engine.stats().num_accepted_tokens > 0


@pytest.mark.parametrize("drafter", ["root", "tree"])
def test_states_go_on_after_prefix_hits_and_preemption(drafter: str, tmp_path: Path) -> None:
    directory = write_layers(tmp_path, "state")
    with make(directory, "root", "bfloat16") as llm:
        expected = shown(ask(llm, PROMPTS, batch=1))
    drafting = DraftConfig(drafter="ngram", nodes=6) if drafter == "tree" else DRAFTING["root"]
    config = make_config(directory, drafting, "bfloat16", num_slots=600, max_num_seqs=9)
    with LLM(config=config) as llm:
        for _ in range(2):
            assert shown(ask(llm, PROMPTS, batch=len(PROMPTS))) == expected
        stats = llm.engine.stats()
        assert stats.num_prefix_hit_tokens > 0 and stats.num_preemptions > 0
        graphs = llm.engine.launcher.graphs
        assert graphs is not None and graphs.num_replays > 0


SHARED = {
    "Qwen3-Next": (2048, ExpertSpec(64, 512, Routing(10), shared_size=512, has_shared_gate=True)),
    "GLM-4.5-Air": (
        4096,
        ExpertSpec(32, 1408, Routing(8, "sigmoid"), has_correction=True, shared_size=1408),
    ),
    "DeepSeek-V2-Lite": (
        2048,
        ExpertSpec(64, 1408, Routing(6, normalizes=False), shared_size=2816),
    ),
}
"""Hidden size and experts, fewer of them than the models have."""


@pytest.mark.parametrize("layout", [None, Layout("fp8", 1, 0), Layout("fp8", 1, 128)], ids=str)
@pytest.mark.parametrize("name", SHARED)
def test_a_shared_expert_among_the_others_has_the_same_bits_beside_any_rows(
    name: str, layout: Layout | None
) -> None:
    """And gives what float64 gives, from one row to a long prompt's."""
    hidden, spec = SHARED[name]
    device, num_shared = torch.device("cuda"), spec.shared_size // spec.intermediate_size
    if layout is not None and num_shared > 1:
        pytest.skip("packed weights are not divided")
    blocks = [*(f"experts.{index}" for index in range(spec.num_experts)), "shared"]
    parts = [f"{block}.{part}.weight" for block in blocks for part in ("gate", "up", "down")]
    layer = MixtureOfExperts(
        hidden,
        spec,
        Compute(torch.bfloat16, device, RowOrder(products=Products(True, device, 512))),
        layouts={} if layout is None else dict.fromkeys(parts, layout),
    )
    values: dict[str, torch.Tensor] = {}
    for part, parameter in layer.parameters().items():
        assert isinstance(parameter, torch.Tensor | PackedWeight)
        parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
        if part.startswith("shared"):
            plain = parameter if isinstance(parameter, torch.Tensor) else dequantised(parameter)
            values[part] = plain.double()
    layer.seal()
    assert layer._shared is None
    x_TD = torch.randn(300, hidden, device=device).bfloat16()
    all_KTD = layer(x_TD)
    assert len(all_KTD) == num_shared + spec.routing.num_chosen
    for num_rows in (1, 2, 8, 12, 33, 64, 100, 256):
        for first in (0, 300 - num_rows):
            found_KTD = layer(x_TD[first : first + num_rows])
            assert torch.equal(found_KTD, all_KTD[:, first : first + num_rows]), (num_rows, first)
    gate, up, down = (values[f"shared.{part}.weight"] for part in ("gate", "up", "down"))
    x = x_TD.double()
    expected_TD = (torch.nn.functional.silu(x @ gate.t()) * (x @ up.t())) @ down.t()
    if spec.has_shared_gate:
        expected_TD = expected_TD * (x @ values["shared_gate.weight"].t()).sigmoid()
    shared_TD = summed(all_KTD[:num_shared]).double()
    assert (shared_TD - expected_TD).norm() / expected_TD.norm() < 1e-2
