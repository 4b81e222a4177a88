"""`benchmarks/draw_schemas.py`, which writes cases for measurements with schemas."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from eyas_bench.grammar import read_cases

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "draw_schemas.py"
STEP: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "run": {"$ref": "#/definitions/commands"},
        "kind": {"enum": ["build", "test"]},
        "timeout": {"type": "integer", "minimum": 5, "maximum": 9},
        "with": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
        "when": {"oneOf": [{"type": "boolean"}, {"allOf": [{"type": "string"}]}]},
        "notes": {"type": "array", "minItems": 4, "items": {"type": "string"}},
    },
    "required": ["run", "kind", "notes"],
    "additionalProperties": False,
}
DOCUMENT: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "definitions": {
        "step": STEP,
        "commands": {"type": "array", "minItems": 1, "items": {"type": "string"}},
        "never": {"properties": {"x": {"$ref": "other.json"}}, "required": ["x"]},
        "unused": {"type": "string"},
    },
}


def draw(source: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the script. Returns its exit status."""
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(source), str(output)])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    return int(left.value.code or 0)


def test_drawn_instances_are_valid_and_the_same_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "ci.json").write_text(json.dumps(DOCUMENT))
    (source / "list.json").write_text("[]")
    for name in ("first", "second"):
        assert draw(source, tmp_path / name, monkeypatch) == 0
    cases = read_cases(tmp_path / "first")
    assert cases == read_cases(tmp_path / "second")
    (case,) = cases
    assert case.name == "ci-0"
    assert case.schema["properties"] == STEP["properties"]
    assert case.schema["definitions"].keys() == {"commands"}
    assert len(case.tests) == 3
    for is_valid, value in case.tests:
        assert is_valid and jsonschema.validate(value, case.schema) is None


def test_files_without_schemas_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert draw(tmp_path, tmp_path / "cases", monkeypatch) == 2
    assert "holds no .json files" in capsys.readouterr().err
    (tmp_path / "broken.json").write_text("{")
    assert draw(tmp_path, tmp_path / "cases", monkeypatch) == 2
    assert "broken.json is no JSON" in capsys.readouterr().err
