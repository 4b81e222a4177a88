"""A whole server in a process of its own:
`python -m tests.server.served <directory> [fault] [option=value ...]`.

kill_seconds: how long it waits at its end for an engine that hangs.
"""

from __future__ import annotations

import sys

import msgspec

from eyas.config import EngineConfig, ModelConfig
from eyas.server.options import ServerOptions
from eyas.server.process import client
from eyas.server.process.launch import serve

if __name__ == "__main__":
    directory, *rest = sys.argv[1:]
    fault = [word for word in rest if "=" not in word]
    asked: dict[str, object] = dict(word.split("=", 1) for word in rest if "=" in word)
    if isinstance(keys := asked.get("api_keys"), str):
        asked["api_keys"] = keys.split(",")
    if isinstance(seconds := asked.pop("kill_seconds", None), str):
        client.KILL_SECONDS = float(seconds)
    config = EngineConfig(model=ModelConfig(path=directory))
    settings = {
        "port": 0,
        "served_model_names": ("tiny",),
        "drain_seconds": 5,
        "stall_seconds": 300,
        **asked,
    }
    options = msgspec.convert(settings, ServerOptions, strict=False)
    command = [sys.executable, "-m", "tests.server.fake_worker", *fault]
    sys.exit(serve(config, options, command=command))
