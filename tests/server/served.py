"""A whole server in a process of its own: `python -m tests.server.served <directory> [fault]`."""

from __future__ import annotations

import sys

from eyas.config import EngineConfig, ModelConfig
from eyas.server.launch import serve
from eyas.server.options import ServerOptions

if __name__ == "__main__":
    directory, *fault = sys.argv[1:]
    config = EngineConfig(model=ModelConfig(path=directory))
    options = ServerOptions(port=0, served_model_names=("tiny",), drain_seconds=5)
    command = [sys.executable, "-m", "tests.server.fake_worker", *fault]
    sys.exit(serve(config, options, command=command))
