"""`eyas chat --url`: a chat with a server of this or another project."""

from __future__ import annotations

import json

import httpx
import pytest

from eyas.cli.chat.conversation import Question, Turn
from eyas.cli.chat.remote import RemoteModel
from eyas.typed import JsonSchema, Regex
from tests.cli.test_chat import SEVEN, WEATHER
from tests.cli.test_commands import eyas, ok
from tests.server.conftest import NEEDS_CHECKPOINT


@NEEDS_CHECKPOINT
def test_a_chat_with_a_server_has_the_answers_of_a_chat_here(live_url: str) -> None:
    stdin = (
        f"What is the capital of France?\n/reset\n/regex (Oslo|Lima)\nWho wrote\n/schema "
        f"{json.dumps(SEVEN)}\nSay a number.\n/regex off\n/reset\n/tools {json.dumps(WEATHER)}\n"
        "What is the weather in Oslo?\n/tree 99\n"
    )
    here = ok("chat", "-t", "0", stdin=stdin)
    assert "get_weather" in here
    done = eyas("chat", "-t", "0", "--url", f"{live_url}/v1", stdin=stdin)
    assert done.returncode == 0 and done.stdout == here, done.stderr
    assert "accepted tokens a step" in done.stderr and "Step 1 of" in done.stderr


def test_another_server_is_asked_for_what_openai_defines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its models are not eyas's, so it gets no field of eyas, and no pattern that it may ignore."""
    bodies = []

    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m", "owned_by": "vllm"}]})
        if request.url.path == "/models":
            return httpx.Response(404, text="there is no such page")
        bodies.append(json.loads(request.content))
        chunks = [
            {"choices": [{"delta": {"role": "assistant", "reasoning": "Hm."}}]},
            {"choices": [{"delta": {"content": "Yes."}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"completion_tokens": 3}},
        ]
        lines = [f"data: {json.dumps(chunk)}" for chunk in chunks]
        return httpx.Response(200, text="\n\n".join([*lines, "data: [DONE]", ""]))

    client = httpx.Client
    monkeypatch.setattr(
        httpx, "Client", lambda **given: client(transport=httpx.MockTransport(respond), **given)
    )
    assert RemoteModel("http://host/v1", None, None, {}).description == "m at http://host/v1"
    model, turn = RemoteModel("http://host", None, None, {}), Turn()  # finds /v1 by itself
    assert model.description == "m at http://host/v1"
    question = Question([{"role": "user", "content": "?"}], [], JsonSchema(SEVEN), {"seed": 1})
    events = [(event.kind, event.text) for event in model.answer(question, turn)]
    assert events == [("reasoning", "Hm."), ("content", "Yes.")]
    assert turn.finish_reason == "stop" and turn.num_tokens == 3 and turn.num_steps is None
    assert set(bodies[0]) == {
        *("model", "messages", "stream", "stream_options", "seed", "response_format"),
    }
    with pytest.raises(ValueError, match="/regex"):
        model.check(Regex("a"))
    with pytest.raises(ValueError, match="--model"):
        RemoteModel("http://host/v1", "other", None, {})
