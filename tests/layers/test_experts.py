"""The layer of experts: what is added to what, in which order, and where the shared expert is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eyas.kernels.packed import Layout, PackedWeight
from eyas.layers import experts, linear
from eyas.layers.compute import Compute
from eyas.layers.expert_spec import ExpertSpec
from eyas.layers.experts import MixtureOfExperts
from eyas.layers.gemm import apply
from eyas.layers.gemm.products import Products
from eyas.layers.layouts import UNPACKED, Layouts
from eyas.layers.row_order import RowOrder
from eyas.ops.add_norm import added, summed
from eyas.ops.dequantise import dequantised
from eyas.ops.route import Routing
from eyas.parallel.cut import whole
from eyas.parallel.shard import WHOLE, Shard

HIDDEN, ROWS, CHOSEN = 128, 9, 3
CPU = torch.device("cpu")
FP8 = Layout("fp8", 1, 128)
PARTS = ("gate", "up", "down")


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> RowOrder:
    """The row order of a device, whose layers run torch's bodies here."""
    monkeypatch.setattr(
        apply, "scores", lambda x_TI, weight_OI: (x_TI @ weight_OI.t()).unsqueeze(0)
    )
    monkeypatch.setattr(linear, "pack_weight", lambda weight_OI: None)
    return RowOrder(products=Products(True, CPU, 64))


def spec_of(shared_size: int, *, has_gate: bool = False) -> ExpertSpec:
    """Experts of 128 features, and a shared one."""
    routing = Routing(CHOSEN)
    return ExpertSpec(8, 128, routing, shared_size=shared_size, has_shared_gate=has_gate)


def layer_of(
    spec: ExpertSpec, order: RowOrder, layouts: Layouts = UNPACKED, shard: Shard = WHOLE
) -> MixtureOfExperts:
    return MixtureOfExperts(
        HIDDEN, spec, Compute(torch.float32, CPU, order), layouts=layouts, shard=shard
    )


def random_values(layer: MixtureOfExperts) -> dict[str, torch.Tensor]:
    """A tensor for each parameter, of its whole shape."""
    generator = torch.Generator().manual_seed(3)
    return {
        name: 0.1 * torch.randn(tuple(parameter.shape), generator=generator)
        for name, parameter in layer.parameters().items()
    }


def fill(layer: MixtureOfExperts, values: dict[str, torch.Tensor]) -> MixtureOfExperts:
    for name, parameter in layer.parameters().items():
        for rows, columns, target in whole(parameter).regions():
            part = values[name][slice(*rows)]
            assert isinstance(target, torch.Tensor)
            target.copy_(part if columns is None else part[:, slice(*columns)])
    layer.seal()
    return layer


def inputs() -> torch.Tensor:
    return torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("has_gate", [False, True])
