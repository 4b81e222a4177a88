"""`eyas`, and `python -m eyas`.

Promises: from here on nothing is imported from the working directory, which `-m` puts first. Before
this line Python itself has looked there for `eyas` and for what `runpy` imports; `eyas` and
`python -P -m eyas` never do. Ctrl-C in the middle of an import ends the process.
"""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

INTERRUPTED = 130
"""The exit status of a process that SIGINT has ended, for a shell."""


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it is gone, and Python has left it out
        return None


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but end the process in an import: some packages swallow it there, and
    fail later with another error, since half of a module is missing."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            with suppress(OSError):
                os.write(2, b"\nAborted.\n")
            os._exit(INTERRUPTED)
        frame = frame.f_back
    signal.default_int_handler(number, frame)


def main() -> None:
    """Run the command that the arguments name, and exit with its status."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it is not ignored
        signal.signal(signal.SIGINT, _interrupt)
    from eyas.cli import main

    main()


if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[:1] == [_working_directory()]:
        del sys.path[0]
    main()
