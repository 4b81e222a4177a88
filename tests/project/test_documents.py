"""The documents name things that exist, and agree with one another."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import eyas

ROOT = Path(__file__).parents[2]
STATION = re.compile(r"`(eyas/[\w/]+\.py):([\w.]+)`")
PATH = re.compile(r"`((?:src|tests|docs|tools|benchmarks|examples|eyas)/[\w./-]+)`")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")
RESULTS = ROOT / "benchmarks" / "results"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@cache
def names_in(file: Path) -> set[str]:
    """Return what a module defines: `name` or `Class.name` of functions, classes, methods, fields and
    constants."""
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        names.update(_defined(node))
        if isinstance(node, ast.ClassDef):
            inner = (name for each in node.body for name in _defined(each))
            names.update(f"{node.name}.{name}" for name in inner)
    return names


def _defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_station_exists(page: Path) -> None:
    for file, name in STATION.findall(page.read_text()):
        assert (ROOT / "src" / file).is_file(), f"{file} is gone"
        assert name in names_in(ROOT / "src" / file), f"{file} has no {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_and_link_exists(page: Path) -> None:
    text = page.read_text()
    for path in PATH.findall(text):
        place = ROOT / "src" / path if path.startswith("eyas/") else ROOT / path
        assert place.exists(), f"{path} is gone"
    for link in LINK.findall(text):
        assert (page.parent / link).exists(), f"the link to {link} leads nowhere"


def test_the_glossary_gives_each_term_one_meaning() -> None:
    terms = re.findall(r"^\*\*(.+?)\*\*: ", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert terms
    assert [term for term in set(terms) if terms.count(term) > 1] == []


def test_every_law_names_tests_that_exist() -> None:
    text = (ROOT / "docs/laws.md").read_text()
    files = re.findall(r"`(tests/[\w/]+\.py)`", text)
    assert files
    for file in files:
        assert "def test_" in (ROOT / file).read_text() or "TestCase" in (ROOT / file).read_text()


def test_changelog_project_and_package_agree_on_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    newest = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == project["version"] == eyas.__version__
    benches = tomllib.loads((ROOT / "benchmarks" / "pyproject.toml").read_text())["project"]
    assert benches["version"] == project["version"]
    assert f"eyas=={project['version']}" in benches["dependencies"]


def test_every_dependency_has_a_tested_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    benches = tomllib.loads((ROOT / "benchmarks" / "pyproject.toml").read_text())["project"]
    wanted += benches["dependencies"]
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    pinned.add("triton")  # torch for CUDA wants the one that it was built with
    for requirement in wanted:
        name = re.split(r"[<>=\[]", requirement)[0].lower().replace("_", "-")
        assert name == "eyas" or name in pinned, f"{name} is not in constraints.txt"


def test_a_source_distribution_can_be_installed_as_the_readme_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    named = re.findall(r"pip install -c (\S+)", (ROOT / "README.md").read_text())
    assert named and set(named) <= set(included)


def test_the_tables_are_made_from_the_results() -> None:
    done = subprocess.run(
        [sys.executable, "tools/make_docs.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def measurements() -> Any:
    """benchmarks/run.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("run", ROOT / "benchmarks" / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run = measurements()
TRAINED = {"builtin_head_report", "builtin_head_training", "builtin_training"}
"""Reports of training runs, which `eyas train` writes."""


@pytest.mark.parametrize("file", sorted(RESULTS.rglob("*.json")), ids=lambda file: file.stem)
def test_every_result_is_of_a_command_that_can_be_run_again(file: Path) -> None:
    """Acceptance that is drawn has no say in what a step takes, and may be another one."""
    if file.stem in TRAINED:
        return
    told = json.loads(file.read_text())
    command = told.get("command") or told["settings"]["command"]
    drawn = {"3.52", "4.0"}
    assert set(command.split(" --output ")[0].split()) - drawn == (
        set(run.as_text(file.stem).split()) - drawn
    )


def test_measurements_are_of_folders_that_are_there(tmp_path: Path) -> None:
    folders = {"TOKENIZER": None, "SCHEMAS": tmp_path}
    assert run.as_arguments("grammar", folders, tmp_path) is None
    words = run.as_arguments("grammar", {**folders, "TOKENIZER": tmp_path}, tmp_path)
    assert words is not None and words.count(str(tmp_path)) == 3
    exact = run.as_arguments("h200_exact", folders, tmp_path)
    assert exact is not None and exact[1] == "benchmarks/exact.py"


def rooms() -> set[str]:
    """The packages and modules of eyas."""
    home = ROOT / "src" / "eyas"
    return {
        entry.stem
        for entry in home.iterdir()
        if (entry / "__init__.py").exists() or (entry.suffix == ".py" and entry.stem[0] != "_")
    }


def contracts() -> dict[str, Any]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {each["name"]: each for each in settings["tool"]["importlinter"]["contracts"]}


def test_the_table_of_rooms_is_in_the_order_that_is_enforced() -> None:
    layers = [re.findall(r"\w+", layer) for layer in contracts()["rooms, top to bottom"]["layers"]]
    height = {room: i for i, layer in enumerate(layers) for room in layer}
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(
        r"^\| ((?:`\w+`(?:, )?)+) \|", text.split("## Extension points")[0], re.MULTILINE
    )
    told = [re.findall(r"\w+", row) for row in rows]
    assert {room for row in told for room in row} == rooms()
    order = [max(height[room] for room in row) for row in told]
    assert order == sorted(order)


ALLOWED = {
    "the web framework lives in the server": {"server", "cli", "deploy", "typed"},
    "grammar libraries live behind their backends": {"constraint"},
    "transformers is for comparisons alone": {"cli", "verify"},
    "terminal output lives in the commands": {"cli"},
    "triton lives in the kernels": {"kernels"},
}
"""Rooms that may import what a contract forbids all others."""


@pytest.mark.parametrize("name", ALLOWED)
def test_a_contract_binds_every_room_but_the_ones_it_is_about(name: str) -> None:
    bound = {module.removeprefix("eyas.") for module in contracts()[name]["source_modules"]}
    assert bound == rooms() - ALLOWED[name]
