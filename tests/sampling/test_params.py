"""Parameters as tensors: columns by name, twins for graphs."""

from __future__ import annotations

import pytest
import torch

from eyas.core import SamplingParams
from eyas.sampling import BatchParams, SequenceParams, process
from eyas.sampling.process import SamplingRows
from tests.sampling.rows import CPU, choose

VOCAB = 300
WARM = SamplingParams(temperature=0.8, top_k=40, top_p=0.9, min_p=0.05)


def batch(*params: SamplingParams, seed: int = 5) -> BatchParams:
    sources = [SequenceParams(p, seed + i, i, 3 + i, frozenset({1})) for i, p in enumerate(params)]
    return BatchParams(sources, VOCAB, CPU)


def test_columns_are_parts_of_two_tensors_without_gaps() -> None:
    params = BatchParams(
        [
            SequenceParams(WARM, 2**64 - 1, 7, 11, frozenset()),
            SequenceParams(
                SamplingParams(
                    temperature=0,
                    top_k=2**31 - 1,
                    repetition_penalty=1.5,
                    frequency_penalty=-0.5,
                    presence_penalty=0.25,
                ),
                2**63 - 1,
                0,
                4,
                frozenset(),
            ),
        ],
        VOCAB,
        CPU,
    )
    assert params.floats_6B.shape == (6, 2) and params.integers_4B.shape == (4, 2)
    expected = {
        "temperature": [0.8, 0.0],
        "top_p": [0.9, 1.0],
        "min_p": [0.05, 0.0],
        "repetition": [1.0, 1.5],
        "frequency": [0.0, -0.5],
        "presence": [0.0, 0.25],
        "seed": [-1, 2**63 - 1],
        "choice": [7, 0],
        "top_k": [40, VOCAB],
        "num_prompt": [11, 4],
    }
    for name, values in expected.items():
        column = getattr(params, f"{name}_B")
        whole = params.floats_6B if column.is_floating_point() else params.integers_4B
        assert column.tolist() == pytest.approx(values) and column.is_contiguous()
        assert column.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    nobody = BatchParams([], VOCAB, CPU)
    assert len(nobody) == 0 and nobody.seed_B.shape == (0,) and nobody.is_plain


def test_what_has_other_operations_has_another_signature() -> None:
    kinds = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=1),
        SamplingParams(top_k=5),
        SamplingParams(top_p=0.5),
        SamplingParams(min_p=0.5),
        SamplingParams(top_k=5, top_p=0.5),
        SamplingParams(presence_penalty=1),
        SamplingParams(logprobs=2),
        SamplingParams(logprobs=3),
    ]
    signatures = {batch(kind).signature for kind in kinds}
    assert len(signatures) == len(kinds)
    filtered_but_greedy = SamplingParams(temperature=0, top_k=5, top_p=0.5, min_p=0.5)
    assert batch(filtered_but_greedy).signature == batch(kinds[0]).signature
    assert batch(kinds[1], kinds[0]).signature == batch(kinds[1]).signature
    assert batch(SamplingParams(top_k=7)).signature == batch(kinds[2]).signature
    assert batch(SamplingParams(top_k=7), kinds[0]).signature != batch(kinds[2]).signature
    assert batch(SamplingParams(top_k=9)).signature != batch(kinds[2]).signature
    assert batch(SamplingParams(top_k=9)).signature == batch(SamplingParams(top_k=16)).signature


def test_what_needs_tensors_of_other_shapes_is_not_capturable() -> None:
    assert batch(SamplingParams(temperature=0)).is_capturable
    assert batch(WARM, SamplingParams()).is_capturable
    for unusual in (
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(frequency_penalty=0.1),
        SamplingParams(presence_penalty=0.1),
        SamplingParams(logit_bias={3: 1.0}),
        SamplingParams(min_tokens=2),
        SamplingParams(logprobs=0),
    ):
        assert not batch(WARM, unusual).is_capturable


def rows_of(sequence_R: torch.Tensor) -> SamplingRows:
    position_R = 10 + torch.arange(len(sequence_R))
    history = torch.zeros((int(sequence_R.max()) + 1, 4), dtype=torch.int64)
    return SamplingRows(sequence_R, position_R, None, None, history, history[:, 0] + 3)


def test_a_padded_twin_samples_like_the_original_and_its_padding_is_greedy() -> None:
    params = batch(WARM, SamplingParams(temperature=0), SamplingParams(temperature=1.5))
    twin = params.padded(6)
    assert len(twin) == 3 and twin.signature == params.signature
    assert twin.temperature_B.tolist()[3:] == [0.0] * 3 and twin.top_p_B.tolist()[3:] == [1.0] * 3
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((12, VOCAB), generator=generator)
    rows = rows_of(torch.arange(12) // 2)
    chosen = choose(process(logits, rows, twin, None), rows, twin)
    own = rows_of(rows.sequence_R[:6])
    assert torch.equal(chosen[:6], choose(process(logits[:6], own, params, None), own, params))
    assert torch.equal(chosen[6:], logits[6:].argmax(dim=1))


def test_a_twin_is_filled_again_where_it_lies() -> None:
    greedy = SamplingParams(temperature=0)
    twin = batch(WARM, WARM, greedy, WARM).padded(4)
    addresses = [getattr(twin, f"{name}_B").data_ptr() for name in ("seed", "top_k", "min_p")]
    other = batch(
        greedy, SamplingParams(temperature=0.5, top_k=33, top_p=0.2, min_p=0.7), seed=2**63
    )
    twin.copy_(other)
    assert len(twin) == 2 and twin.sequences == other.sequences and twin.noisy == [False, True]
    assert torch.equal(twin.floats_6B[:, :2], other.floats_6B)
    assert torch.equal(twin.integers_4B[:, :2], other.integers_4B)
    assert twin.temperature_B.tolist()[2:] == [0.0, 0.0] and twin.seed_B.tolist()[2:] == [0, 0]
    assert twin.top_p_B.tolist()[2:] == [1.0, 1.0] and twin.top_k_B.tolist()[2:] == [0, 0]
    again = [getattr(twin, f"{name}_B").data_ptr() for name in ("seed", "top_k", "min_p")]
    assert again == addresses
    with pytest.raises(AssertionError):
        twin.copy_(batch(greedy))
