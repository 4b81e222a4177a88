"""Compile a C file of this package with the machine's compiler, once, and load it.

Promises: the library is compiled for this processor and stored in the user's cache folder, by a hash of
its source, the headers beside it, flags and processor. A folder or file that others may write to is
not used: the library is then compiled for this process alone. No failure is an error: the reason is
returned.
Does not know: what the code does.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import record_function

from eyas.user_cache import cache_folder

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c11", "-O3", "-march=native", "-shared", "-fPIC", "-fopenmp")
"""The name of the OpenMP library is that of the one which torch has loaded, so there is one only."""
TIMEOUT_SECONDS = 120
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Built:
    """A loaded library, or the reason why there is none."""

    library: ctypes.CDLL | None
    reason: str


def load(
    source: Path,
    what: str,
    declare: Callable[[ctypes.CDLL], None],
    is_right: Callable[[ctypes.CDLL], bool],
) -> Built:
    """Return the library of a C file after a check, or the reason why torch must do its work. A library
    that miscalculates is not used, with a warning.

    what: the work, for the warning. declare: sets the types of the library's functions. is_right:
    whether it calculates as it should.
    """
    built = build(source)
    if built.library is None:
        return built
    declare(built.library)
    if not is_right(built.library):
        log.warning("%s by torch: the compiled code is wrong (%s)", what, built.reason)
        return Built(None, f"the compiled code is wrong ({built.reason})")
    return built


class ConditionChanged(Exception):
    """A call that is made again would go another way than the first time."""


class _Noted(threading.local):
    """add: notes the calls of this thread; None if nobody wants to know."""

    add: Callable[[Callable[[], object]], object] | None = None


_noted = _Noted()


@contextmanager
def noting_calls(add: Callable[[Callable[[], object]], object]) -> Iterator[None]:
    """Give `add` each call of this thread, to be made again. A call owns the tensors among its
    arguments; where it was given addresses, the caller keeps alive what they belong to."""
    before, _noted.add = _noted.add, add
    try:
        yield
    finally:
        _noted.add = before


def call(name: str, function: Callable[..., None], *arguments: Any) -> None:
    """Call a function of a library. torch's profiler sees it under this name.

    arguments: tensors are given as their addresses.
    """
    addresses = _addresses(arguments)
    _call(name, function, addresses)
    if _noted.add is not None:
        _noted.add(partial(_call, name, function, addresses, arguments))


def ask(name: str, function: Callable[..., int], *arguments: Any) -> int:
    """Call a function and return the number by which the caller goes on.

    A call that is made again raises ConditionChanged if it returns another one. arguments: as in
    `call`.
    """
    addresses = _addresses(arguments)
    answer = _call(name, function, addresses)
    if _noted.add is not None:
        _noted.add(partial(_ask_again, name, function, addresses, arguments, answer))
    return answer


def _addresses(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(each.data_ptr() if isinstance(each, torch.Tensor) else each for each in arguments)


def _ask_again(
    name: str,
    function: Callable[..., int],
    addresses: tuple[Any, ...],
    owners: tuple[Any, ...],
    answer: int,
) -> None:
    if _call(name, function, addresses) != answer:
        raise ConditionChanged(f"{name} returned another number")


def _call(
    name: str, function: Callable[..., Any], addresses: tuple[Any, ...], owners: object = None
) -> Any:
    """owners: what the addresses belong to, which then lives as long as the call may be made again."""
    if torch.autograd._profiler_enabled():
        with record_function(name):
            return function(*addresses)
    return function(*addresses)


def build(source: Path) -> Built:
    """Load the library of a C file, compiled unless the user's cache folder has it."""
    if os.name != "posix":
        return Built(None, "C is not compiled on this system")
    folder = cache_folder() / "native"
    path = folder / f"{source.stem}-{_fingerprint(source)}.so"
    try:
        if _is_private(folder) and path.exists() and _is_private(path):
            return Built(ctypes.CDLL(str(path)), f"from {path}")
    except OSError:
        pass  # an incomplete or foreign file: it is compiled again
    compiler = next((found for name in COMPILERS if (found := _find(name))), None)
    if compiler is None:
        return Built(None, f"no C compiler ({', '.join(COMPILERS)}) is installed")
    try:
        return _compile(compiler, source, path)
    except (OSError, subprocess.SubprocessError) as error:
        return Built(None, f"{compiler} failed: {_first_line(error)}")


def _compile(compiler: str, source: Path, path: Path) -> Built:
    """Compile to a private folder, load the result, and move it into the cache if possible."""
    with tempfile.TemporaryDirectory(prefix="eyas-native-") as scratch:
        fresh = Path(scratch) / path.name
        subprocess.run(
            [compiler, *FLAGS, "-o", str(fresh), str(source.resolve())],
            cwd=scratch,
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_SECONDS,
        )
        library = ctypes.CDLL(str(fresh))
        try:
            _store(fresh, path)
        except OSError:
            return Built(library, f"compiled by {compiler}, for this process alone")
    return Built(library, f"compiled by {compiler}")


def _store(fresh: Path, path: Path) -> None:
    """Put a file under its final name in one step. OSError: the folder cannot be used."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(path.parent):
        raise OSError(f"others may write to {path.parent}")
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(fresh.read_bytes())
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def _find(name: str) -> str | None:
    """Return the absolute path of a program; None for one that a relative entry of PATH leads to."""
    found = shutil.which(name)
    return found if found is not None and Path(found).is_absolute() else None


def _is_private(path: Path) -> bool:
    """Whether `path` is the user's own and nobody else may write to it."""
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _fingerprint(source: Path) -> str:
    digest = hashlib.sha256(source.read_bytes())
    for header in sorted(source.parent.glob("*.h")):
        digest.update(header.read_bytes())
    digest.update("\n".join((*FLAGS, platform.platform(), _processor())).encode())
    return digest.hexdigest()[:16]


def _processor() -> str:
    """Return what names the processor's instructions: a cache folder may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    names = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(names)}))


def _first_line(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, subprocess.CalledProcessError) and error.stderr:
        text = error.stderr.decode(errors="replace")
    return text.strip().partition("\n")[0][:200]
