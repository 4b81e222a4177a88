"""A model without tokenizer is served on token ids; routes that need texts name the remedy."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.server.fakes import FakeClient, live_server, model_directory

TOP = {"logprobs": 1, "max_tokens": 4}
USER = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """The fake engine keeps its tokenizer, to have something to say; the server has none."""
    directory = model_directory(tmp_path_factory.mktemp("model"))
    client = FakeClient(directory)
    client.answer = lambda request, index: "Paris"
    (directory / "tokenizer.json").unlink()
    with live_server(client) as server, httpx.Client(base_url=server.url) as http:
        yield http


def test_token_ids_are_taken_and_given(http: httpx.Client) -> None:
    native = http.post("/generate", json={"input_ids": [5, 6, 7]}).json()
    assert native["output_ids"] and native["meta_info"]["prompt_tokens"] == 3
    body = {"prompt": [5, 6, 7], "echo": True, **TOP}
    choice = http.post("/v1/completions", json=body).json()["choices"][0]
    assert all(token.startswith("token_id:") for token in choice["logprobs"]["tokens"])
    with http.stream("POST", "/v1/completions", json={"prompt": [5], "stream": True}) as answer:
        assert answer.read().rstrip().endswith(b"[DONE]")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "x"}, "prompt"),
        ("/generate", {"text": "x"}, "text"),
        ("/v1/chat/completions", {"messages": USER}, "messages"),
        ("/tokenize", {"prompt": "x"}, "prompt"),
        ("/tokenize", {"messages": USER}, "messages"),
        ("/detokenize", {"tokens": [5]}, "tokens"),
    ],
)
def test_texts_are_refused_with_the_remedy(
    http: httpx.Client, path: str, body: dict[str, object], param: str
) -> None:
    answer = http.post(path, json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param
    assert "no tokenizer" in error["message"] and "tokenizer.json" in error["message"]
