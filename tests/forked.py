"""Processes that have torch and the package imported already, for tests that start whole servers.

`command(module)` is a command line like `python -m module`. What it starts is a small process (this
file as a script) that stands for another one, which is forked from a process that has imported
everything; it passes signals on, ends as that one ends, and takes it along when it is killed. That
processes start well by themselves is tested elsewhere, with the command lines of the package.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

FORWARDED = (signal.SIGTERM, signal.SIGINT)


def command(module: str) -> list[str]:
    """Return the command line that runs a module in a forked process."""
    return [sys.executable, "-S", "-E", __file__, _address(), module]


@cache
def _address() -> str:
    """Start this process's source of forks, and return its socket."""
    folder = tempfile.TemporaryDirectory(prefix="eyas-tests-")
    address = str(Path(folder.name) / "socket")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.forked", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    assert process.stdin is not None and process.stdout is not None

    def end() -> None:
        process.communicate()
        folder.cleanup()

    atexit.register(end)
    assert process.stdout.readline() == b"ready\n"
    return address


def _stand_for(address: str, arguments: list[str]) -> int:
    """Have a process forked, and return its exit status once it has ended."""
    asked = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
        link.connect(address)
        socket.send_fds(link, [json.dumps(asked).encode()], [0, 1, 2])
        child = int(link.recv(64))
        for number in FORWARDED:
            signal.signal(number, lambda number, frame: os.kill(child, number))
        return int(link.recv(64) or b"70")


def _serve(address: str) -> None:
    """Fork for whoever asks, until standard input is closed."""
    import gc
    import importlib

    for name in (
        *("eyas.engine.worker", "eyas.engine.startup.build", "eyas.engine.rank_main"),
        *("eyas.engine.disaggregation", "eyas.text", "eyas.cli"),
        *("eyas.server.process.launch", "tests.server.forked_serve"),
    ):
        importlib.import_module(name)
    from eyas.draft import costs

    costs.REPEATS, costs.ROWS = 1, costs.ROWS[::3]  # once, as in tests/conftest.py, and fewer
    gc.freeze()
    signal.signal(signal.SIGCHLD, _reap)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
                return
            link, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _keep(link)
            link.close()


def _reap(number: int, frame: object) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _keep(link: socket.socket) -> None:
    """Fork, tell the process's number, and its status when it has ended; kill it if nobody waits."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    told, descriptors, _, _ = socket.recv_fds(link, 2**20, 3)
    child = os.fork()
    if child == 0:
        link.close()
        _become(json.loads(told), descriptors)
    for descriptor in (*descriptors, 0, 1):
        os.close(descriptor)
    ended = os.pidfd_open(child)
    link.send(str(child).encode())
    if link in select.select([link, ended], [], [])[0]:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        link.send(str(status if status >= 0 else 128 - status).encode())
    finally:
        os._exit(0)


def _become(asked: dict[str, object], descriptors: list[int]) -> None:
    """Run the module as `python -m` does."""
    import random
    import runpy
    import traceback

    status = 1
    try:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(str(asked["folder"]))
        os.environ.clear()
        os.environ.update(asked["environment"])  # type: ignore[call-overload]
        random.seed()
        module, *arguments = asked["arguments"]  # type: ignore[misc]
        sys.argv[1:] = arguments
        sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        _serve(sys.argv[1])
    else:
        sys.exit(_stand_for(sys.argv[1], sys.argv[2:]))
