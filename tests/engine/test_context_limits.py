"""The end of the context: prompts that fill it, answers that have no room in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from eyas import LLM
from eyas.core import Request, RequestError, SamplingParams
from eyas.draft import Drafter
from eyas.engine.startup import memory
from tests.laws.cases import walk_text
from tests.laws.drafters import RandomTrees
from tests.laws.world import Answer, Setting, model_drafter, new_engine, run
from tests.models.tiny import expected_logits, make_model, save_model, tokens

LENGTH = 24


def scored(setting: Setting, prompt: list[int], drafter: Drafter | None, n: int = 1) -> Answer:
    params = SamplingParams(max_tokens=0, prompt_logprobs=2, logprobs=2, n=n, seed=1)
    request = Request(id="r", prompt_token_ids=prompt, params=params)
    answers = run(new_engine(setting, drafter), [request])
    assert all(
        (a.text, a.token_ids, a.finish_reason) == ("", [], "length") for a in answers.values()
    )
    assert answers["r", 0].usage is not None and answers["r", 0].usage.num_output_tokens == 0
    return answers["r", 0]


@pytest.mark.parametrize("flights", [0, 1])
@pytest.mark.parametrize("kind", ["root", "trees", "model"])
@pytest.mark.parametrize("num_tokens", [1, 2, LENGTH - 1, LENGTH])
def test_a_prompt_is_scored_that_fills_the_context(
    flights: int, kind: str, num_tokens: int
) -> None:
    prompt = walk_text(97, num_tokens, [0, 1])
    setting = Setting(num_slots=LENGTH + 20, max_model_len=LENGTH, flights=flights)
    drafter: Drafter | None = None
    if kind == "trees":
        drafter = RandomTrees(6, 3)
    elif kind == "model":
        drafter = model_drafter(setting.dtype, setting.num_slots, 4, "target")
    found = scored(setting, prompt, drafter, n=2)
    wide = Setting(max_model_len=4 * LENGTH)
    assert found.prompt_logprobs == scored(wide, prompt, None).prompt_logprobs
    assert found.prompt_logprobs is not None and len(found.prompt_logprobs) == num_tokens


def test_a_prompt_that_fills_the_context_leaves_no_room_for_an_answer() -> None:
    engine = new_engine(Setting(max_model_len=LENGTH))
    for params, num_tokens in (
        (SamplingParams(max_tokens=1), LENGTH),
        (SamplingParams(), LENGTH),
        (SamplingParams(max_tokens=0), LENGTH + 1),
    ):
        prompt = walk_text(97, num_tokens, [0, 1])
        with pytest.raises(RequestError, match="context holds"):
            engine.add(Request(id="r", prompt_token_ids=prompt, params=params))
    assert not engine.has_work()


def test_more_tokens_than_there_is_room_for_are_a_limit_that_is_not_reached() -> None:
    params = SamplingParams(max_tokens=1000, ignore_eos=True, temperature=0)
    request = Request(id="r", prompt_token_ids=walk_text(97, 20, [0, 1]), params=params)
    answer = run(new_engine(Setting(max_model_len=LENGTH)), [request])["r", 0]
    assert answer.finish_reason == "length" and len(answer.token_ids) == LENGTH - 20


def test_a_least_length_without_room_is_refused() -> None:
    engine = new_engine(Setting(max_model_len=LENGTH))
    prompt = walk_text(97, 20, [0, 1])

    def add(**fields: int) -> None:
        params = SamplingParams(**fields)
        engine.add(Request(id="r", prompt_token_ids=prompt, params=params))

    for fields in (
        {"min_tokens": 5},
        {"min_tokens": 5, "max_tokens": 90},
        {"min_tokens": 2**31 - 1},
    ):
        with pytest.raises(RequestError, match="ask for 4 or fewer") as caught:
            add(**fields)
        assert caught.value.param == "min_tokens"
    with pytest.raises(RequestError, match="is above max_tokens"):
        add(min_tokens=3, max_tokens=2)
    params = SamplingParams(min_tokens=4, temperature=0)
    answer = run(engine, [Request(id="r", prompt_token_ids=prompt, params=params)])["r", 0]
    assert len(answer.token_ids) == 4


def test_texts_have_the_usual_angles_unless_longer_ones_are_asked_for(tmp_path: Path) -> None:
    model = make_model("phi3 long longrope", original_max_position_embeddings=64)
    save_model(model, tmp_path)
    prompt = [tokens(40), tokens(40, seed=5)]
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    usual = LLM(str(tmp_path), dtype="float32", drafter="ngram", num_slots=256)
    assert usual.info.max_model_len == 64
    for token_ids, answer in zip(prompt, usual.generate(prompt, params), strict=True):
        assert answer.choices[0].token_ids == _continued(model, token_ids, 8)
    longer = [tokens(80)]
    with pytest.raises(RequestError, match="context"):
        usual.generate(longer, params)
    long = LLM(str(tmp_path), dtype="float32", num_slots=256, max_model_len=128)
    [answer] = long.generate(longer, params)
    assert answer.choices[0].token_ids == _continued(model, longer[0], 8)


def _continued(model: PreTrainedModel, token_ids: list[int], count: int) -> list[int]:
    found: list[int] = []
    for _ in range(count):
        found.append(int(expected_logits(model, token_ids + found)[-1].argmax()))
    return found


def test_too_few_slots_are_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"cache\.num_slots: must be at least 16, not 3"):
        LLM(num_slots=3)
    with LLM(drafter="head", draft_nodes=16, num_slots=16) as llm:
        assert llm.info.max_model_len == 14
    monkeypatch.setattr(memory, "cache_budget", lambda *arguments: 0)
    with pytest.raises(ValueError, match=r"0 slots hold no useful sequence; give more memory"):
        LLM(drafter="head", draft_nodes=16)


@pytest.mark.parametrize("flights", [0, 1])
def test_a_small_cache_holds_as_long_answers_with_drafts_as_without(flights: int) -> None:
    """Where there are no slots for a tree, the root runs alone, also beside other sequences."""
    prompts = ["Hello", "The capital of France is", "a b c d " * 6]
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=None)
    found = []
    fixed: dict[str, Any] = {"draft_nodes": 5, "draft_steps": 4, "draft_topk": 1}  # at any speed
    for drafter, shape in (("root", {}), ("ngram", fixed), ("head", fixed), ("auto", {})):
        with LLM(drafter=drafter, num_slots=80, flights=flights, device="cpu", **shape) as llm:
            assert llm.info.max_model_len == 78
            answers = [llm.generate(prompt, params)[0].token_ids for prompt in prompts]
            assert [each.token_ids for each in llm.generate(prompts, params)] == answers
            assert llm.engine.metrics.num_failed_steps == 0
            llm.engine.check()
            found.append(answers)
            if drafter == "head":
                assert llm.engine.stats().num_accepted_tokens > 0
    assert found == [found[0]] * len(found)
    lengths = [len(llm.tokenizer.encode_text(prompt)) for prompt in prompts]
    assert [a + len(b) for a, b in zip(lengths, found[0], strict=True)] == [78] * len(prompts)
