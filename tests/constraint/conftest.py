"""The built-in model's tokens, padded as models pad theirs, and both backends over them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest

from eyas.constraint import Vocabulary, build_backend
from eyas.text import Tokenizer
from tests.constraint.walking import PADDING


def _has_xgrammar() -> bool:
    try:
        import xgrammar  # noqa: F401
    except ImportError:
        return False
    return True


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_directory(str(files("eyas.builtin") / "checkpoint"))


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    assert tokenizer.eos_id is not None
    return Vocabulary.of(tokenizer, tokenizer.vocab_size + PADDING, [tokenizer.eos_id])


@pytest.fixture(scope="session")
def llguidance_backend(vocabulary: Vocabulary) -> Iterator[Any]:
    backend: Any = build_backend("llguidance", vocabulary)
    yield backend
    backend.close()


@pytest.fixture(scope="session")
def xgrammar_backend(vocabulary: Vocabulary) -> Iterator[Any]:
    if not _has_xgrammar():
        pytest.skip("xgrammar is not installed")
    backend: Any = build_backend("xgrammar", vocabulary, deadline_seconds=300.0)
    yield backend
    backend.close()


@pytest.fixture(params=["llguidance", "xgrammar"])
def backend(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(f"{request.param}_backend")
