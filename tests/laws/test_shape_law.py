"""The shape law: one path, one word a concept, rooms of readable size, no code from strangers.

Import contracts are checked by import-linter (`make check`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "eyas"
MAX_LINES = 400
TABLES_OF_DATA = ("builtin/families/",)
"""Where a file may be as long as its sentences are many."""
FORBIDDEN_CALLS = {"eval", "exec", "__import__", "torch.hub.load", "os.system"}
FORBIDDEN_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}


@lru_cache(maxsize=1)
def texts() -> dict[str, str]:
    """The package's sources by name."""
    return {
        path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@lru_cache(maxsize=1)
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(text) for name, text in texts().items()}


def test_the_package_was_found() -> None:
    assert {"core.py", "engine/engine.py", "draft/base.py"} <= texts().keys()
    assert len(texts()) > 60


def test_no_module_knows_a_phase_or_a_speculative_mode() -> None:
    phases = [n for n, t in texts().items() if re.search(r"is_prefill|is_decode", t)]
    assert phases == []
    allowed = (
        "draft/",
        "cli/",
        "models/heads/",  # the word is a key of files that other projects write and read
    )
    modes = [n for n, t in texts().items() if re.search(r"speculative", t, re.IGNORECASE)]
    assert [name for name in modes if not name.startswith(allowed)] == []


def test_every_module_says_what_it_is() -> None:
    assert [name for name, tree in trees().items() if not ast.get_docstring(tree)] == []


def test_every_room_says_what_it_promises_and_what_it_does_not_know() -> None:
    """The modules of the engine's rooms; packages' fronts may be one line."""
    rooms = ("engine/", "runner/", "cache/", "attention/", "draft/", "constraint/", "sampling/")
    silent = [
        name
        for name, tree in trees().items()
        if name.startswith(rooms)
        and not name.endswith("__init__.py")
        and not re.search(r"Promises.*(Does not know|does not know)", _docstring(tree), re.DOTALL)
    ]
    assert silent == []


def _docstring(tree: ast.Module) -> str:
    return ast.get_docstring(tree) or ""


def test_no_file_is_two_rooms() -> None:
    lengths = {name: len(text.splitlines()) for name, text in texts().items()}
    long = {name: length for name, length in lengths.items() if length > MAX_LINES}
    assert {n: v for n, v in long.items() if not n.startswith(TABLES_OF_DATA)} == {}


def calls(tree: ast.AST) -> Iterator[str]:
    """Dotted names of everything that is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def test_nothing_runs_code_from_a_file_or_a_client() -> None:
    for name, tree in trees().items():
        assert FORBIDDEN_CALLS.isdisjoint(calls(tree)), name
        assert FORBIDDEN_MODULES.isdisjoint(imported(tree)), name
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                options = {k.arg: ast.unparse(k.value) for k in node.keywords}
                assert options.get("weights_only") == "True", name
            if isinstance(node, ast.keyword) and node.arg in ("trust_remote_code", "shell"):
                assert isinstance(node.value, ast.Constant) and node.value.value is False, name


def test_no_switch_by_environment_and_no_task_without_an_issue() -> None:
    for name, text in texts().items():
        assert not re.search(r"\bEYAS_\w+", text), f"{name}: a switch by environment variable"
        assert not re.search(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))", text), name
