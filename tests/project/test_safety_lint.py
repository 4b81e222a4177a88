"""The safety lint finds what it must, also behind other names, and nothing else.

`make check` runs it over the package.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "tools" / "lint_safety.py"


@pytest.fixture(scope="module")
def lint() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lint_safety", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "import marshal, os",
        "eval('1')",
        "exec(text)",
        "compile(text, '', 'exec')",
        "import os\nos.system('ls')",
        "from os import system as run\nrun('ls')",
        "import subprocess as s\ns.run('ls', shell=True)",
        "import torch\ntorch.load(f)",
        "import torch\ntorch.load(f, weights_only=False)",
        "from torch import load\nload(f)",
        "import yaml\nyaml.load(f)",
        "Model.from_pretrained(x, trust_remote_code=True)",
        "Model.from_pretrained(x, trust_remote_code=flag)",
        "import jinja2\njinja2.Environment()",
        "from jinja2 import Environment\nEnvironment()",
        "from jinja2.sandbox import SandboxedEnvironment\nSandboxedEnvironment()",
        "import numpy as np\nnp.load(f)",
        "import re\nre.fullmatch(pattern, text)",
        "from re import compile as c\nc(body.pattern)",
        "import re\nre.sub(patterns[0], '', text)",
    ],
)
def test_forbidden(lint: ModuleType, source: str) -> None:
    assert list(lint.findings(source, "file.py"))


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.load(f, weights_only=True)",
        "import torch\ntorch.compile(f)",
        "import re\nre.compile('x')",
        "import re\nre.compile(f'(?={any_of(words)})')",
        "import re\nre.search(_HEAD, text)",
        "model.eval()",
        "import subprocess\nsubprocess.run(['ls'], shell=False)",
        "from jinja2.sandbox import ImmutableSandboxedEnvironment\nImmutableSandboxedEnvironment()",
        "import yaml\nyaml.safe_load(f)",
    ],
)
def test_allowed(lint: ModuleType, source: str) -> None:
    assert not list(lint.findings(source, "file.py"))
