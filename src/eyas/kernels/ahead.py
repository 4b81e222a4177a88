"""Compile kernels in child processes before they are launched.

A start with an empty cache compiles some hundred kernels, each when it is launched first. Within
`collecting` the same code says which these are, without a launch, and `CompileProcesses` compiles them
on all cores into Triton's cache, where the launch finds them.

Promises: only the time of a start depends on it: a kernel that no child has compiled is compiled when
it is launched. Kernels that are in the cache already are not compiled again. Processes, not threads,
because the compiler's front end holds Python's lock, and because Triton loads all launchers as one
module.
Does not know: which kernels an engine launches.

Method: Triton's hook before a compilation is given what `JITFunction.preload` takes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.overrides import TorchFunctionMode

from eyas.children import python_command

log = logging.getLogger(__name__)

MOST_PROCESSES = 12
CGROUP = Path("/sys/fs/cgroup")
BYTES_PER_PROCESS = 1 << 30
"""What a process may take, with torch and the compiler."""
IDLE_SECONDS = 60.0
MOST_SECONDS = 300.0
"""After this time children are ended; what they have not compiled is compiled when it is launched."""
DONE = "done"
"""What a child answers when it has compiled a kernel; else it answers an error."""

NOTED = object()
"""Stands for a kernel that is not launched, so that it is noted once."""

_lock = threading.Lock()
_is_collecting: ContextVar[bool] = ContextVar("is_collecting", default=False)


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel to compile.

    module, name: of the function. backend, arch, warp_size: of the device. data: the types of its
    arguments, its constants and options, as `triton.runtime.jit.JITFunction.preload` takes them.
    """

    module: str
    name: str
    backend: str
    arch: int
    warp_size: int
    data: str


def is_collecting() -> bool:
    """Return whether this code runs within `collecting`: results of kernels mean nothing."""
    return _is_collecting.get()


@cache
def settle_cache_keys() -> None:
    """Compute the keys of all kernels in one order, before any is compiled.

    Triton's key of a kernel includes the constants of the functions that it calls if their keys are
    known already. Without one order, processes would not find what others have compiled.
    """
    from triton.runtime import JITFunction

    for name in sorted(path.stem for path in Path(__file__).parent.glob("*.py")):
        try:
            module = import_module(f"eyas.kernels.{name}")
        except Exception:  # Triton's other language is not there, or not what it was
            continue
        for each in vars(module).values():
            if isinstance(each, JITFunction):
                _ = each.cache_key


