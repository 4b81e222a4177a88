"""A field that is not supported is refused with a remedy that the same route accepts."""

from __future__ import annotations

import re

import pytest

from eyas.server.fields import StrictModel
from eyas.server.http.body import parse
from eyas.server.http.errors import ApiError
from eyas.server.http.unsupported import UNSUPPORTED
from eyas.server.messages.models import CountTokensBody, MessagesBody
from eyas.server.request_models import ChatBody, CompletionBody, GenerateBody, TokenizeBody
from eyas.server.responses.models import ResponseBody

BODIES = (
    *(ChatBody, CompletionBody, GenerateBody, TokenizeBody),
    *(MessagesBody, CountTokensBody, ResponseBody),
)
IN_SAMPLING = {"max_new_tokens", "json_schema", "regex", "ebnf", "logit_bias"}
"""Fields that are parts of sampling_params."""


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_a_remedy_names_fields_of_its_route(kind: type[StrictModel]) -> None:
    refused = 0
    for name in UNSUPPORTED.keys() - kind.known_names:
        with pytest.raises(ApiError) as caught:
            parse(f'{{"{name}": [1]}}'.encode(), kind)
        error = caught.value
        assert error.param == name and error.message.startswith(f"{name}: ")
        named = set(re.findall(r"(?:send|or|and|with) ([a-z]+_[a-z_]+|tools)\b", error.message))
        nested = IN_SAMPLING if "sampling_params" in kind.known_names else set()
        assert named - nested <= kind.known_names, error.message
        refused += 1
    assert refused > 20


@pytest.mark.parametrize(
    ("kind", "name", "remedy"),
    [
        (ChatBody, "reasoning", "send reasoning_effort"),
        (MessagesBody, "reasoning", "send output_config with effort"),
        (CompletionBody, "reasoning", "leave it out"),
        (ResponseBody, "format", "send text with format"),
        (GenerateBody, "max_completion_tokens", "send sampling_params with max_new_tokens"),
        (CompletionBody, "functions", "leave it out"),
    ],
)
def test_each_route_has_its_own_remedy(kind: type[StrictModel], name: str, remedy: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(f'{{"{name}": {{}}}}'.encode(), kind)
    assert caught.value.message.endswith(f"; {remedy}")
