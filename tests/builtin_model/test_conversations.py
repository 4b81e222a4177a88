"""The conversations that the package ships are the generator's."""

from __future__ import annotations

from pathlib import Path

import pytest

from builtin_model.conversations import SHIPPED, lines


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_the_shipped_conversations_are_the_generators(file: Path) -> None:
    seed, count = SHIPPED[file]
    assert file.read_text(encoding="utf-8").splitlines(keepends=True) == list(lines(seed, count))


def test_more_conversations_begin_with_the_fewer_ones() -> None:
    assert list(lines("a", 30))[:10] == list(lines("a", 10)) != list(lines("b", 10))
