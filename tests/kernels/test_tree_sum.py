"""Sums in a binary tree: the kernel against the torch body."""

from __future__ import annotations

import pytest
import torch

from eyas.kernels.tree_sum import tree_sum
from eyas.ops.tree_sum import tree_sum as operation
from tests.kernels.hopper import Job, compile_for_hopper


@pytest.mark.parametrize("num_parts", [1, 2, 4, 8])
def test_it_has_the_bits_of_the_torch_body(device: torch.device, num_parts: int) -> None:
    for shape in ((1, 64), (3, 5, 70), (2, 3000)):
        parts_Z = torch.randn(num_parts, *shape, device=device) * 1000
        assert torch.equal(tree_sum(parts_Z), operation.by_torch(parts_Z))


def test_the_order_is_that_of_a_tree(device: torch.device) -> None:
    large = 2.0**25
    parts_Z = torch.tensor([1.0, 1.0, large, -large], device=device).view(4, 1)
    assert sum(parts_Z).item() == 0.0
    assert tree_sum(parts_Z).item() == 2.0
    of_halves = torch.stack([tree_sum(parts_Z[:2]), tree_sum(parts_Z[2:])])
    assert torch.equal(tree_sum(of_halves), tree_sum(parts_Z))


def test_no_rows_have_no_sums(device: torch.device) -> None:
    assert tree_sum(torch.zeros(8, 0, 64, device=device)).shape == (0, 64)


def test_it_compiles_for_hopper_without_spilling() -> None:
    """Also of a single number, which Triton takes for a constant."""
    pointers = {"parts_ZX": "*fp32", "out_X": "*fp32"}
    constants = {"NUM_PARTS": 8, "BLOCK": 1024, "PDL": True}
    kernel = "eyas.kernels.tree_sum:tree_sum_kernel"
    compiled = compile_for_hopper(
        Job(kernel, {**pointers, "size": "i32"}, constants, aligned=("size",)),
        Job(kernel, pointers, {**constants, "size": 1}),
    )
    assert all(each.num_spilled == 0 and each.shared == 0 for each in compiled)