def test_a_shared_expert_may_add_its_parts_itself(
    has_gate: bool, on_device: RowOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is a block of its own, its product returns four parts, and for many rows their sum."""
    parts_ZTD = torch.randn(4, ROWS, HIDDEN, generator=torch.Generator().manual_seed(1))
    folded_ZTD = (((parts_ZTD[0] + parts_ZTD[1]) + parts_ZTD[2]) + parts_ZTD[3]).unsqueeze(0)
    layer = layer_of(spec_of(192, has_gate=has_gate), on_device)
    fill(layer, random_values(layer))
    assert layer._shared is not None
    stream_TD, x_TD = torch.randn(ROWS, HIDDEN), inputs()
    results = []
    for returned in (parts_ZTD, folded_ZTD):
        monkeypatch.setattr(experts.GatedMlp, "__call__", lambda block, x, parts=returned: parts)
        results.append(added(stream_TD, layer(x_TD)))
    assert torch.equal(*results)
    assert not torch.allclose(results[0], stream_TD)


@pytest.mark.parametrize("has_gate", [False, True])
@pytest.mark.parametrize("num_shared", [1, 3])
def test_a_shared_expert_is_run_as_one_or_several_of_the_others(
    num_shared: int, has_gate: bool, on_device: RowOrder
) -> None:
    spec = spec_of(128 * num_shared, has_gate=has_gate)
    on_cpu, joined = layer_of(spec, RowOrder(2)), layer_of(spec, on_device)
    values = random_values(on_cpu)
    parts_KTD = fill(joined, values)(inputs())
    assert joined._shared is None and len(parts_KTD) == num_shared + CHOSEN
    expected_TD = summed(fill(on_cpu, values)(inputs()))
    torch.testing.assert_close(summed(parts_KTD), expected_TD, rtol=1e-4, atol=1e-6)
    without = {name: 0 * each if "shared" in name else each for name, each in values.items()}
    chosen_TD = summed(fill(layer_of(spec, on_device), without)(inputs()))
    assert (chosen_TD - expected_TD).abs().max() > 1e-3
    shared_STD, others_KTD = parts_KTD.split([num_shared, CHOSEN])
    assert torch.equal(summed(others_KTD), chosen_TD)
    assert all(part.abs().max() > 1e-4 for part in shared_STD)


def test_ranks_have_a_part_of_a_shared_expert_among_the_others(on_device: RowOrder) -> None:
    spec = spec_of(128, has_gate=True)
    values = random_values(layer_of(spec, on_device))
    expected_KTD = fill(layer_of(spec, on_device), values)(inputs())
    ranks = [fill(layer_of(spec, on_device, shard=Shard(rank, 2)), values) for rank in range(2)]
    assert all(rank._shared is None for rank in ranks)
    parts_KTD = ranks[0](inputs()) + ranks[1](inputs())
    torch.testing.assert_close(parts_KTD, expected_KTD, rtol=1e-4, atol=1e-6)


def packed(*blocks: str) -> dict[str, Layout]:
    return {f"{block}.{part}.weight": FP8 for block in blocks for part in PARTS}


def test_a_packed_shared_expert_is_among_packed_ones(on_device: RowOrder) -> None:
    layouts = packed(*(f"experts.{index}" for index in range(8)), "shared")
    layer = layer_of(spec_of(128), on_device, layouts)
    values: dict[str, Any] = random_values(layer)
    for name, parameter in layer.parameters().items():
        if isinstance(parameter, PackedWeight):
            parameter.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(5))
            values[name] = dequantised(parameter)
        else:
            assert isinstance(parameter, torch.Tensor)
            parameter.copy_(values[name])
    layer.seal()
    assert layer._shared is None and isinstance(values["shared.down.weight"], torch.Tensor)
    found_KTD = layer(inputs())
    expected_KTD = fill(layer_of(spec_of(128), on_device), values)(inputs())
    torch.testing.assert_close(found_KTD, expected_KTD, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("size", "layouts", "shard"),
    [
        (192, {}, WHOLE),
        (128, packed("shared"), WHOLE),
        (128, packed(*(f"experts.{index}" for index in range(8))), WHOLE),
        (256, packed(*(f"experts.{index}" for index in range(8)), "shared"), WHOLE),
        (256, {}, Shard(0, 2)),
        (128, {}, Shard(0, 2, by_expert=True)),
        (128, {}, Shard(by_tree=True)),
    ],
    ids=["another width", "packed", "not packed", "divided and packed", "divided", "ep", "tree"],
)
def test_a_shared_expert_that_is_not_like_the_others_is_a_block_of_its_own(
    size: int, layouts: dict[str, Layout], shard: Shard, on_device: RowOrder
) -> None:
    layer = layer_of(spec_of(size), on_device, layouts, shard)
    assert layer._shared is not None
    shapes = {name: tuple(each.shape) for name, each in layer.parameters().items()}
    assert shapes["shared.down.weight"] == (HIDDEN, size)
    assert sum(name.startswith("shared.") for name in shapes) == 3
