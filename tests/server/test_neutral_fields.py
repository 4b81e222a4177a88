"""Fields of vLLM that its clients send with the values that change nothing."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from eyas.server.request_models import ChatBody, CompletionBody

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
