"""The interface of output grammars to a step; grammar libraries are behind it."""

from __future__ import annotations

from eyas.constraint.allocator import process_allocator
from eyas.constraint.base import Backend, ConstraintFailure, Grammar, State
from eyas.constraint.pool import CompilePool, PoolStats
from eyas.constraint.vocabulary import Vocabulary
from eyas.grammar import SPACING, Spacing

BACKENDS = ("llguidance", "xgrammar")

__all__ = [
    "BACKENDS",
    "Backend",
    "CompilePool",
    "ConstraintFailure",
    "Grammar",
    "PoolStats",
    "State",
    "Vocabulary",
    "build_backend",
    "process_allocator",
]


def build_backend(
    name: str,
    vocabulary: Vocabulary,
    num_threads: int = 1,
    *,
    deadline_seconds: float = 5.0,
    spacing: Spacing = SPACING,
) -> Backend:
    """Return a grammar library's backend. num_threads: fill masks. deadline_seconds: of a compilation,
    where the backend enforces it. spacing: of schemas that do not set their own. ValueError for an
    unknown name, or where the library is not installed."""
    if name == "llguidance":
        from eyas.constraint.llguidance import LlguidanceBackend

        return LlguidanceBackend(vocabulary, num_threads=num_threads, spacing=spacing)
    if name == "xgrammar":
        from eyas.constraint.xgrammar import XgrammarBackend

        return XgrammarBackend(
            vocabulary,
            num_threads=num_threads,
            deadline_seconds=deadline_seconds,
            spacing=spacing,
        )
    raise ValueError(f"there is no grammar backend {name!r}; choose one of {', '.join(BACKENDS)}")
