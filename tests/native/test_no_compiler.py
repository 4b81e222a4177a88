"""A machine without a C compiler, where torch and oneDNN compute everything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, torch
from eyas import LLM, SamplingParams
from eyas.native.products import is_available

dtype = sys.argv[1]
assert not is_available(getattr(torch, dtype), torch.device("cpu"))
prompts = ["Name three colours.", "What is 17 plus 25?", "Repeat: one two three."]
found = []
for drafter in ("root", "head"):
    with LLM(dtype=dtype, drafter=drafter, num_slots=4096, num_threads=1) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=32)
        alone = [llm.chat([{"role": "user", "content": each}], params) for each in prompts]
        found.append([list(each[0].token_ids) for each in alone])
        assert llm.engine.metrics.num_failed_steps == 0
assert found[0] == found[1] and all(found[0]), found
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_drafts_change_nothing_without_a_compiler(dtype: str, tmp_path: Path) -> None:
    environment = os.environ | {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, dtype],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
