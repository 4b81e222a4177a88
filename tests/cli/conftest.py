"""What the tests of commands share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cli.lines import Outcome, outcome

Line = Callable[..., Outcome]


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Line:
    """`eyas serve ...` up to the start of the server."""
    return lambda *arguments: outcome(monkeypatch, capsys, list(arguments))
