"""The draft trees that a chat request may ask for over HTTP, and its limit of their nodes."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.server.conftest import NEEDS_CHECKPOINT

pytestmark = NEEDS_CHECKPOINT

BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Write a story about a fox."}],
    "max_tokens": 24,
    "temperature": 0,
}


def chat(url: str, **fields: Any) -> dict[str, Any]:
    response = httpx.post(f"{url}/v1/chat/completions", json=BODY | fields, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def streamed_trees(url: str, **fields: Any) -> list[dict[str, Any]]:
    text = httpx.post(
        f"{url}/v1/chat/completions", json=BODY | fields | {"stream": True}, timeout=60
    ).text
    chunks = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]
    return [tree for chunk in chunks for tree in chunk["choices"][0].get("draft_trees", ())]


def test_the_trees_of_an_answer_have_texts_and_are_the_same_in_a_stream(live_url: str) -> None:
    fields = {"regex": "(Paris|Amsterdam) is lovely", "return_draft_trees": True}
    answer = chat(live_url, **fields)
    trees = answer["draft_trees"]
    shown = "".join(token["text"] for tree in trees for token in tree["tokens"])
    assert answer["message"]["content"] in shown
    nodes = [node for tree in trees for node in tree["nodes"]]
    assert {node["fate"] for node in nodes} <= {"root", "accepted", "chosen", "refused", "unused"}
    assert all((node["source"] == "") == (node["parent"] == -1) for node in nodes)
    for granularity in ("step", "token"):
        streamed = streamed_trees(live_url, **fields, stream_granularity=granularity)
        spoken = [token for tree in streamed for token in tree["tokens"]]
        assert spoken == [token for tree in trees for token in tree["tokens"]]


def test_an_answer_has_no_trees_unless_it_is_asked_for_them(live_url: str) -> None:
    assert "draft_trees" not in chat(live_url)
    assert not streamed_trees(live_url, return_draft_trees=False)


def test_without_drafts_the_tokens_are_the_same(live_url: str) -> None:
    drafted, plain = (
        chat(live_url, return_draft_trees=True, **limit) for limit in ({}, {"max_draft_nodes": 1})
    )
    assert drafted["message"] == plain["message"]
    assert all(len(tree["nodes"]) == 1 for tree in plain["draft_trees"])
    assert len(drafted["draft_trees"]) <= len(plain["draft_trees"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_draft_nodes": 0}, "max_draft_nodes"),
        ({"return_draft_trees": True, "n": 2}, "return_draft_trees"),
    ],
)
def test_wrong_values_are_named(live_url: str, fields: dict[str, Any], param: str) -> None:
    response = httpx.post(f"{live_url}/v1/chat/completions", json=BODY | fields, timeout=60)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
