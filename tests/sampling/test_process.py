"""Processing against a slow reference written from the law's text, row by row, in plain loops."""

from __future__ import annotations

import math
import random

import pytest
import torch

from eyas.core import SamplingParams
from eyas.sampling import process
from tests.sampling.rows import Row, assemble, choose

NEVER = float("-inf")


def expected(row: Row) -> list[float]:
    """Bias, penalties, mask, min_tokens, temperature, top-k, top-p, min-p: in that order."""
    p = row.params
    x = [float(v) for v in row.logits]
    for token, bias in p.logit_bias.items():
        x[token] += bias
    output = row.output + row.path
    for token in range(len(x)):
        count = output.count(token)
        if count or token in row.prompt:
            x[token] = (
                x[token] / p.repetition_penalty if x[token] > 0 else x[token] * p.repetition_penalty
            )
        x[token] -= p.frequency_penalty * count
        x[token] -= p.presence_penalty * (count > 0)
    if row.mask is not None:
        x = [v if ok else NEVER for v, ok in zip(x, row.mask, strict=True)]
    if len(output) < p.min_tokens:
        x = [NEVER if token in row.barred else v for token, v in enumerate(x)]
    if p.temperature == 0:
        return x
    x = [v / p.temperature for v in x]
    if p.top_k:
        threshold = sorted(x, reverse=True)[min(p.top_k, len(x)) - 1]
        x = [v if v >= threshold else NEVER for v in x]
    if p.top_p < 1:
        best = max(x)
        weights = [math.exp(v - best) for v in x]
        total, mass = sum(weights), 0.0
        for v in sorted(x, reverse=True):
            mass += math.exp(v - best) / total
            if mass >= p.top_p - 1e-9:
                break
        x = [u if u >= v else NEVER for u in x]
    if p.min_p > 0:
        threshold = max(x) + math.log(p.min_p)
        x = [v if v >= threshold - 1e-6 else NEVER for v in x]
    return x


def random_row(draw: random.Random, vocab_size: int) -> Row:
    """Every feature on or off, logits with ties."""
    on = lambda share=0.4: draw.random() < share  # noqa: E731
    step = draw.choice([1.0, 0.25, 0.0])
    logits = [
        round(draw.gauss(0, 3) / step) * step if step else draw.gauss(0, 3)
        for _ in range(vocab_size)
    ]
    tokens = range(vocab_size)
    max_tokens = 20
    params = SamplingParams(
        temperature=draw.choice([0.0, 0.5, 1.0, 1.7]),
        top_k=draw.choice([1, 3, 10, 10_000]) if on() else 0,
        top_p=draw.choice([0.3, 0.8, 0.99]) if on() else 1.0,
        min_p=draw.choice([0.05, 0.5, 1.0]) if on() else 0.0,
        repetition_penalty=draw.choice([0.5, 1.5]) if on() else 1.0,
        frequency_penalty=draw.choice([-0.5, 0.75]) if on() else 0.0,
        presence_penalty=draw.choice([-1.0, 1.25]) if on() else 0.0,
        logit_bias={draw.choice(tokens): draw.choice([-100.0, 2.5]) for _ in range(3)}
        if on()
        else {},
        min_tokens=draw.choice([1, 4, 8]) if on() else 0,
        max_tokens=max_tokens,
    )
    return Row(
        logits=logits,
        params=params,
        prompt=draw.choices(tokens, k=draw.randint(1, 9)),
        output=draw.choices(tokens, k=draw.randint(0, 6)),
        path=draw.choices(tokens, k=draw.randint(0, 4)),
        others=draw.choices(tokens, k=draw.randint(0, 4)),
        barred=frozenset(draw.sample(tokens, 3)),
        seed=draw.getrandbits(64),
        choice=draw.randrange(4),
        mask=[draw.random() < 0.7 or i == 0 for i in tokens] if on(0.3) else None,
    )


