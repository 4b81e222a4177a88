"""SGLang's native route, in its shapes."""

from __future__ import annotations

import itertools
import json
from typing import Any

import httpx

from eyas.grammar import Json, Regex
from tests.server.fakes import ANSWER, FakeClient


def generate(http: httpx.Client, **fields: Any) -> Any:
    response = http.post("/generate", json=fields)
    assert response.status_code == 200, response.text
    return response.json()


def test_one_prompt_gives_one_object(http: httpx.Client, fake: FakeClient):
    params = {"sampling_seed": 5, "max_new_tokens": 400}
    answer = generate(http, text="Hello", rid="mine", sampling_params=params)
    ids = fake.tokenizer.encode_text(ANSWER)
    assert answer == {
        "text": ANSWER,
        "output_ids": ids,
        "meta_info": {
            "id": "mine",
            "finish_reason": {"type": "stop", "matched": None},
            "prompt_tokens": len(fake.tokenizer.encode_text("Hello")),
            "completion_tokens": len(ids),
            "cached_tokens": 1,
            "seed": 5,
        },
    }
    assert generate(http, input_ids=[5, 6])["meta_info"]["prompt_tokens"] == 2
    assert fake.requests[-1].params.max_tokens == 128


def test_several_prompts_or_choices_give_a_list(http: httpx.Client, fake: FakeClient):
    for fields, number in (
        ({"text": ["a", "b"]}, 2),
        ({"text": ["a"]}, 1),
        ({"input_ids": [[1], [2, 3]]}, 2),
        ({"text": "a", "sampling_params": {"n": 3}}, 3),
        ({"text": ["a", "b"], "sampling_params": {"n": 2}}, 4),
    ):
        answers = generate(http, **fields)
        assert len(answers) == number
        assert len({answer["meta_info"]["id"] for answer in answers}) == number


def test_a_stream_repeats_the_text_so_far(http: httpx.Client, fake: FakeClient):
    body = {"text": "Hello", "stream": True, "sampling_params": {"max_new_tokens": 5}}
    lines = http.post("/generate", json=body).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    for earlier, later in itertools.pairwise(chunks):
        assert later["text"].startswith(earlier["text"])
        assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]
    whole = generate(http, **{**body, "stream": False})
    assert (chunks[-1]["text"], chunks[-1]["output_ids"]) == (whole["text"], whole["output_ids"])
    assert whole["meta_info"]["finish_reason"] == {"type": "length", "length": 5}
    assert chunks[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 5}
    assert all(chunk["meta_info"]["finish_reason"] is None for chunk in chunks[:-1])
    lines = http.post("/generate", json={"text": ["a", "b"], "stream": True}).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert {chunk["index"] for chunk in chunks} == {0, 1}


def test_a_long_stream_repeats_itself_a_bounded_number_of_times(
    http: httpx.Client, fake: FakeClient
):
    fake.answer = lambda request, index: "one two three four five six seven " * 300
    params = {"max_new_tokens": 2000}
    fields = {"text": "Hello", "return_logprob": True, "sampling_params": params}
    whole = generate(http, **fields)
    lines = http.post("/generate", json={**fields, "stream": True}).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    lengths = [len(chunk["output_ids"]) for chunk in chunks]
    assert lengths[:100] == list(range(1, 101)), "a short one comes token by token"
    assert sum(lengths) < 140 * lengths[-1] < lengths[-1] ** 2 / 10
    for key in ("text", "output_ids"):
        assert chunks[-1][key] == whole[key]
    said = [chunk["meta_info"]["output_token_logprobs"] for chunk in chunks]
    assert said[-1] == whole["meta_info"]["output_token_logprobs"]
    assert [len(entries) for entries in said] == lengths


def test_logprobs_are_triples(http: httpx.Client, fake: FakeClient):
    fields = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    answer = generate(http, text="Hello", **fields)
    entries = answer["meta_info"]["output_token_logprobs"]
    assert [entry[1] for entry in entries] == answer["output_ids"]
    assert entries[0] == [-(entries[0][1] % 7) / 8, entries[0][1], "Th"]
    tops = answer["meta_info"]["output_top_logprobs"]
    assert len(tops) == len(entries) and tops[0][0] == entries[0] and len(tops[0]) == 2


def test_parameters_reach_the_engine(http: httpx.Client, fake: FakeClient):
    params = {
        "temperature": 0.5,
        "top_k": -1,
        "min_p": 0.25,
        "min_new_tokens": 2,
        "max_new_tokens": 9,
        "stop": "x",
        "no_stop_trim": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": True,
    }
    generate(http, text="Hello", sampling_params=params)
    found = fake.requests[-1].params
    assert (found.temperature, found.top_k, found.min_p) == (0.5, 0, 0.25)
    assert (found.min_tokens, found.max_tokens, found.stop) == (2, 9, ("x",))
    assert found.include_stop_str_in_output and not found.skip_special_tokens
    generate(http, text="x", sampling_params={"regex": "(Paris|Amsterdam)"})
    assert fake.requests[-1].output.root == Regex("(Paris|Amsterdam)")
    assert fake.requests[-1].output.param == "sampling_params.regex"
    generate(http, text="x", sampling_params={"json_schema": '{"type": "object"}'})
    assert isinstance(fake.requests[-1].output.root, Json)


