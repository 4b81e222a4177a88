"""A Unix socket at which a server listens, at a path in the file system.

Promises: only its user can connect. A socket that a killed server left behind is replaced; any other
file at the path is not touched. The socket is removed when the server ends. Does not know: HTTP.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
from types import TracebackType

from eyas.server.process.socket_folder import MAX_PATH_BYTES


class SocketFile:
    """A context manager that listens while it is entered. ValueError if it cannot.

    The lock of a file beside the socket, PATH.lock, distinguishes a socket in use from one left behind.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(os.path.expanduser(path))
        self._listener: socket.socket | None = None
        self._lock: int | None = None
        self._created: tuple[int, int] | None = None

    def __enter__(self) -> socket.socket:
        num_bytes = len(os.fsencode(self._path))
        if num_bytes > MAX_PATH_BYTES:
            raise ValueError(f"uds: {self._path} is too long for a socket; take a shorter path")
        try:
            self._acquire_lock()
            self._remove_stale_socket()
            self._listener = self._listen()
        except OSError as error:
            self._close()
            raise ValueError(f"uds: cannot listen at {self._path} ({error.strerror})") from error
        except ValueError:
            self._close()
            raise
        return self._listener

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _acquire_lock(self) -> None:
        path = f"{self._path}.lock"
        while self._lock is None:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(lock)
                raise ValueError(
                    f"uds: another server listens at {self._path}; end it, or take another path"
                ) from error
            if _is_file_at(lock, path):
                self._lock = lock
            else:  # its owner has just removed the file
                os.close(lock)

    def _remove_stale_socket(self) -> None:
        """Remove a socket at which nothing listens. ValueError if something else is at the path."""
        try:
            mode = os.lstat(self._path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise ValueError(f"uds: {self._path} exists and is not a socket; take another path")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(self._path)
            except ConnectionRefusedError:
                os.unlink(self._path)
                return
            except OSError as error:
                raise ValueError(
                    f"uds: {self._path} cannot be reached ({error.strerror}); remove it, or take "
                    "another path"
                ) from error
        raise ValueError(f"uds: something else listens at {self._path}; take another path")

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener = listener
        mask = os.umask(0o177)
        try:
            listener.bind(self._path)
        finally:
            os.umask(mask)
        status = os.lstat(self._path)
        self._created = (status.st_dev, status.st_ino)
        listener.listen(2048)
        return listener

    def _close(self) -> None:
        """Close the socket and remove its files, if they are still ours."""
        if self._listener is not None:
            self._listener.close()
        if self._created is not None:
            with contextlib.suppress(OSError):
                status = os.lstat(self._path)
                if (status.st_dev, status.st_ino) == self._created:
                    os.unlink(self._path)
        if self._lock is not None:
            with contextlib.suppress(OSError):
                os.unlink(f"{self._path}.lock")
            os.close(self._lock)
            self._lock = None


def _is_file_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