@contextmanager
def collecting(add: Callable[[KernelSpec], object]) -> Iterator[None]:
    """Launch no kernel in this thread, and call `add` with each that is neither loaded nor in Triton's
    cache. Other threads that launch a kernel, or collect too, wait meanwhile.

    `settle_cache_keys` was called. New tensors are filled with zeros, so that numbers which a kernel
    would have written are valid indices of whatever reads them.
    """
    from triton import knobs
    from triton.runtime import JITFunction

    noted: list[tuple[dict[Any, Any], Any]] = []
    _lock.acquire()
    launch, hook, thread = JITFunction.run, knobs.runtime.jit_cache_hook, threading.get_ident()

    def run(function: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if threading.get_ident() == thread:
            return launch(function, *args, grid=grid, warmup=True, **options)
        with _lock:  # until the kernels are collected
            return launch(function, *args, grid=grid, warmup=warmup, **options)

    def note(*, key: Any, fn: Any, **said: Any) -> bool:
        wanted = said["compile"]
        kernels, _, target, backend, _ = fn.jit_function.device_caches[wanted["device"]]
        if not _is_compiled(fn.jit_function, backend, wanted):
            device = (target.backend, target.arch, target.warp_size)
            add(KernelSpec(fn.module, fn.name, *device, wanted["specialization_data"]))
        kernels[key] = NOTED
        noted.append((kernels, key))
        return True

    token = _is_collecting.set(True)
    JITFunction.run, knobs.runtime.jit_cache_hook = run, note
    try:
        with _Zeros():
            yield
    finally:
        for kernels, key in noted:
            del kernels[key]
        JITFunction.run, knobs.runtime.jit_cache_hook = launch, hook
        _is_collecting.reset(token)
        _lock.release()


@dataclass(slots=True)
class CompileCounts:
    """How many kernels were compiled, and how many could not be."""

    num_compiled: int = 0
    num_failed: int = 0


class CompileProcesses:
    """Child processes that compile kernels: started when there are kernels, and ended when there have
    been none for `IDLE_SECONDS`.

    num: how many, at most; None is by this machine's cores and memory. num_sharing: processes that
    share these with this one, itself included.
    """

    def __init__(self, num: int | None = None) -> None:
        self.num_sharing = 1
        self._num = num
        self._most = 0
        self._changed = threading.Condition()
        self._children: list[subprocess.Popen[str]] = []
        self._left: deque[KernelSpec] = deque()
        self._num_at_work = 0
        self._num_ended = 0
        self._counts = CompileCounts()

    def start(self, num: int | None = None) -> None:
        """Start processes until there are `num`, None is all, without waiting for the seconds that they
        take until they can compile. Where none can be started, nothing is compiled."""
        with self._changed:
            if not self._children:
                self._most = self._num or _most_processes(self.num_sharing)
            while len(self._children) < (self._most if num is None else min(num, self._most)):
                if self._num_ended > MOST_PROCESSES:
                    return  # they do not survive here
                try:
                    child = _start()
                except (OSError, ValueError) as error:
                    log.debug("no process can be started that compiles kernels: %s", error)
                    return
                try:
                    threading.Thread(target=self._feed, args=(child,), daemon=True).start()
                except RuntimeError as error:
                    log.debug("no thread can be started for a process: %s", error)
                    _end(child)
                    return
                self._children.append(child)

    def add(self, spec: KernelSpec) -> None:
        """Have a kernel compiled into Triton's cache, in the background."""
        with self._changed:
            self._left.append(spec)
            self._changed.notify()
            num = len(self._left) + self._num_at_work
        self.start(num)

    def wait(self) -> CompileCounts:
        """Wait until all kernels are compiled, or until no process is left that could. Returns the
        counts since the last call."""
        until = time.monotonic() + MOST_SECONDS
        with self._changed:
            while self._children and (self._left or self._num_at_work):
                rest = until - time.monotonic()
                if rest <= 0:
                    log.warning(
                        "kernels are not compiled within %d s; the start goes on", MOST_SECONDS
                    )
                    self._counts.num_failed += self._num_at_work
                    for child in self._children:
                        child.kill()
                    break
                self._changed.wait(rest)
            self._counts.num_failed += len(self._left)
            self._left.clear()
            counts, self._counts = self._counts, CompileCounts()
        return counts

    def _feed(self, child: subprocess.Popen[str]) -> None:
        """Have a child compile one kernel after another, until it ends or there are none for long."""
        answer = DONE
        while answer and (spec := self._next()) is not None:
            answer = _answer(child, spec)
            with self._changed:
                self._num_at_work -= 1
                self._counts.num_compiled += answer == DONE
                self._counts.num_failed += answer != DONE
                self._num_ended += not answer
                self._changed.notify_all()
            if answer != DONE:
                reason = answer or "its process has ended"
                log.debug("%s is compiled at its first launch: %s", spec.name, reason)
        with self._changed:
            self._children.remove(child)
            if self._left:  # in place of one that has ended, or for a kernel that came meanwhile
                self.start(len(self._left) + self._num_at_work)
            self._changed.notify_all()
        _end(child)

    def _next(self) -> KernelSpec | None:
        """Return a kernel; None if there has been none for long."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._left, IDLE_SECONDS):
                return None
            self._num_at_work += 1
            return self._left.popleft()


def _answer(child: subprocess.Popen[str], spec: KernelSpec) -> str:
    """Have a child compile a kernel. Returns its answer; nothing if it has ended."""
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(json.dumps(asdict(spec)) + "\n")
        child.stdin.flush()
        return child.stdout.readline().strip()
    except (OSError, ValueError):
        return ""


def _end(child: subprocess.Popen[str]) -> None:
    """End a child that has nothing to do."""
    child.kill()
    with suppress(OSError, ValueError):
        child.communicate()


class CompiledMark:
    """A mark in Triton's cache that kernels were compiled, so that they need not be listed again.

    content: what the kernels depend on besides the sources of eyas's kernels. A cache that cannot be
    written to has no marks.
    """

    def __init__(self, content: str) -> None:
        from triton import __version__

        digest = hashlib.sha256(f"{__version__} {content}".encode())
        for path in sorted(Path(__file__).parent.glob("*.py")):
            digest.update(path.read_bytes())
        self._key = digest.hexdigest()

    @property
    def is_set(self) -> bool:
        from triton.runtime.cache import get_cache_manager

        with suppress(OSError):
            return bool(get_cache_manager(self._key).has_file(_MARK))
        return False

    def set(self) -> None:
        from triton.runtime.cache import get_cache_manager

        with suppress(OSError):
            get_cache_manager(self._key).put("", _MARK, binary=False)


_MARK = "compiled"


def _most_processes(num_sharing: int) -> int:
    """Return for how many processes the cores and the memory are enough, one core aside."""
    cores = psutil.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    num_bytes = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # a container's limits, which "max" are not
        quota, period = (CGROUP / "cpu.max").read_text(encoding="utf-8").split()
        cores = min(cores, int(quota) // int(period))
    with suppress(OSError, ValueError):
        limit, used = (
            int((CGROUP / f"memory.{name}").read_text(encoding="utf-8"))
            for name in ("max", "current")
        )
        num_bytes = min(num_bytes, limit - used)
    most = min(cores - 1, num_bytes // BYTES_PER_PROCESS) // num_sharing
    return max(1, min(MOST_PROCESSES, most))


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        python_command("eyas.kernels.compile_worker"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        env=dict(os.environ, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1"),
    )


class _Zeros(TorchFunctionMode):
    """Fills new tensors with zeros."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.zero_() if func in _EMPTY else result


_EMPTY = frozenset(
    {
        torch.empty,
        torch.empty_like,
        torch.empty_strided,
        torch.Tensor.new_empty,
        torch.Tensor.new_empty_strided,
    }
)


def _is_compiled(function: Any, backend: Any, wanted: dict[str, Any]) -> bool:
    """Return whether a kernel is in Triton's cache."""
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.runtime.cache import get_cache_key, get_cache_manager

    (attributes,) = wanted["configs"]
    source = function.ASTSource(function, wanted["signature"], wanted["constants"], attributes)
    options = json.loads(wanted["specialization_data"])["options"]
    options = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    key = get_cache_key(
        source, backend, backend.parse_options(options), get_cache_invalidating_env_vars()
    )
    cache = get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
    name = f"{source.name[:150]}.json"
    return name in (cache.get_group(name) or {})
