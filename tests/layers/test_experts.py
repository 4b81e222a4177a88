"""The layer of experts: what is added to what, in which order."""

from __future__ import annotations

import pytest
import torch

from eyas.layers import experts
from eyas.layers.experts import ExpertSpec, MixtureOfExperts
from eyas.layers.row_order import RowOrder
from eyas.ops.add_norm import added
from eyas.ops.route import Routing

HIDDEN, ROWS = 64, 9


@pytest.mark.parametrize("has_gate", [False, True])
def test_a_shared_expert_may_add_its_parts_itself(
    has_gate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device its product returns four parts, and for many rows their sum."""
    parts_ZTD = torch.randn(4, ROWS, HIDDEN, generator=torch.Generator().manual_seed(1))
    folded_ZTD = (((parts_ZTD[0] + parts_ZTD[1]) + parts_ZTD[2]) + parts_ZTD[3]).unsqueeze(0)
    spec = ExpertSpec(8, 32, Routing(3), shared_size=32, has_shared_gate=has_gate)
    layer = MixtureOfExperts(
        HIDDEN, spec, dtype=torch.float32, device=torch.device("cpu"), order=RowOrder(2)
    )
    for parameter in layer.parameters().values():
        parameter.normal_(std=0.2)
    layer.seal()
    x_TD, stream_TD = torch.randn(2, ROWS, HIDDEN)
    run = experts.GatedMlp.__call__
    results = []
    for returned in (parts_ZTD, folded_ZTD):

        def shared(block: experts.GatedMlp, x: torch.Tensor, returned: torch.Tensor = returned):
            return returned if block is layer._shared else run(block, x)

        monkeypatch.setattr(experts.GatedMlp, "__call__", shared)
        results.append(added(stream_TD, layer(x_TD)))
    assert torch.equal(*results)
    assert not torch.allclose(results[0], stream_TD)
