"""Which kernels a layer starts for one row on a device, one after the other.

At one row a step is as long as the starts and first bytes of its kernels, so none may come back unseen.
Nothing is computed here: launches are noted, and results are whatever is in memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from eyas.attention.base import Attend, PlannedRows
from eyas.cache.store import LayerStore, Store
from eyas.kernels.packed import Layout
from eyas.layers import linear
from eyas.layers.attention import SelfAttention
from eyas.layers.compute import Compute
from eyas.layers.gemm.products import Products
from eyas.layers.rope import RopeSpec, RopeTable
from eyas.layers.row_order import RowOrder
from eyas.models import ModelFiles
from eyas.models.decoder import DecoderLayer
from eyas.ops import dispatch
from eyas.ops.delta_rule import DeltaRule, delta_rule
from eyas.ops.rotate_and_store import KVDestination
from eyas.ops.state_lines import Lines
from eyas.parallel.shard import WHOLE
from tests.models.tiny import make_model, save_model

interpreter = pytest.importorskip("triton.runtime.interpreter")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="launches are noted on a CPU")

CPU, DTYPE = torch.device("cpu"), torch.bfloat16
SILENT = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "_unsafe_view")
"""Operations that start nothing on a device, beside views."""
ATTENTION = ["add_norm", "product", "rotate_and_store", "attention", "product"]
GATED_ATTENTION = [*ATTENTION[:-1], "gate_heads", "product"]
LATENT_ATTENTION = [
    *("add_norm", "product", "head_product", "rotate_and_store_latent", "attention"),
    *("head_product", "product"),
]
DELTA_NET = ["add_norm", "product", "convolve", "walk", "gated_norm", "product"]
EXPERTS = ["add_norm", "product", "route", "expert_product", "expert_product"]
"""The last two are the products of all experts of a row, shared ones among them."""


class Launches(TorchDispatchMode):
    """Names of kernels, and of torch's operations that start one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.names: list[str] = []

        def note(executor: Any, *_args: Any, **_options: Any) -> None:
            self.names.append(executor.fn.__name__.removesuffix("_kernel"))

        monkeypatch.setattr(interpreter.GridExecutor, "__call__", note)
        monkeypatch.setattr(dispatch, "usable", lambda device: True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not func.is_view and name not in SILENT:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


class Noting:
    """An `Attend` of one row that only notes that it was called; a delta net's is the operation."""

    def __init__(self, launches: Launches, store: Store) -> None:
        self._launches, self._store = launches, store
        if isinstance(store, LayerStore):
            kv = torch.zeros(4, *store.slot_shape, dtype=DTYPE)
            self._destination = KVDestination.of(kv, torch.zeros(1, dtype=torch.int64))
        self._lines = Lines(
            torch.full((8, 1), -1),
            torch.zeros(1, 4, dtype=torch.int64),
            torch.zeros(1, 3, dtype=torch.int64),
            torch.zeros(1, 1, dtype=torch.int64),
            torch.zeros(1, 1, dtype=torch.int64),
            num_rows=1,
            num_columns=4,
        )

    def destination(self, layer: int) -> KVDestination:
        return self._destination

    def __call__(self, layer: int, q_TNH: torch.Tensor, sinks_N: Any = None) -> torch.Tensor:
        self._launches.names.append("attention")
        assert isinstance(self._store, LayerStore)
        return q_TNH.new_empty(*q_TNH.shape[:2], self._store.output_dim)

    def recur(self, layer: int, inputs_TX: torch.Tensor, rule: DeltaRule) -> torch.Tensor:
        states = torch.empty(1, rule.num_value_heads, rule.key_dim, rule.value_dim)
        stored = torch.empty(1, 4, inputs_TX.shape[1], dtype=DTYPE)
        return delta_rule(inputs_TX, states, stored, self._lines, rule)


@pytest.mark.parametrize(
    ("name", "sizes", "layer", "expected"),
    [
        ("qwen3 next", {"shared_expert_intermediate_size": 48}, 0, DELTA_NET + EXPERTS),
        ("qwen3 next", {"shared_expert_intermediate_size": 48}, 3, GATED_ATTENTION + EXPERTS),
        ("glm4 moe", {}, 1, ATTENTION + EXPERTS),
        ("deepseek v2 lite yarn", {"n_shared_experts": 2}, 1, LATENT_ATTENTION + EXPERTS),
    ],
    ids=["delta net", "gated attention", "attention", "latent attention"],
)
def test_a_layer_starts_these_kernels_and_no_others(
    name: str,
    sizes: dict[str, int],
    layer: int,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linear, "pack_weight", lambda weight_OI: None)
    directory = save_model(make_model(name, **sizes), tmp_path / "model")
    order = RowOrder(products=Products(True, CPU, 64))
    decoder = ModelFiles.open(directory).load(dtype=DTYPE, order=order)
    run, spec = decoder._layers[layer], decoder.spec
    assert isinstance(run, DecoderLayer)
    stream_TD, parts = torch.zeros(1, spec.hidden_size, dtype=DTYPE), torch.zeros(4, 1, 1)
    zero_1 = torch.zeros(1, dtype=torch.int64)
    angles = decoder._ropes[decoder.spec.rope].at(zero_1)
    launches = Launches(monkeypatch)
    rows = PlannedRows(zero_1, zero_1, cast(Attend, Noting(launches, spec.stores[layer])))
    with torch.no_grad(), launches:
        run(stream_TD, parts.expand(-1, -1, spec.hidden_size), angles, rows)
    assert launches.names == expected


def test_kernels_read_the_parts_of_fp8_heads_without_another_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order, layout = RowOrder(products=Products(True, CPU, 64)), Layout("fp8", 1, 0)
    compute = Compute(DTYPE, CPU, order)
    attention = SelfAttention(
        256, 2, 1, 128, compute, qkv_bias=True, output_bias=False, qk_norm_epsilon=1e-6,
        input_size=None, norms_projections=False, qk_norm_offset=0.0, head_layout=None,
        has_sinks=False, has_output_gate=True, shard=WHOLE,
        layouts=dict.fromkeys(("q.weight", "k.weight", "v.weight", "o.weight"), layout),
    )  # fmt: skip
    attention.seal()
    store, zero_1 = LayerStore(2, 1, 128), torch.zeros(1, dtype=torch.int64)
    angles = RopeTable(RopeSpec("default", 10000.0, 128), 8, compute).at(zero_1)
    x_TI, launches = torch.zeros(1, 256, dtype=DTYPE), Launches(monkeypatch)
    attend = cast(Attend, Noting(launches, store))
    with torch.no_grad(), launches:
        parts = attention(0, x_TI, angles, attend)
    assert launches.names == GATED_ATTENTION[1:] and parts.shape == (4, 1, 256)