@pytest.mark.parametrize("vocab_size", [7, 37, 300])
@pytest.mark.parametrize("seed", range(6))
def test_processing_is_what_the_law_says(vocab_size: int, seed: int) -> None:
    draw = random.Random(1000 * vocab_size + seed)
    made = [random_row(draw, vocab_size) for _ in range(40)]
    got = process(*assemble(made))
    for row, values in zip(made, got.tolist(), strict=True):
        want = expected(row)
        assert [v == NEVER for v in values] == [v == NEVER for v in want], row
        for a, b in zip(values, want, strict=True):
            assert a == b or a == pytest.approx(b, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_rows_do_not_influence_each_other(seed: int) -> None:
    """Bits of 60 rows with 60 mixtures of features, together, alone, and in another order."""
    draw = random.Random(seed)
    made = [random_row(draw, 301) for _ in range(60)]
    logits, rows, params, mask = assemble(made)
    together = process(logits, rows, params, mask)
    chosen = choose(together, rows, params)
    for i, row in enumerate(made):
        own_logits, own_rows, own_params, own_mask = assemble([row])
        alone = process(own_logits, own_rows, own_params, own_mask)
        assert torch.equal(alone[0], together[i]), row
        assert choose(alone, own_rows, own_params).item() == chosen[i].item()
    order = draw.sample(range(60), 60)
    shuffled = process(*assemble([made[i] for i in order]))
    assert torch.equal(shuffled, together[order])


def test_the_logits_given_are_left_alone() -> None:
    row = random_row(random.Random(4), 50)
    logits, rows, params, mask = assemble([row])
    before = logits.clone()
    choose(process(logits, rows, params, mask), rows, params)
    assert torch.equal(logits, before)


def kept(row: Row) -> list[int]:
    values = process(*assemble([row]))[0]
    return (values > NEVER).nonzero().squeeze(1).tolist()


def test_ties_at_the_top_k_threshold_are_all_kept() -> None:
    logits = [1.0, 5.0, 3.0, 3.0, 3.0, 0.0]
    assert kept(Row(logits, SamplingParams(top_k=2))) == [1, 2, 3, 4]
    assert kept(Row(logits, SamplingParams(top_k=1))) == [1]
    assert kept(Row(logits, SamplingParams(top_k=5))) == [0, 1, 2, 3, 4]


def test_top_p_keeps_the_smallest_set_that_reaches_it_and_ties_at_its_edge() -> None:
    halves = [math.log(w) for w in (4.0, 2.0, 1.0, 1.0)]
    assert kept(Row(halves, SamplingParams(top_p=0.5))) == [0]
    assert kept(Row(halves, SamplingParams(top_p=0.51))) == [0, 1]
    assert kept(Row(halves, SamplingParams(top_p=0.8))) == [0, 1, 2, 3]
    assert kept(Row([0.0] * 8, SamplingParams(top_p=0.1))) == list(range(8))
    assert kept(Row(halves, SamplingParams(top_p=1e-9))) == [0]


@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.999])
def test_top_p_reaches_far_into_a_flat_distribution(top_p: float) -> None:
    """More tokens than any shortcut looks at first."""
    count = 3000
    logits = [1e-4 * i for i in range(count)]
    row = Row(logits, SamplingParams(top_p=top_p))
    want = [i for i, v in enumerate(expected(row)) if v > NEVER]
    assert abs(len(kept(row)) - len(want)) <= 1
    assert kept(row)[-1] == count - 1


def test_each_filter_renormalises_what_the_one_before_left() -> None:
    logits = [math.log(w) for w in (5.0, 3.0, 1.0, 1.0)]
    # top-k 2 leaves 5/8 and 3/8, so 0.6 is reached by the first alone; of the whole it is 0.5
    assert kept(Row(logits, SamplingParams(top_k=2, top_p=0.6))) == [0]
    assert kept(Row(logits, SamplingParams(top_p=0.6))) == [0, 1]


