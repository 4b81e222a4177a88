"""The shape law: one path, one word a concept, no code from strangers.

Import contracts are checked by import-linter (`make check`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "eyas"
TESTS = PACKAGE.parents[1] / "tests"
REFERENCE = re.compile(
    r"\b(?:Reference:|[Tt]he reference(?:\s+is|:)|Torch:|same bits as)\s|`F\.\w+\("
)
"""How a launcher names what computes the same with torch."""
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
        "peers/",  # names of other engines' options
        "models/heads/",  # the word is a key of files that other projects write and read
        "train/head/card.py",  # a tag of the Hugging Face hub
        "train/head/layouts.py",  # an option of other engines
    )
    modes = [n for n, t in texts().items() if re.search(r"speculative", t, re.IGNORECASE)]
    assert [name for name in modes if not name.startswith(allowed)] == []


def test_every_module_says_what_it_is() -> None:
    assert [name for name, tree in trees().items() if not ast.get_docstring(tree)] == []


def test_every_room_says_what_it_promises_and_what_it_does_not_know() -> None:
    """The modules of the engine's rooms; packages' fronts may be one line."""
    rooms = (
        *("engine/", "runner/", "cache/", "attention/", "draft/", "constraint/", "sampling/"),
        "kernels/",
    )
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


def launchers(tree: ast.Module) -> dict[str, str]:
    """Public functions that start a kernel (`kernel[grid](...)`), themselves or by others of their
    file, with their docstrings."""
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    found: set[str] = set()
    while True:
        more = {
            name
            for name, function in functions.items()
            for node in ast.walk(function)
            if isinstance(node, ast.Call)
            and (isinstance(node.func, ast.Subscript) or ast.unparse(node.func) in found)
        }
        if more <= found:
            break
        found |= more
    return {name: ast.get_docstring(functions[name]) or "" for name in found if name[0] != "_"}


def kernels_named_in(file: Path) -> set[tuple[str, str]]:
    """(file, function) of eyas.kernels that a Python file imports, or reads from what it imports."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    modules: dict[str, str] = {}
    found: set[tuple[str, str]] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        if node.module == "eyas.kernels":
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif node.module.startswith("eyas.kernels."):
            found |= {(node.module.split(".")[2], alias.name) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in modules:
                found.add((modules[node.value.id], node.attr))
    return found


def modules_imported_by(file: Path) -> set[Path]:
    """Files of the package that a Python file imports."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("eyas."):
            place = PACKAGE.joinpath(*node.module.split(".")[1:])
            found |= {place.with_suffix(".py")} | {place / f"{a.name}.py" for a in node.names}
    return {place for place in found if place.is_file()}


def test_every_kernel_has_a_torch_reference_and_a_numeric_test() -> None:
    """A test of kernels imports what launches them, or the file that chooses between both ways."""
    files = [file for room in ("kernels", "gpu") for file in (TESTS / room).glob("test_*.py")]
    choosers = set().union(*map(modules_imported_by, files))
    tested = set().union(*map(kernels_named_in, [*files, *choosers]))
    found = {
        (name.removeprefix("kernels/").removesuffix(".py"), launcher): text
        for name, tree in trees().items()
        if name.startswith("kernels/")
        for launcher, text in launchers(tree).items()
    }
    assert len(found) > 15
    assert sorted(found.keys() - tested) == []
    assert [name for name, text in sorted(found.items()) if not REFERENCE.search(text)] == []


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