def test_what_is_out_of_range_is_said_by_its_native_name(http: httpx.Client, fake: FakeClient):
    for params, name in (
        ({"min_new_tokens": 9, "max_new_tokens": 2}, "min_new_tokens"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"regex": ""}, "regex"),
        ({"ebnf": "{}"}, "ebnf"),
    ):
        response = http.post("/generate", json={"text": "x", "sampling_params": params})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, f"sampling_params.{name}")
        assert error["message"].startswith(f"sampling_params.{name}")


def test_a_prompt_is_scored_from_where_it_is_asked_for(http: httpx.Client, fake: FakeClient):
    """As SGLang does: nothing is said of the first token that is scored."""
    prompt = [5, 6, 7, 8]
    fields = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    for start in (0, 1, 3):
        meta = generate(http, input_ids=prompt, logprob_start_len=start, **fields)["meta_info"]
        entries, tops = meta["input_token_logprobs"], meta["input_top_logprobs"]
        assert [entry[1] for entry in entries] == prompt[start:]
        assert entries[0] == [None, prompt[start], fake.tokenizer.token_text(prompt[start])]
        assert tops[0] is None
        for entry, top in zip(entries[1:], tops[1:], strict=True):
            assert entry == [-(entry[1] % 7) / 8, entry[1], fake.tokenizer.token_text(entry[1])]
            assert len(top) == 2 and top[0] == entry
    assert fake.requests[-1].params.prompt_logprobs == 2
    for more in ({"logprob_start_len": -1}, {}):
        meta = generate(http, input_ids=prompt, **more, **fields)["meta_info"]
        last = [None, prompt[-1], fake.tokenizer.token_text(prompt[-1])]
        assert (meta["input_token_logprobs"], meta["input_top_logprobs"]) == ([last], [None])
        assert fake.requests[-1].params.prompt_logprobs is None
    answer = generate(http, input_ids=prompt, logprob_start_len=0)
    assert "input_token_logprobs" not in answer["meta_info"], "nobody asked for log-probabilities"


def test_every_choice_of_a_prompt_has_its_scores(http: httpx.Client, fake: FakeClient):
    fields = {"return_logprob": True, "logprob_start_len": 0, "sampling_params": {"n": 2}}
    answers = generate(http, input_ids=[[5, 6], [7, 8, 9]], **fields)
    scored = [answer["meta_info"]["input_token_logprobs"] for answer in answers]
    assert [[entry[1] for entry in each] for each in scored] == [[5, 6]] * 2 + [[7, 8, 9]] * 2
    assert "input_top_logprobs" not in answers[0]["meta_info"]


def test_a_prompt_is_scored_alone(http: httpx.Client, fake: FakeClient):
    fields = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 0}}
    generate(http, return_logprob=True, logprob_start_len=0, **fields)
    assert fake.requests[-1].params.max_tokens == 0
    generate(http, **fields)  # to store a prefix, as SGLang's frontend does
    assert fake.requests[-1].params.max_tokens == 0


def test_a_stream_has_no_scores_of_its_prompt(http: httpx.Client, fake: FakeClient):
    fields = {"text": "x", "return_logprob": True, "logprob_start_len": 0, "stream": True}
    response = http.post("/generate", json=fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "logprob_start_len"


def test_prompts_of_one_request_may_have_parameters_and_names_of_their_own(
    http: httpx.Client, fake: FakeClient
):
    fields = {"text": ["a", "b"], "return_logprob": [True, True], "logprob_start_len": [0, 0]}
    params = [{"max_new_tokens": 3}, {"max_new_tokens": 5, "temperature": 0.5, "regex": "x+"}]
    answers = generate(http, rid=["x", "y"], sampling_params=params, **fields)
    assert [answer["meta_info"]["id"] for answer in answers] == ["x", "y"]
    assert all("input_token_logprobs" in answer["meta_info"] for answer in answers)
    first, second = fake.requests[-2:]
    assert (first.params.max_tokens, second.params.max_tokens) == (3, 5)
    assert first.output is None and second.output.root == Regex("x+") and first.id != second.id
    assert len({first.id, second.id}) == 2 and second.params.prompt_logprobs == 0
    for wrong, param in (
        ({"sampling_params": params[:1]}, "sampling_params"),
        ({"sampling_params": [{}, {"n": 2}]}, "sampling_params[1].n"),
        ({"sampling_params": [{}, {"temperature": -1}]}, "sampling_params[1].temperature"),
        ({"rid": ["x"]}, "rid"),
        ({"return_logprob": [True, False]}, "return_logprob"),
    ):
        error = http.post("/generate", json={**fields, **wrong}).json()["error"]
        assert error["param"] == param, error
