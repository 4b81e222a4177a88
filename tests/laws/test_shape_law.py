"""The shape law: every kernel is tested, and no environment variable switches behaviour.

Import contracts are checked by import-linter, code that could run what a stranger sent by
tools/lint_safety.py.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "eyas"
TESTS = PACKAGE.parents[1] / "tests"


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes_of(file: Path) -> list[ast.AST]:
    """All nodes of a file's syntax tree, the tree first."""
    return list(ast.walk(parsed(file)))


def files() -> dict[str, Path]:
    """The package's modules by file name relative to the package."""
    return {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}


def launchers(file: Path) -> set[str]:
    """Return the public functions that start a kernel (`kernel[grid](...)`), directly or through
    other functions of their file."""
    called = {
        function.name: [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
        for function in ast.iter_child_nodes(nodes_of(file)[0])
        if isinstance(function, ast.FunctionDef)
    }
    found = {
        name for name, calls in called.items() if any(isinstance(c, ast.Subscript) for c in calls)
    }
    names = {
        name: {call.id for call in calls if isinstance(call, ast.Name)}
        for name, calls in called.items()
    }
    while more := {name for name, calls in names.items() if calls & found} - found:
        found |= more
    return {name for name in found if not name.startswith("_")}


def kernels_named_in(file: Path) -> set[tuple[str, str]]:
    """Return the (file, function) pairs of eyas.kernels that a Python file imports or refers to."""
    modules: dict[str, str] = {}
    found: set[tuple[str, str]] = set()
    for node in nodes_of(file):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        if node.module == "eyas.kernels":
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif node.module.startswith("eyas.kernels."):
            found |= {(node.module.split(".")[2], alias.name) for alias in node.names}
    for node in nodes_of(file):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in modules:
                found.add((modules[node.value.id], node.attr))
    return found


def modules_imported_by(file: Path) -> set[Path]:
    """Return the files of the package that a Python file imports."""
    found: set[Path] = set()
    for node in nodes_of(file):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("eyas."):
            stem = PACKAGE.joinpath(*node.module.split(".")[1:])
            found |= {stem.with_suffix(".py")} | {stem / f"{a.name}.py" for a in node.names}
    return {file for file in found if file.is_file()}


def test_every_kernel_launcher_is_used_by_a_test() -> None:
    """A test of kernels imports the launcher, or a file that calls it."""
    tests = [file for room in ("kernels", "gpu") for file in (TESTS / room).glob("test_*.py")]
    callers = set().union(*map(modules_imported_by, tests))
    tested = set().union(*map(kernels_named_in, [*tests, *callers]))
    found = {
        (name.removeprefix("kernels/").removesuffix(".py"), launcher)
        for name, file in files().items()
        if name.startswith("kernels/")
        for launcher in launchers(file)
    }
    assert found
    assert sorted(found - tested) == []


def test_no_environment_variable_switches_behaviour() -> None:
    named = [
        (name, node.value)
        for name, file in files().items()
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Constant) and str(node.value).startswith("EYAS_")
    ]
    assert named == []
