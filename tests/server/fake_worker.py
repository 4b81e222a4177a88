"""An engine process whose engine counts: `python -m tests.server.fake_worker [fault]`.

Each step adds one token to every live choice: the prompt's last id, then its successors.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from eyas.config import EngineConfig, EngineInfo
from eyas.constraint import Backend, CompilePool, Grammar
from eyas.core import Delta, GrammarError, Request, RequestError, Usage
from eyas.engine.worker import main
from eyas.grammar import OutputSpec
from eyas.wire import EngineStats, GrammarStats
from tests.server.engine_info import engine_info

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""


class AnyBackend(Backend):
    name = "any"

    def compile(self, spec: OutputSpec) -> Any:
        return SimpleNamespace(num_bytes=100, spec=spec)

    def close(self) -> None:
        pass

    def job(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


class CountingEngine:
    def __init__(self, config: EngineConfig, progress: Callable[[str, int, int], None]) -> None:
        progress("loading weights", 0, 100)
        if FAULT == "slow":  # until the test has looked
            while not (Path(config.model.path) / "go_on").exists():
                progress("loading weights", 43, 100)
                time.sleep(0.01)
            if (Path(config.model.path) / "fail").exists():
                raise ValueError("model.path: is broken; download it again")
        progress("loading weights", 100, 100)
        if FAULT == "no_model":
            raise ValueError("model.path: there is no model here; give another path")
        if FAULT == "bug_at_start":
            raise RuntimeError("secret detail")
        if FAULT == "once":
            (Path(config.model.path) / "started").touch(exist_ok=False)
        if FAULT == "with_child":
            self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        self._pool: CompilePool | None = None
        if FAULT == "threads":
            self._pool = CompilePool(AnyBackend())
            start, denied = threading.Thread.start, Path(config.model.path) / "no_threads"

            def started(thread: threading.Thread) -> None:
                if denied.exists():
                    raise RuntimeError("can't start new thread")
                start(thread)

            threading.Thread.start = started
        self.info: EngineInfo = engine_info(config.model.path)
        self._live: dict[str, tuple[Request, int]] = {}
        self._num_steps = 0
        self._is_broken = False

    def check_request(self, request: Request) -> None:
        if request.cache_salt == "refuse":
            raise RequestError("prompt: is refused", param="prompt")
        if request.cache_salt == "bug":
            raise KeyError("secret detail")

    def compile(self, spec: OutputSpec) -> Future[Grammar]:
        """No grammar can be compiled here, but with "threads" any, and none of them does anything."""
        if self._pool is not None:
            return self._pool.compile(spec)
        future: Future[Grammar] = Future()
        future.set_exception(GrammarError("regex: is malformed", "invalid", param=spec.param))
        return future

    def add(self, request: Request, grammar: Grammar | None = None) -> None:
        self.check_request(request)
        self._live[request.id] = (request, 0)

    def abort(self, request_id: str) -> None:
        self._live.pop(request_id, None)

    def forget_prefixes(self) -> None:
        pass

    def has_work(self) -> bool:
        return bool(self._live)

    def step(self) -> list[Delta]:
        self._num_steps += 1
        time.sleep(0.002)
        salts = {request.cache_salt for request, _ in self._live.values()}
        if "crash" in salts:
            os._exit(3)
        if "raise" in salts:
            raise RuntimeError("secret detail")
        if "break" in salts:
            self._is_broken = True
            raise RuntimeError("secret detail")
        if "hang" in salts:
            time.sleep(3600)
        if "turn" in salts:  # the loop turns, but nothing comes of it
            self._num_steps -= 1
            return []
        deltas = []
        for request_id, (request, count) in list(self._live.items()):
            is_last = count + 1 >= (request.params.max_tokens or 16)
            for index in range(request.params.n):
                delta = Delta(
                    request_id=request_id,
                    index=index,
                    token_ids=[(request.prompt_token_ids[-1] + count) % 256],
                    text=f"{request.prompt_token_ids[-1] + count} ",
                )
                if is_last:
                    delta.finish_reason = "length"
                    delta.usage = Usage(
                        num_prompt_tokens=len(request.prompt_token_ids), num_output_tokens=count + 1
                    )
                deltas.append(delta)
            self._live[request_id] = (request, count + 1)
            if is_last:
                del self._live[request_id]
        return deltas

    def stats(self) -> EngineStats:
        can_compile = self._pool is None or self._pool.can_compile()
        return EngineStats(
            num_running=len(self._live),
            num_steps=self._num_steps,
            num_slots=1,
            grammar=GrammarStats(can_compile=can_compile),
        )

    def check_ranks(self) -> None:
        return None

    def check(self) -> None:
        assert FAULT != "leak", "slots are lost"
        assert not self._is_broken, "slots are lost"

    def shutdown(self) -> None:
        pass


if __name__ == "__main__":
    sys.exit(main(CountingEngine))
