"""Fields of vLLM that its clients send with the values that change nothing."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from eyas.server.request_models import ChatBody, CompletionBody, GenerateBody

NEUTRAL: dict[str, Any] = {
    "length_penalty": 1.0,
    "spaces_between_special_tokens": True,
    "detokenize": True,
    "return_token_ids": False,
    "return_tokens_as_token_ids": False,
    "priority": 0,
}


def test_values_that_change_nothing_are_accepted() -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert ChatBody.model_validate({"messages": messages, **NEUTRAL}).priority == 0
    assert CompletionBody.model_validate({"prompt": "hi", **NEUTRAL}).detokenize is True
    assert ChatBody.model_validate({"messages": messages, **dict.fromkeys(NEUTRAL)})


BENCHMARK = {
    "text": "x",
    "sampling_params": {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True},
    "stream": True,
    "lora_path": None,
    "return_logprob": False,
    "return_routed_experts": False,
    "logprob_start_len": -1,
}
"""What SGLang's bench_serving sends to /generate."""


def test_what_clients_of_other_servers_send_switched_off_asks_for_nothing() -> None:
    off: dict[str, Any] = {
        "return_hidden_states": False,
        "documents": [],
        "logits_processors": [],
        "mm_processor_kwargs": {},
        "vllm_xargs": {},
        "priority": 0,
        "log_metrics": True,
        "stop_regex": [],
        "return_meta_info": False,
        "use_audio_in_video": False,
    }
    assert GenerateBody.model_validate({**BENCHMARK, **off, "return_bytes": False}).stream
    messages = [{"role": "user", "content": "hi"}]
    for extra in ({"echo": False}, {"add_special_tokens": False}, {"no_stop_trim": False}, {}):
        assert ChatBody.model_validate({"messages": messages, **off, **extra})
    assert CompletionBody.model_validate({"prompt": "hi", **off, "add_special_tokens": True})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"return_hidden_states": True}, "texts and token ids"),
        ({"documents": ["x"]}, "put them into a message"),
        ({"echo": True}, "is not a field of this request"),
        ({"add_special_tokens": True}, "send token ids"),
        ({"stop_regex": "a+"}, "send stop"),
        ({"return_routed_experts": True}, "is not a field of this request; leave it out"),
    ],
)
def test_what_they_switch_on_is_refused(
    http: httpx.Client, fields: dict[str, Any], words: str
) -> None:
    messages = [{"role": "user", "content": "hi"}]
    answer = http.post("/v1/chat/completions", json={"messages": messages, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == next(iter(fields))
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("name", "other"), [("max_tokens", "max_new_tokens"), ("seed", "sampling_seed")]
)
def test_names_of_openai_in_sglangs_parameters(http: httpx.Client, name: str, other: str) -> None:
    answer = http.post("/generate", json={"text": "x", "sampling_params": {name: 3}})
    assert f"sampling_params.{name}: " in answer.json()["error"]["message"]
    assert f"send {other}" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/abort_request"),
        ("GET", "/v1/responses/resp_1/input_items"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("POST", "/v1/responses/input_tokens"),
        ("POST", "/v1/embeddings"),
    ],
)
def test_routes_of_others_are_refused_with_a_remedy(
    http: httpx.Client, method: str, path: str
) -> None:
    answer = http.request(method, path, json={} if method == "POST" else None)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "route_not_supported")
    assert "is not served here: " in error["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("length_penalty", 1.5),
        ("spaces_between_special_tokens", False),
        ("detokenize", False),
        ("return_token_ids", True),
        ("return_tokens_as_token_ids", True),
        ("priority", 3),
    ],
)
def test_other_values_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValidationError) as caught:
        CompletionBody.model_validate({"prompt": "hi", name: value})
    assert caught.value.errors()[0]["loc"][0] == name
