"""The cache law with a real engine: slots add up at every moment, and sharing changes nothing."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from eyas.core import Request, SamplingParams
from tests.laws.cases import Oracle, assert_same, walk_text
from tests.laws.drafters import RandomTrees
from tests.laws.world import Answers, Setting, model_drafter, new_engine, run
from tests.thorough import only_thorough

LENGTH = 90
PLAIN = Setting(max_model_len=LENGTH)


def random_requests(draw: random.Random, count: int) -> list[Request]:
    """Prompts that often share a beginning, some in namespaces of their own."""
    common = walk_text(97, 25, [0, 0, 1])
    asked = []
    for i in range(count):
        own = walk_text(draw.randrange(97, 123), draw.randint(1, 30), [0, draw.randint(0, 1)])
        params = SamplingParams(
            temperature=draw.choice([0.0, 0.7, 1.3]),
            seed=draw.randrange(5),
            max_tokens=draw.randint(1, 40),
            n=draw.choice([1, 1, 2, 3]),
            logprobs=1,
            prompt_logprobs=draw.choice([None, None, 0]),
        )
        prompt = (common[: draw.randint(1, 25)] if draw.random() < 0.7 else []) + own
        salt = draw.choice(["", "", "mine"])
        asked.append(Request(id=f"r{i}", prompt_token_ids=prompt, params=params, cache_salt=salt))
    return asked


@pytest.mark.parametrize(
    ("seed", "flights"),
    [
        *[(seed, seed % 2) for seed in range(3)],
        *only_thorough((3, 1), (4, 0), *[(seed, 1 - seed % 2) for seed in range(5)]),
    ],
)
def test_slots_add_up_through_aborts_preemptions_and_ends(seed: int, flights: int) -> None:
    """`run` checks after every step, and that nothing is held at the end."""
    draw = random.Random(seed)
    asked = random_requests(draw, 12)
    plain = run(new_engine(replace(PLAIN, prefix_cache=False)), asked, check=False)
    slots = LENGTH + draw.choice([16, 40])
    drafters = [
        RandomTrees(5, seed),
        model_drafter(PLAIN.dtype, slots, 3, "target"),
        Oracle(6, _known(asked, plain), decoys=True, seed=seed),
    ]
    setting = replace(PLAIN, num_slots=slots, max_batch_tokens=20, flights=flights)
    engine = new_engine(setting, drafters[seed % 3])
    doomed = set(draw.sample([r.id for r in asked], 4))
    moments = {draw.randint(0, 60): name for name in doomed}
    doomed = set(moments.values())
    arrivals: dict[int, list[Request]] = {}
    for request in asked:
        arrivals.setdefault(draw.choice([0, 0, 4, 15]), []).append(request)

    def on_step(step: int) -> None:
        if step in moments:
            engine.abort(moments[step])

    answers = run(engine, (), arrivals=arrivals, on_step=on_step)
    for key, answer in answers.items():
        whole = plain[key]
        if answer.finish_reason == "abort":
            assert key[0] in doomed
            assert whole.token_ids[: len(answer.token_ids)] == answer.token_ids
            assert whole.text.startswith(answer.text.rstrip("\ufffd"))
        else:
            assert answer == whole
    assert engine.stats().num_preemptions > 0
    _take_every_slot(engine.cache)


def _take_every_slot(cache: object) -> None:
    """All slots can be had again: nothing stays locked."""
    from eyas.cache import CacheManager

    assert isinstance(cache, CacheManager)
    lease = cache.admit([1], cache.num_slots, share=False)
    slots = cache.reserve(lease, cache.num_slots)
    assert sorted(slots.tolist()) == list(range(1, cache.num_slots + 1))


def _known(
    asked: list[Request], answers: Answers
) -> dict[tuple[int, int, tuple[int, ...]], list[int]]:
    known = {}
    for request in asked:
        for index in range(request.params.n):
            answer = answers[request.id, index]
            assert answer.seed is not None
            known[answer.seed, index, tuple(request.prompt_token_ids)] = answer.token_ids
    return known


@pytest.mark.parametrize("num_slots", [LENGTH + 2, 1000])
def test_the_prefix_cache_changes_nothing_but_the_work(num_slots: int) -> None:
    asked = random_requests(random.Random(3), 10)
    again = [Request(**{**_fields(r), "id": f"again {r.id}"}) for r in asked]
    outcomes = []
    for prefix_cache in (False, True):
        engine = new_engine(replace(PLAIN, num_slots=num_slots, prefix_cache=prefix_cache))
        first = run(engine, asked)
        second = run(engine, again)
        outcomes.append((first, second, engine.stats()))
    assert_same(outcomes[0][0], outcomes[1][0])
    assert_same(outcomes[0][1], outcomes[1][1])
    without, with_cache = outcomes[0][2], outcomes[1][2]
    assert without.num_prefix_hit_tokens == 0 and without.num_cached_slots == 0
    assert with_cache.num_prefix_hit_tokens > 100


def _fields(request: Request) -> dict[str, object]:
    return {name: getattr(request, name) for name in request.__struct_fields__}


def test_salts_never_share() -> None:
    prompt = walk_text(97, 40, [0, 1])
    params = SamplingParams(temperature=0, max_tokens=4, seed=0)
    engine = new_engine(PLAIN)
    for i, salt in enumerate(["", "a", "b", ""]):
        request = Request(id=f"r{i}", prompt_token_ids=prompt, params=params, cache_salt=salt)
        answers = run(engine, [request])
        usage = answers[request.id, 0].usage
        assert usage is not None
        assert usage.num_cached_tokens == (39 if i == 3 else 0)


def test_a_shared_slot_is_never_written_again() -> None:
    """Keys and values of a published prefix keep their bits while others decode from it."""
    engine = new_engine(PLAIN, RandomTrees(4, 1))
    prompt = walk_text(97, 30, [0, 1])
    params = SamplingParams(temperature=1.3, max_tokens=12, seed=0, n=3)
    run(engine, [Request(id="first", prompt_token_ids=prompt, params=params)])
    lease = engine.cache.admit([*prompt, 0], LENGTH)
    slots = lease.slots[: lease.num_stored].tolist()
    assert len(slots) == len(prompt)
    kv = engine.runner.backend.kv.layers  # type: ignore[attr-defined]
    before = [layer[slots].clone() for layer in kv]
    engine.cache.release(lease, [])
    run(engine, [Request(id="second", prompt_token_ids=[*prompt, 97], params=params)])
    for layer, old in zip(kv, before, strict=True):
        assert bool((layer[slots] == old).all())