def test_filters_see_the_temperature() -> None:
    logits = [2.0, 1.0, 0.0]
    assert kept(Row(logits, SamplingParams(temperature=0.5, top_p=0.85))) == [0]
    assert kept(Row(logits, SamplingParams(temperature=2.0, top_p=0.85))) == [0, 1, 2]
    assert kept(Row(logits, SamplingParams(temperature=0.5, min_p=0.2))) == [0]
    assert kept(Row(logits, SamplingParams(temperature=2.0, min_p=0.2))) == [0, 1, 2]


def test_filters_do_not_act_at_temperature_zero() -> None:
    params = SamplingParams(temperature=0.0, top_k=1, top_p=0.1, min_p=0.9)
    assert kept(Row([1.0, 2.0, 3.0], params)) == [0, 1, 2]


def test_penalties_count_the_ancestors_and_no_other_node() -> None:
    params = SamplingParams(temperature=0, frequency_penalty=1.0, presence_penalty=0.25)
    row = Row([0.0] * 6, params, prompt=[1], output=[2], path=[3, 3], others=[4, 2])
    assert process(*assemble([row]))[0].tolist() == [0.0, 0.0, -1.25, -2.25, 0.0, 0.0]


def test_repetition_counts_the_prompt_and_turns_with_the_sign() -> None:
    params = SamplingParams(temperature=0, repetition_penalty=2.0)
    row = Row([3.0, -3.0, 3.0, -3.0, 3.0], params, prompt=[0, 1], output=[], path=[2], others=[4])
    assert process(*assemble([row]))[0].tolist() == [1.5, -6.0, 1.5, -3.0, 3.0]


@pytest.mark.parametrize("min_tokens", [1, 3])
def test_no_end_before_min_tokens_and_none_barred_after(min_tokens: int) -> None:
    """The token chosen at a row is output number len(output + path) + 1."""
    for num_before in range(6):
        for in_path in (0, min(2, num_before)):
            row = Row(
                [0.0] * 5,
                SamplingParams(temperature=0, min_tokens=min_tokens),
                prompt=[0, 0, 0],
                output=[1] * (num_before - in_path),
                path=[1] * in_path,
                barred=frozenset({2, 4}),
            )
            ends_now = num_before + 1 > min_tokens
            assert kept(row) == ([0, 1, 2, 3, 4] if ends_now else [0, 1, 3])


def test_the_lowest_id_wins_a_tie() -> None:
    greedy = SamplingParams(temperature=0)
    for size in (5, 33, 1000):
        for best in ([0, size - 1], [2, 3], [1, size // 2, size - 1]):
            logits = [7.0 if i in best else -1.0 for i in range(size)]
            assembled = assemble([Row(logits, greedy), Row([0.0] * size, greedy)])
            chosen = choose(process(*assembled), assembled[1], assembled[2])
            assert chosen.tolist() == [best[0], 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "bad", [[math.nan] * 40, [NEVER] * 40, [1.0] * 39 + [math.nan], [math.inf] * 40]
)
@pytest.mark.parametrize("filters", [{}, {"top_k": 3, "top_p": 0.8, "min_p": 0.1}])
def test_a_row_that_cannot_choose_says_so_and_harms_no_other(
    temperature: float, bad: list[float], filters: dict[str, float]
) -> None:
    params = SamplingParams(temperature=temperature, **filters)  # type: ignore[arg-type]
    draw = random.Random(0)
    good = [Row([draw.gauss(0, 2) for _ in range(40)], params, seed=i) for i in range(2)]
    undisturbed = assemble(good)
    want = choose(process(*undisturbed), undisturbed[1], undisturbed[2]).tolist()
    mixed = assemble([good[0], Row(bad, params), good[1]])
    got = choose(process(*mixed), mixed[1], mixed[2]).tolist()
    assert got == [want[0], -1, want[1]]


def test_an_empty_mask_allows_nothing_and_a_full_one_changes_nothing() -> None:
    row = random_row(random.Random(9), 70)
    row.mask = None
    plain = process(*assemble([row]))
    row.mask = [True] * 70
    assert torch.equal(process(*assemble([row])), plain)
    row.mask = [False] * 70
    logits, rows, params, mask = assemble([row])
    assert choose(process(logits, rows, params, mask), rows, params).tolist() == [-1]
