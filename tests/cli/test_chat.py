"""`eyas chat`: messages in, answers out, with the built-in model."""

from __future__ import annotations

import io
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from eyas.cli.chat import take_turn
from eyas.cli.chat.conversation import Conversation
from eyas.cli.chat.local import LocalModel
from eyas.cli.chat.reading import messages
from eyas.cli.chat.view import ChatView
from eyas.dialect import Event
from eyas.llm import LLM
from eyas.signals import first_signal
from tests.cli.test_commands import eyas

WEATHER = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
    },
}
SEVEN = {
    "type": "object",
    "properties": {"n": {"enum": [7]}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(num_slots=2048, max_model_len=512, draft_nodes=8, draft_steps=4) as llm:
        yield llm


@pytest.fixture
def conversation(llm: LLM) -> Conversation:
    return Conversation(LocalModel(llm, {}), {"temperature": 0.0, "max_tokens": 60})


def turn(
    conversation: Conversation, capsys: pytest.CaptureFixture[str], message: str
) -> tuple[str, str]:
    take_turn(conversation, ChatView(), message)
    out, err = capsys.readouterr()
    return out, err


def test_lines_of_standard_input_are_messages() -> None:
    lines = ["What is the capital of France?", "", "/regex (Oslo|Lima)", "Who wrote", "/quit", "no"]
    done = eyas("chat", "-t", "0", stdin="\n".join(lines))
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "Paris" in first and second in ("Oslo", "Lima")
    assert done.stderr.count("accepted tokens a step") == 2 and "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("one\n\n  two  \n", ["one", "two"]),
        ("one \\\ntwo\nthree", ["one \ntwo", "three"]),
        ('"""one\n\n two\n"""\nthree\n', ["one\n\n two", "three"]),
        ('"""one\ntwo', ["one\ntwo"]),
        ("one\\", ["one"]),
        ('"""one"""', ["one"]),
    ],
)
def test_a_message_may_have_several_lines(text: str, read: list[str]) -> None:
    with mock.patch("sys.stdin", io.StringIO(text)):
        assert list(messages(ChatView())) == read


def test_commands_change_the_next_answers(
    conversation: Conversation, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SEVEN))
    assert "JSON" in turn(conversation, capsys, f"/schema {file}")[1]
    out, err = turn(conversation, capsys, "Say a number.")
    assert json.loads(out) == {"n": 7}
    assert "tokens/s" in err and "accepted tokens a step" in err
    tree = turn(conversation, capsys, "/tree 99")[1]
    assert "Step 1 of" in tree and "  accepted" in tree and "refused" in tree
    assert turn(conversation, capsys, "/tree 1")[1].count("Step ") == 1
    assert "free" in turn(conversation, capsys, "/schema off")[1]
    assert turn(conversation, capsys, f"/tools {json.dumps(WEATHER)}")[1]
    out, _ = turn(conversation, capsys, "What is the weather in Oslo?")
    assert out.startswith('call get_weather {"city"')
    assert turn(conversation, capsys, '/result {"temperature": 3}')[0].strip()
    assert "new conversation" in turn(conversation, capsys, "/reset")[1]


def test_the_temperature_is_that_of_the_command(
    conversation: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    greedy = turn(conversation, capsys, "Who wrote Hamlet?")[0]
    answers = set()
    for command in ("/temperature 5", "/temperature off"):
        turn(conversation, capsys, command)
        turn(conversation, capsys, "/reset")
        answers.add(turn(conversation, capsys, "Who wrote Hamlet?")[0])
    assert len(answers) == 2 and greedy in answers


MISTAKES = {
    "/nope": "/help lists them",
    "/schema": "/schema FILE|JSON|off",
    "/schema {bad": "is not JSON",
    "/schema no/such/file": "cannot read",
    '/schema {"type": "nothing"}': "nothing",
    "/regex (a": "(a",
    "/tools [1]": "list of functions",
    "/result 3": "has not called a tool",
    "/temperature hot": "'hot' is not a number",
    "/temperature -1": "temperature",
    "/reset now": "write /reset",
    "/tree": "no answer",
}


def test_a_mistake_is_reported_and_changes_nothing(
    conversation: Conversation, llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    for message, error in MISTAKES.items():
        out, err = turn(conversation, capsys, message)
        assert not out and error in err
    untouched = Conversation(LocalModel(llm, {}), {"temperature": 0.0, "max_tokens": 60})
    question = "Who wrote Hamlet?"
    answer = turn(conversation, capsys, question)[0]
    assert "Shakespeare" in answer and answer == turn(untouched, capsys, question)[0]


def test_ctrl_c_stops_an_answer_and_the_chat_goes_on(
    conversation: Conversation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show = ChatView.show_event

    def interrupt(view: ChatView, event: Event) -> None:
        show(view, event)
        if event.kind == "content" and threading.current_thread() is threading.main_thread():
            monkeypatch.setattr(ChatView, "show_event", show)
            signal.raise_signal(signal.SIGINT)

    whole = turn(conversation, capsys, "Who wrote Hamlet?")[0]
    conversation.reset()
    monkeypatch.setattr(ChatView, "show_event", interrupt)
    out, err = turn(conversation, capsys, "Who wrote Hamlet?")
    assert "stopped" in err and 0 < len(out.strip()) < len(whole.strip())
    assert isinstance(conversation.model, LocalModel)
    engine = conversation.model.llm.engine
    assert not engine.has_work()
    engine.check()
    conversation.reset()
    assert turn(conversation, capsys, "Who wrote Hamlet?")[0] == whole


def test_a_second_ctrl_c_has_its_usual_effect() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored here
    try:
        signals: list[int] = []
        with first_signal((signal.SIGINT,), signals.append):
            signal.raise_signal(signal.SIGINT)
            assert signals == [signal.SIGINT]
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_text_of_a_model_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    view = ChatView()
    view.show_event(Event("content", "a\x1b]0;x\x07b\x9bc\r\nd :smile: [bold]"))
    view.end()
    assert capsys.readouterr().out == "a]0;xbc\nd :smile: [bold]\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--url", "http://127.0.0.1:1/v1"), "--url: cannot reach"),
        (("--url", "http://127.0.0.1:1/v1", "--drafter", "root"), "--drafter"),
        (("--api-key-file", "no"), "--api-key-file"),
        (("--tools", "no/such/file"), "--tools: cannot read"),
    ],
)
def test_an_option_that_cannot_be_used_is_an_error(arguments: list[str], error: str) -> None:
    done = eyas("chat", *arguments)
    assert done.returncode == 2 and error in done.stderr
