"""The folder of the socket between the two processes.

Promises: it is its user's alone and goes when the server ends; what a server that was killed has left
is removed when the next one starts, and nothing else: no folder of a server that runs, of another user
or with anything in it that is not ours. Does not know: what is sent.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile

PREFIX = "eyas-"
SOCKET, LOCK = "engine", "owner.lock"
MAX_PATH_BYTES = 103
"""Of a socket's address; Linux would take 107."""
MAX_TRIES = 10


class SocketFolder:
    """A new folder; it is in use as long as its lock is held, which ends with this process."""

    def __init__(self) -> None:
        """ValueError where the directory for temporary files is of no use."""
        try:
            base = tempfile.gettempdir()
            _remove_abandoned(base)
            self._path, lock = _made(base)
        except OSError as error:
            raise ValueError(
                f"TMPDIR: no folder for the engine's socket can be made ({error.strerror}); set TMPDIR "
                "to a directory that can be written to"
            ) from error
        self._lock: int | None = lock

    @property
    def address(self) -> str:
        """Of the socket, for ZeroMQ."""
        return f"ipc://{self._path}/{SOCKET}"

    @property
    def path(self) -> str:
        return self._path

    def remove(self) -> None:
        """The folder and its lock. More than once is no error."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                _empty(self._path)
            os.close(self._lock)
            self._lock = None


def _made(base: str) -> tuple[str, int]:
    """A folder and the descriptor that holds its lock."""
    example = os.path.join(base, f"{PREFIX}12345678", SOCKET)
    if len(os.fsencode(example)) > MAX_PATH_BYTES:
        raise ValueError(
            f"TMPDIR: {base!r} is too long: a socket's address has at most {MAX_PATH_BYTES} bytes, and "
            f"this one would have {len(os.fsencode(example))}; set TMPDIR to a shorter directory, such "
            "as /tmp"
        )
    for _ in range(MAX_TRIES):
        path = tempfile.mkdtemp(prefix=PREFIX, dir=base)  # with mode 0700
        lock = os.open(os.path.join(path, LOCK), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)  # another server has taken it for abandoned just now
            continue
        except OSError:
            pass  # there are no locks here: nobody will take it for abandoned either
        if os.path.exists(os.path.join(path, LOCK)):
            return path, lock
        os.close(lock)
    raise OSError(0, "other servers remove them at once")


def _remove_abandoned(base: str) -> None:
    with os.scandir(base) as entries:
        paths = [entry.path for entry in entries if entry.name.startswith(PREFIX)]
    for path in paths:
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | flags)
            opened.callback(os.close, folder)
            lock = os.open(LOCK, os.O_RDONLY | flags, dir_fd=folder)
            opened.callback(os.close, lock)
            kinds = os.fstat(folder), os.fstat(lock)
            is_ours = all(kind.st_uid == os.geteuid() for kind in kinds)
            if is_ours and stat.S_ISREG(kinds[1].st_mode):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its owner lives
                _empty(path, folder)


def _empty(path: str, folder: int | None = None) -> None:
    """Remove what is ours, and the folder, unless there is more in it."""
    for name in (SOCKET, LOCK):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name if folder is not None else os.path.join(path, name), dir_fd=folder)
    with contextlib.suppress(OSError):
        os.rmdir(path)
