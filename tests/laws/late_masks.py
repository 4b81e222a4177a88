"""Masks that come late, so that sequences sit steps out."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from eyas.constraint.base import MaskJob
from eyas.constraint.llguidance import LlguidanceGrammar
from eyas.constraint.xgrammar import XgrammarGrammar
from eyas.engine.engine import Engine
from eyas.engine.walked import MOST_APART


def make_masks_late(monkeypatch: pytest.MonkeyPatch, engine: Engine, seed: int = 0) -> None:
    """Every grammar counts as slow, and what may be left for later takes up to 40 ms."""
    assert engine._grammars is not None
    backend: Any = engine._grammars._backend
    make, draw = backend.job, random.Random(seed)

    def job(
        states: Any, mask_RK: Any, rows: Any = None, drafts: Any = None, *, apart: bool = False
    ) -> MaskJob:
        made = make(states, mask_RK, rows, drafts, apart=apart)
        seconds = draw.choice((0.0, 0.01, 0.04)) if apart else 0.0

        def run() -> None:
            time.sleep(seconds)
            made.run()

        return MaskJob(run, made.settle)

    monkeypatch.setattr(engine.launcher.masking, "most_apart", MOST_APART)
    always = property(lambda grammar: 1.0, lambda grammar, slowness: None)
    for grammar in (LlguidanceGrammar, XgrammarGrammar):
        monkeypatch.setattr(grammar, "slowness", always)
    monkeypatch.setattr(engine.launcher.masking, "step_seconds", [0.0002])
    monkeypatch.setattr(backend, "job", job)
