"""How child processes that run Python are started.

Promises: a child runs nothing of the working directory, which may be a checkpoint's folder: it is no
place that modules are imported from. What the user named, in PYTHONPATH for one, stays one; so eyas
itself must be installed or named there. Does not know: what children do.
"""

from __future__ import annotations

import os
import sys


def python_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module as `python -m` does, with the same interpreter."""
    flags = ["-P"]  # else `-m` puts the working directory before the standard library
    if sys.flags.isolated:
        flags.append("-I")
    else:
        flags += ["-E"] if sys.flags.ignore_environment else []
        flags += ["-s"] if sys.flags.no_user_site else []
    return [sys.executable, *flags, "-m", module, *arguments]


def guard_children() -> None:
    """The same for children that libraries start (of `multiprocessing`, of compilers), from now on."""
    os.environ["PYTHONSAFEPATH"] = "1"
