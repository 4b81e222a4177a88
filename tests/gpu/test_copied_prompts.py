"""Prompts over copied keys and values have the bits of the kernel that reads slots.

Legend: T rows, N query heads, H head dim.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from benchmarks.attention import Case, build, error, reference
from eyas.attention import copied_prompts
from eyas.attention.base import AttentionLayout, ContextRun
from eyas.attention.triton import TritonAttention
from eyas.cache.store import LayerStore
from eyas.kernels import has_warpgroups

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
HEADS = [
    *((32, 8, 128), (8, 8, 128), (16, 8, 128), (40, 8, 128), (28, 4, 128), (64, 8, 128)),
    *((32, 2, 128), (32, 8, 64), (64, 8, 64), (14, 2, 64), (15, 5, 64), (4, 4, 64)),
]


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with warpgroups, where all prompts are copied that may be."""
    if not has_warpgroups(torch.device("cuda")):
        pytest.skip("this kernel is for Hopper devices")
    monkeypatch.setattr(copied_prompts, "LEAST_LINES", 0)


def both(case: Case, sinks_N: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The answers over copies and over slots."""
    attention = TritonAttention(case.kv, pdl=True)
    assert attention.may_copy == {case.store}, "the kernels were found to differ"
    answers = []
    for may_copy in (attention.may_copy, set()):
        attention.may_copy = may_copy
        plan = attention.plan(case.layout, case.write_slots_T)
        answers.append(plan(0, case.q_TNH, sinks_N))
        assert bool(any(plan._copied.values())) == bool(may_copy)  # type: ignore[attr-defined]
    return answers[0], answers[1]


def with_chunks(case: Case, chunks: list[tuple[int, int]]) -> Case:
    """The case with (position, count) for each sequence in place of its chunk."""
    contexts: list[ContextRun] = []
    row = 0
    for sequence, (start, count) in enumerate(chunks):
        contexts.append(ContextRun(sequence, row, start, count))
        row += count
    old = case.layout
    layout = AttentionLayout(old.slots_AC, old.seats_B, old.max_position, tuple(contexts))
    q_TNH = torch.randn(
        row, case.store.num_query_heads, case.store.head_dim, device="cuda", dtype=case.q_TNH.dtype
    )
    slots_T = torch.zeros(row, dtype=torch.int64, device="cuda")
    return Case(case.store, case.kv, layout, slots_T, q_TNH, case.roots, case.parents)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_any_chunks_have_the_bits_of_the_other_kernel(
    heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    draw = random.Random(sum(heads))
    sinks_N = 3 * torch.randn(heads[0], device="cuda")
    for num in (1, 3, 9):
        roots = [
            draw.choice([1, 64, 127, 128, 129, 513, draw.randint(1, 3000)]) for _ in range(num)
        ]
        case = build(roots, 1, is_prompt=True, store=LayerStore(*heads), dtype=dtype, seed=num)
        starts = [draw.choice([0, 0, draw.randrange(root)]) for root in roots]
        counts = [draw.randint(1, root - start) for root, start in zip(roots, starts, strict=True)]
        chunks = with_chunks(case, list(zip(starts, counts, strict=True)))
        for sinks in (None, sinks_N):
            found_TNH, expected_TNH = both(chunks, sinks)
            assert same_bits(found_TNH, expected_TNH), (roots, starts, counts, sinks is None)


def test_a_long_prompt_is_right_and_a_second_run_changes_nothing() -> None:
    case = build([5000], 2600, is_prompt=True)
    found_TNH, expected_TNH = both(case)
    assert same_bits(found_TNH, expected_TNH)
    assert same_bits(both(case)[0], found_TNH)
    short = build([1500, 700], 333, is_prompt=True)
    assert error(both(short)[0], reference(short)) < 1e-2


def test_where_bits_differ_no_layer_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = copied_prompts.CopiedPrompts.attend

    def off_by_one(
        self: Any, q_TNH: Any, kv: Any, out_TNH: torch.Tensor, *a: Any, **b: Any
    ) -> None:
        attend(self, q_TNH, kv, out_TNH, *a, **b)
        out_TNH.view(torch.int16)[0, 0, 0] ^= 1

    monkeypatch.setattr(copied_prompts.CopiedPrompts, "attend", off_by_one)
    copied_prompts._agrees.cache_clear()
    case = build([300], 200, is_prompt=True)
    assert TritonAttention(case.kv).may_copy == set()
    copied_prompts._agrees.cache_clear()
