"""Find code that could run data from untrusted sources: `python tools/lint_safety.py PATH...`

Promises: prints a line `file:line: what, and what to do instead` for every finding; the exit status
is 1 if there is any. Only syntax is checked, so code that is built from strings at run time is not
found.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FORBIDDEN_MODULES = {
    "pickle": "use msgspec",
    "cPickle": "use msgspec",
    "_pickle": "use msgspec",
    "cloudpickle": "use msgspec",
    "dill": "use msgspec",
    "joblib": "use msgspec",
    "marshal": "use msgspec",
    "shelve": "use msgspec",
}
FORBIDDEN_BUILTINS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_CALLS = {
    "os.system": "use subprocess with a list of arguments",
    "os.popen": "use subprocess with a list of arguments",
    "subprocess.getoutput": "use subprocess.run with a list of arguments",
    "subprocess.getstatusoutput": "use subprocess.run with a list of arguments",
    "yaml.load": "use yaml.safe_load",
    "yaml.unsafe_load": "use yaml.safe_load",
    "yaml.full_load": "use yaml.safe_load",
    "jinja2.Environment": "use jinja2.sandbox.ImmutableSandboxedEnvironment",
    "jinja2.Template": "use jinja2.sandbox.ImmutableSandboxedEnvironment",
    "jinja2.environment.Environment": "use jinja2.sandbox.ImmutableSandboxedEnvironment",
    "jinja2.sandbox.SandboxedEnvironment": "use jinja2.sandbox.ImmutableSandboxedEnvironment",
    "numpy.load": "use safetensors",
    "torch.hub.load": "checkpoints are data; their code is never run",
    "torch.jit.load": "use safetensors",
    "tempfile.mktemp": "use tempfile.mkdtemp",
}
PATTERN_CALLS = {
    f"re.{name}"
    for name in ("compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub")
}
"""Functions of `re` that backtrack, and hold the interpreter's lock meanwhile."""
FORBIDDEN_ARGUMENTS = {
    "trust_remote_code": "checkpoints are data; their code is never run",
    "allow_pickle": "use safetensors",
}


def findings(source: str, file: str) -> Iterator[str]:
    """Yield the findings of a source text."""
    tree = ast.parse(source, file)
    names = _imported_names(tree)
    is_test = "tests" in Path(file).parts  # a test chooses its own patterns
    for node in ast.walk(tree):
        for what in _check_node(node, names):
            yield f"{file}:{getattr(node, 'lineno', 0)}: {what}"
        if isinstance(node, ast.Call) and not is_test and _runs_a_variable(node, names):
            what = "a pattern from a variable may never end: write it here, or name a constant"
            yield f"{file}:{node.lineno}: {what}"


def _check_node(node: ast.AST, names: dict[str, str]) -> Iterator[str]:
    match node:
        case ast.Import(names=aliases):
            yield from (_bad_module(alias.name) for alias in aliases if _is_bad(alias.name))
        case ast.ImportFrom(module=str(module), level=0) if _is_bad(module):
            yield _bad_module(module)
        case ast.Call():
            yield from _check_call(node, names)


def _check_call(call: ast.Call, names: dict[str, str]) -> Iterator[str]:
    called = _dotted(call.func, names)
    arguments = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    if called in FORBIDDEN_BUILTINS:
        yield f"{called}() runs text as code"
    if called in FORBIDDEN_CALLS:
        yield f"{called}: {FORBIDDEN_CALLS[called]}"
    if called == "torch.load" and not _is_true(arguments.get("weights_only")):
        yield "torch.load without weights_only=True unpickles anything"
    if not _is_false(arguments.get("shell")):
        yield "shell=True: give a list of arguments"
    for name, remedy in FORBIDDEN_ARGUMENTS.items():
        if not _is_false(arguments.get(name)):
            yield f"{name}: {remedy}"


def _imported_names(tree: ast.AST) -> dict[str, str]:
    """Return local name -> imported name, so that `from os import system as run` is recognised."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    names[alias.asname] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    """Return the dotted name of an expression; "" if it is something else."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, names)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def _is_bad(module: str) -> bool:
    return module.split(".")[0] in FORBIDDEN_MODULES


def _bad_module(module: str) -> str:
    return f"import of {module}: {FORBIDDEN_MODULES[module.split('.')[0]]}"


def _runs_a_variable(call: ast.Call, names: dict[str, str]) -> bool:
    """Whether the call passes a pattern from a variable to `re`."""
    is_pattern = _dotted(call.func, names) in PATTERN_CALLS and len(call.args) > 0
    return is_pattern and _is_variable(call.args[0])


def _is_variable(value: ast.expr) -> bool:
    """Whether the expression is a variable; names in capitals are constants."""
    if isinstance(value, ast.Subscript):
        return _is_variable(value.value)
    name = getattr(value, "id", None) or getattr(value, "attr", None)
    return isinstance(name, str) and not name.isupper()


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _is_false(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and not value.value)


def main(paths: list[str]) -> int:
    """Check files and directories. Return 1 if there are findings, else 0."""
    files = [f for path in paths for f in sorted(Path(path).rglob("*.py")) or [Path(path)]]
    found = [line for file in files for line in findings(file.read_text(), str(file))]
    print("\n".join(found) or f"{len(files)} files: no code that could run untrusted data")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["src"]))
