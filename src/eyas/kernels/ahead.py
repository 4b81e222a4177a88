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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import psutil
import torch
from torch.overrides import TorchFunctionMode

from eyas.children import python_command

log = logging.getLogger(__name__)

MOST_PROCESSES = 12
BYTES_PER_PROCESS = 1 << 30
"""What a process may take, with torch and the compiler."""
IDLE_SECONDS = 60.0
MOST_SECONDS = 300.0
"""After this time children are ended; what they have not compiled is compiled when it is launched."""
DONE = "done"
"""What a child answers when it has compiled a kernel; else it answers an error."""

NOTED = object()
"""Stands for a kernel that is not launched, so that it is noted once."""

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
    cache.

    `settle_cache_keys` was called. New tensors are filled with zeros, so that numbers which a kernel
    would have written are valid indices of whatever reads them.
    """
    from triton import knobs
    from triton.runtime import JITFunction

    noted: list[tuple[dict[Any, Any], Any]] = []
    launch, hook, thread = JITFunction.run, knobs.runtime.jit_cache_hook, threading.get_ident()

    def run(function: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        is_here = threading.get_ident() == thread
        return launch(function, *args, grid=grid, warmup=warmup or is_here, **options)

    def note(*, key: Any, fn: Any, **said: Any) -> bool:
        if threading.get_ident() != thread:
            return False
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
        JITFunction.run, knobs.runtime.jit_cache_hook = launch, hook
        _is_collecting.reset(token)
        for kernels, key in noted:
            del kernels[key]


class CompileProcesses:
    """Child processes that compile kernels: started when there are kernels, and ended when there have
    been none for `IDLE_SECONDS`.

    num: how many, at most; None is by this machine's cores and memory.
    """

    def __init__(self, num: int | None = None) -> None:
        self._num = num or _most_processes()
        self._lock = threading.Lock()
        self._children: list[subprocess.Popen[str]] = []
        self._left: Queue[KernelSpec] = Queue()
        self._num_compiled = 0

    def start(self, num: int | None = None) -> None:
        """Start processes until there are `num`, None is all, without waiting for the seconds that they
        take until they can compile."""
        with self._lock:
            while len(self._children) < min(self._num, num or self._num):
                self._children.append(child := _start())
                threading.Thread(target=self._feed, args=(child,), daemon=True).start()

    def add(self, spec: KernelSpec) -> None:
        """Have a kernel compiled into Triton's cache, in the background."""
        with self._lock:
            self._left.put(spec)
        self.start(self._left.unfinished_tasks)

    def wait(self) -> int:
        """Wait until all kernels are compiled. Returns how many were since the last call."""
        deadline = threading.Timer(MOST_SECONDS, self._kill)
        deadline.daemon = True
        deadline.start()
        self._left.join()
        deadline.cancel()
        num_compiled, self._num_compiled = self._num_compiled, 0
        return num_compiled

    def _feed(self, child: subprocess.Popen[str]) -> None:
        """Have a child compile one kernel after another."""
        while (spec := self._next(child)) is not None:
            answer = _answer(child, spec)
            if answer == DONE:
                with self._lock:
                    self._num_compiled += 1
            else:
                log.debug("%s is compiled at its first launch: %s", spec.name, answer)
            self._left.task_done()
        child.communicate()

    def _next(self, child: subprocess.Popen[str]) -> KernelSpec | None:
        """Return a kernel; None if there has been none for long, and then the child is forgotten."""
        while True:
            try:
                return self._left.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._left.empty():
                        self._children.remove(child)
                        return None

    def _kill(self) -> None:
        with self._lock:
            for child in self._children:
                child.kill()


def _answer(child: subprocess.Popen[str], spec: KernelSpec) -> str:
    """Have a child compile a kernel. Returns its answer; nothing if it has ended."""
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(json.dumps(asdict(spec)) + "\n")
        child.stdin.flush()
        return child.stdout.readline().strip()
    except OSError:
        return ""


class CompiledMark:
    """A mark in Triton's cache that kernels were compiled, so that they need not be listed again.

    content: what the kernels depend on besides the sources of eyas's kernels.
    """

    def __init__(self, content: str) -> None:
        from triton import __version__
        from triton.runtime.cache import get_cache_manager

        digest = hashlib.sha256(f"{__version__} {content}".encode())
        for path in sorted(Path(__file__).parent.glob("*.py")):
            digest.update(path.read_bytes())
        self._cache = get_cache_manager(digest.hexdigest())

    @property
    def is_set(self) -> bool:
        return bool(self._cache.has_file(_MARK))

    def set(self) -> None:
        """Set the mark; a folder that cannot be written to is no error."""
        with suppress(OSError):
            self._cache.put("", _MARK, binary=False)


_MARK = "compiled"


def _most_processes() -> int:
    """Return how many processes the cores and the memory are enough for, one core aside."""
    cores = psutil.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # a container's limit, which "max" is not
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        cores = min(cores, int(quota) // int(period))
    room = psutil.virtual_memory().available // BYTES_PER_PROCESS
    return max(1, min(MOST_PROCESSES, cores - 1, room))


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
