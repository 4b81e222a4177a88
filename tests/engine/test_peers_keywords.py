"""`LLM` as people of SGLang and vLLM call it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from eyas import LLM, RequestError, SamplingParams
from eyas.config import DraftConfig
from eyas.core import token_id_of

OF_BOTH: dict[str, Any] = {"trust_remote_code": True}
QUICK: dict[str, Any] = {"drafter": "root", "num_threads": 1, "max_model_len": 256}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(
        model_path="builtin",
        tensor_parallel_size=1,
        **OF_BOTH,
        enforce_eager=True,
        gpu_memory_utilization=0.5,
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
        seed=7,
        num_threads=1,
        max_model_len=256,
    ) as made:
        yield made


def test_keywords_of_both_become_settings(llm: LLM) -> None:
    config = llm.config
    assert config.draft == DraftConfig(drafter="head", steps=3, topk=1, nodes=4)
    assert (config.cache.memory_fraction, config.scheduler.max_graph_batch) == (0.5, 0)
    assert (config.model.path, config.model.max_model_len) == ("builtin", 256)


def test_what_changes_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="eyas.llm")
    keywords = {"pp_size": 1, "enable_metrics": True, "enable_lora": False, "quantization": None}
    with LLM(**QUICK, **keywords, log_level="error"):
        said = [
            each.message.partition(":")[0]
            for each in caplog.records
            if each.name == "eyas.llm.arguments"
        ]
    assert said == ["log_level", "pipeline_parallel_size 1", "enable_metrics"]


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        (
            {"pipeline_parallel_size": 8, "quantization": "fp8", "enable_lora": True},
            [
                "pipeline_parallel_size 8: ",
                "quantization fp8: ",
                "config.json names",
                "enable_lora: ",
            ],
        ),
        (
            {"speculative_config": {"method": "medusa", "num_speculative_tokens": 2}},
            ["speculative_config: method: 'medusa' is not one of"],
        ),
        (
            {"speculative_algorithm": "NGRAM", "drafter": "ngram"},
            ["drafter: drafting is also set by speculative_algorithm"],
        ),
        ({"model": "a", "model_path": "b"}, ["model_path: sets the same as model"]),
        ({"memory_fraction": 0.5, "mem_fraction_static": 0.5}, ["same as memory_fraction"]),
        ({"gpu_memory_utilization": 7}, ["gpu_memory_utilization: 0.05 to 0.98, not 7"]),
        ({"max_running_requests": 0}, ["max_running_requests: must be between 1 and 1024"]),
        (
            {"speculative_algorithm": "EAGLE", "speculative_num_steps": 99},
            ["speculative_num_steps: must be between 1 and 32"],
        ),
        ({"max_queued_requests": 9}, ["max_queued_requests: is an option of the server"]),
        ({"chat_template": "chatml"}, ["chat_template: cannot read chatml"]),
    ],
)
def test_what_cannot_be_is_refused_in_the_callers_words(
    keywords: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011, the words are checked
        LLM(**keywords)
    for word in words:
        assert word in str(error.value)
    assert "--" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("model", value) for value in (None, 5, b"builtin")),
        *(("drafter", value) for value in (None, 5, b"x")),
        *(("draft_steps", value) for value in (None, 1.5)),
        *(("max_model_len", value) for value in ("100", 64.0, True)),
        *(("num_threads", value) for value in ("x", 1.5)),
        *(("seed", value) for value in ("x", 1.5, True)),
        *((name, 5) for name in ("config", "chat_template", "progress", "draft_model", "dtype")),
        *((name, "x") for name in ("memory_fraction", "gpu_memory_utilization", "prefix_cache")),
        *((name, None) for name in ("offline", "max_num_seqs", "draft_topk")),
        *((name, "x") for name in ("context_length", "tensor_parallel_size", "num_slots")),
        ("speculative_config", 5),
    ],
    ids=str,
)
def test_a_value_of_another_type_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: (must be|is not JSON)"):
        LLM(**{name: value})


def test_a_model_may_be_given_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json"):
        LLM(tmp_path)


def test_a_keyword_that_nobody_knows_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"LLM\(\) got an .* 'modle'; did you mean 'model'\?"):
        LLM(modle="builtin")


def test_settings_of_ours_that_are_no_keywords_are_taken() -> None:
    with LLM(**QUICK, memory_fraction=0.3, max_batch_tokens=64, dtype="float") as llm:
        config = llm.config
        assert (config.cache.memory_fraction, config.scheduler.max_batch_tokens) == (0.3, 64)
        assert config.model.dtype == "float32"
    with pytest.raises(ValueError, match="config: holds every setting"):
        LLM(config=config, memory_fraction=0.3)


def test_a_dict_of_sglangs_parameters_is_understood(llm: LLM) -> None:
    params = {
        "temperature": 0.0,
        "max_new_tokens": 5,
        "top_k": -1,
        "stop": "zzz",
        "sampling_seed": 3,
        "logit_bias": {"5": -100},
        "ignore_eos": True,
        "spaces_between_special_tokens": True,
        "min_p": None,
    }
    ours = llm.default_params(
        temperature=0.0,
        max_tokens=5,
        top_k=0,
        stop=("zzz",),
        seed=3,
        logit_bias={5: -100},
        ignore_eos=True,
    )
    (found,), (expected,) = llm.generate("The eagle", params), llm.generate("The eagle", ours)
    assert found.token_ids == expected.token_ids and len(found.token_ids) == 5
    each = llm.generate(["a", "b"], sampling_params=[params, {**params, "max_new_tokens": 2}])
    assert [len(output.token_ids) for output in each] == [5, 2]
    streamed = [
        token
        for delta in llm.stream("The eagle", sampling_params=params)
        for token in delta.token_ids
    ]
    assert streamed == expected.token_ids
    question = [{"role": "user", "content": "Hi"}]
    chats = llm.chat(question, sampling_params={"max_new_tokens": 2})
    assert len(chats[0].token_ids) == 2


def test_prompts_may_be_the_mappings_of_vllm(llm: LLM) -> None:
    shortly = SamplingParams(temperature=0, max_tokens=4)
    (expected,) = llm.generate("The eagle", shortly)
    ids = llm.tokenizer.encode_prompt("The eagle")
    given = [
        {"prompt": "The eagle"},
        {"prompt_token_ids": ids},
        {"prompt": "another", "prompt_token_ids": ids, "multi_modal_data": None},
    ]
    assert [output.token_ids for output in llm.generate(given, shortly)] == [expected.token_ids] * 3
    assert llm.generate(given[0], shortly)[0].text == expected.text
    assert llm.generate({"prompt": "City: "}, output=Literal["Oslo"]) == "Oslo"
    deltas = llm.stream(given[1], shortly)
    assert [token for delta in deltas for token in delta.token_ids] == expected.token_ids


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"prompt": 5},
        {"prompt": [1, 2]},
        {"text": "x"},
        {"prompt": "x", "multi_modal_data": {"image": 1}},
    ],
)
def test_other_mappings_are_no_prompts(llm: LLM, wrong: dict[str, object]) -> None:
    for prompts, name in ((wrong, "prompts"), (["a", wrong], r"prompts\[1\]")):
        with pytest.raises(RequestError, match=f"^{name}: a mapping takes a text as prompt, or"):
            llm.generate(prompts)
    with pytest.raises(RequestError, match=r"^prompt: a mapping takes"):
        llm.stream(wrong)


def test_a_dict_ends_where_sglang_ends(llm: LLM) -> None:
    (found,) = llm.generate("The eagle", {"ignore_eos": True})
    assert len(found.token_ids) == 128


def test_a_dict_may_say_what_the_text_must_be(llm: LLM) -> None:
    assert llm.generate("City: ", {"regex": "(Paris|Oslo)"})[0].text in ("Paris", "Oslo")
    assert llm.generate("x", {"ebnf": 'root ::= "yes" | "no"'})[0].text in ("yes", "no")
    schema = '{"enum": ["a", "b"]}'
    assert llm.generate("x", {"json_schema": schema})[0].text in ('"a"', '"b"')


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"max_new_token": 3}, "max_new_token: is not .*; did you mean max_new_tokens?"),
        ({"custom_params": {}}, "custom_params: .* not code"),
        ({"spaces_between_special_tokens": False}, "spaces_between_special_tokens: is no"),
        ({"temperature": -1}, "temperature: must be a number"),
        ({"min_new_tokens": 5, "max_new_tokens": 2}, "min_new_tokens: is above max_new_tokens"),
        ({"max_new_tokens": 5, "max_tokens": 2}, "max_tokens: is given under two names"),
        ({"max_new_tokens": "many"}, "max_new_tokens: must be a whole number"),
        ({"regex": "a", "json_schema": "{}"}, "regex: pass what the answer must be"),
        ({"structural_tag": "{}"}, "structural_tag: is for servers"),
    ],
)
def test_a_field_that_cannot_be_is_refused_by_the_name_it_has(
    llm: LLM, params: dict[str, object], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        llm.generate("x", params)
    with pytest.raises(RequestError, match="output="):
        llm.chat([{"role": "user", "content": "x"}], {"regex": "a"})


def test_requests_without_a_seed_get_one_that_follows_from_the_engines() -> None:
    def drawn(seed: int) -> list[tuple[int | None, list[int]]]:
        with LLM(**QUICK, seed=seed) as llm:
            params = {"temperature": 1.0, "max_new_tokens": 8, "ignore_eos": True}
            outputs = [*llm.generate(["The", "The"], params), *llm.generate("The", params)]
            return [(output.choices[0].seed, output.token_ids) for output in outputs]

    first = drawn(1)
    assert first == drawn(1)
    assert len({seed for seed, _ in (*first, *drawn(2))}) == 6


def test_a_template_may_be_given() -> None:
    with LLM(**QUICK, chat_template="{{ messages[0].content }}!") as llm:
        ids = llm.encode_chat([{"role": "user", "content": "Hi"}])
        assert llm.tokenizer.decode(ids, skip_special=False) == "Hi!"


@pytest.mark.parametrize("key", ["007", "+7", " 7", "7.0", "", "٧", "99999999999"])
def test_an_id_has_one_text_here_as_on_the_server(llm: LLM, key: str) -> None:
    assert token_id_of("7") == 7 and token_id_of(key) is None
    with pytest.raises(RequestError, match="logit_bias"):
        llm.generate("a", {"logit_bias": {key: 1.0}})
