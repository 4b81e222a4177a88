"""stream_granularity: one event per token or per step; what they say is the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.core import Delta, SamplingParams
from eyas.server.formats import ChoiceOutput
from eyas.server.process.client import add_to
from eyas.server.token_texts import TokenTexts, split_by_token
from tests.server.fakes import ANSWER, FakeClient, live_server
from tests.server.test_answer_stream_law import (
    EOS,
    PIECES,
    STOPS,
    THOROUGH,
    cuts,
    deltas_of,
    ids_of,
    tokenizer,
)


def whole(deltas: Sequence[Delta]) -> Delta:
    choice = ChoiceOutput(0)
    for delta in deltas:
        choice.add(delta)
    return choice.joined()


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@THOROUGH
@given(data=st.data())
def test_deltas_by_token_add_up_and_do_not_depend_on_steps(kind: str, data: st.DataObject) -> None:
    names = tokenizer(kind)
    ids = ids_of(names, data.draw(st.lists(st.sampled_from([*PIECES, EOS]), max_size=16)))
    params = SamplingParams(
        stop=tuple(data.draw(STOPS)),
        skip_special_tokens=data.draw(st.booleans()),
        logprobs=0,
    )

    def by_token(deltas: Sequence[Delta]) -> list[Delta]:
        texts = TokenTexts(names, skip_special=params.skip_special_tokens)
        return [part for delta in deltas for part in split_by_token(delta, texts)]

    wide = deltas_of(names, params, ids, data.draw(cuts(len(ids))))
    parts = by_token(wide)
    assert all(len(part.token_ids) <= 1 for part in parts)
    assert [len(part.logprobs or ()) for part in parts] == [len(part.token_ids) for part in parts]
    assert whole(parts) == whole(wide)
    assert parts[-1].finish_reason == wide[-1].finish_reason
    narrow = by_token(deltas_of(names, params, ids, []))
    scored = [part for part in parts if part.token_ids]
    assert [part.text for part in scored[:-1]] == [part.text for part in narrow if part.token_ids][
        : len(scored) - 1
    ]


class MergingClient(FakeClient):
    """An engine whose steps give five tokens each."""

    async def generate(self, request):
        merged: Delta | None = None
        async for delta in super().generate(request):
            if merged is None:
                merged = delta
            else:
                add_to(merged, delta)
            if delta.finish_reason is not None or len(merged.token_ids) == 5:
                yield merged
                merged = None


REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": "x", "max_tokens": 100},
    "/generate": {"text": "x", "sampling_params": {"max_new_tokens": 100}},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 100},
}


def texts_of(path: str, text: str) -> list[str]:
    """The texts of the events that have one."""
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    if path == "/v1/responses":
        return [event["delta"] for event in events if event["type"].endswith("text.delta")]
    if path == "/v1/messages":
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        return [delta["text"] for delta in deltas]
    if path == "/generate":
        totals = ["", *(event["text"] for event in events)]
        new = [after.removeprefix(before) for before, after in pairwise(totals)]
        return [text for text in new if text]
    choices = [event["choices"][0] for event in events if event["choices"]]
    texts = [choice.get("text") or choice.get("delta", {}).get("content") for choice in choices]
    return [text for text in texts if text]


@pytest.mark.parametrize("default", ["step", "token"])
def test_each_token_has_its_event_on_every_route(directory: Path, default: str):
    client = MergingClient(directory)
    with live_server(client, stream_granularity=default) as server:
        for path, fields in REQUESTS.items():
            for asked in (None, "step", "token"):
                body = {**fields, "stream": True, "stream_granularity": asked}
                response = httpx.post(server.url + path, json=body, timeout=120)
                texts = texts_of(path, response.text)
                assert "".join(texts) == ANSWER, path
                most = max(len(client.tokenizer.encode_text(text)) for text in texts)
                is_by_token = (asked or default) == "token"
                num_tokens = len(client.tokenizer.encode_text(ANSWER))
                assert (len(texts) > num_tokens * 3 // 4) == is_by_token, (path, asked, most)
