"""The folder of the socket between the two processes.

Promises: only its user can access it; it is removed when the server ends. What a killed server left
behind is removed at the next start. No folder of a running server, of another user or with foreign
files is removed.
Does not know: what is sent.
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
"""Limit of a socket's address on all systems; Linux allows 107."""
MAX_TRIES = 10


class SocketFolder:
    """A new folder. It is in use while its lock is held, at most as long as this process runs."""

    def __init__(self) -> None:
        """Create the folder. ValueError if the directory for temporary files cannot be used."""
        try:
            base = tempfile.gettempdir()
            _remove_abandoned(base)
            self._path, lock = _create_folder(base)
        except OSError as error:
            raise ValueError(
                f"TMPDIR: no folder for the engine's socket can be made ({error.strerror}); set TMPDIR "
                "to a directory that can be written to"
            ) from error
        self._lock: int | None = lock

    @property
    def address(self) -> str:
        """The address of the socket, for ZeroMQ."""
        return f"ipc://{self._path}/{SOCKET}"

    @property
    def path(self) -> str:
        return self._path

    def remove(self) -> None:
        """Remove the folder and release its lock. Can be called several times."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                _remove_folder(self._path)
            os.close(self._lock)
            self._lock = None


def _create_folder(base: str) -> tuple[str, int]:
    """Create a folder. Return its path and the descriptor that holds its lock."""
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
            os.close(lock)  # another server is removing it as abandoned
            continue
        except OSError:
            pass  # no locks in this file system: no server will remove it as abandoned
        if os.path.exists(os.path.join(path, LOCK)):
            return path, lock
        os.close(lock)
    raise OSError(0, "other servers remove them at once")


def _remove_abandoned(base: str) -> None:
    """Remove the folders of servers that were killed."""
    with os.scandir(base) as entries:
        paths = [entry.path for entry in entries if entry.name.startswith(PREFIX)]
    for path in paths:
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | flags)
            opened.callback(os.close, folder)
            lock = os.open(LOCK, os.O_RDONLY | flags, dir_fd=folder)
            opened.callback(os.close, lock)
            statuses = os.fstat(folder), os.fstat(lock)
            is_ours = all(status.st_uid == os.geteuid() for status in statuses)
            if is_ours and stat.S_ISREG(statuses[1].st_mode):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its owner lives
                _remove_folder(path, folder)


def _remove_folder(path: str, folder: int | None = None) -> None:
    """Remove our files, and the folder if it is empty then."""
    for name in (SOCKET, LOCK):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name if folder is not None else os.path.join(path, name), dir_fd=folder)
    with contextlib.suppress(OSError):
        os.rmdir(path)
