"""`benchmarks/exact.py`, which is otherwise run on a GPU alone."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "exact.py"
SMALL = ("--shape", "tiny", "--device", "cpu", "--dtype", "float32", "--max-length", "100")


def test_rows_of_a_small_model_do_not_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "exact.json"
    asked = ("--rows", "40", "--quick", "1", "--part", "rows", "--output", str(file))
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *SMALL, *asked])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert not left.value.code
    result = json.loads(file.read_text())
    assert result["all"]["num_different"] == 0 and result["all"]["num_rows"] > 200
    assert len([way for way in result["ways"] if way["num_rows"]]) > 5
