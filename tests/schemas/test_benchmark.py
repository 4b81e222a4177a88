"""`eyas bench grammar` counts what it claims to count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import eyas.builtin
from eyas.cli import main

BUILTIN = Path(eyas.builtin.__file__).parent / "checkpoint"


def bench(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    with pytest.raises(SystemExit) as left:
        main(["bench", "grammar", str(folder), "--tokenizer", str(BUILTIN), "--json"])
    return {"status": left.value.code, **json.loads(capsys.readouterr().out)}


def write(folder: Path, name: str, schema: Any, *tests: tuple[bool, Any]) -> None:
    content = {"schema": schema, "tests": [{"valid": v, "data": data} for v, data in tests]}
    (folder / f"{name}.json").write_text(json.dumps(content))


def test_instances_refusals_and_times_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    write(tmp_path, "sizes", sizes, (True, {"a": 1}), (True, {"a": 22, "b": [1]}), (False, {}))
    write(tmp_path, "order", {"properties": {"x": {}, "y": {}}}, (True, {"y": 1, "x": 2}))
    write(tmp_path, "unique", {"items": {"type": "string"}, "uniqueItems": True}, (True, []))
    found = bench(tmp_path, capsys)
    assert found["status"] == 0
    assert (found["schemas"], found["refused_by_keyword"]) == (3, {"uniqueItems": 1})
    assert (found["valid"], found["valid_rejected"]) == (3, 1)  # the order of properties is fixed
    assert (found["invalid"], found["invalid_accepted"]) == (1, 0)
    assert found["limits_hit"] == 0
    for times in ("prepare", "compile", "first_mask", "mask"):
        assert 0 < found["milliseconds"][times]["p50"] <= found["milliseconds"][times]["max"]


def test_an_invalid_instance_that_passes_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "wrong", {"type": "string"}, (False, "said to be invalid"))
    found = bench(tmp_path, capsys)
    assert found["status"] == 1
    assert found["accepted"][0]["file"] == "wrong"
