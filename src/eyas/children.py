"""Child processes that run Python: their command lines, and their garbage collection.

Promises: a child imports no module from the working directory, which may be a checkpoint's folder.
PYTHONPATH and other settings of the user stay in effect, so eyas must be installed or named there.
Does not know: what children do.
"""

from __future__ import annotations

import gc
import os
import sys


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module like `python -m`, with the same interpreter."""
    flags = ["-P"]  # without it `-m` puts the working directory before the standard library
    if sys.flags.isolated:
        flags.append("-I")
    else:
        flags += ["-E"] if sys.flags.ignore_environment else []
        flags += ["-s"] if sys.flags.no_user_site else []
    return [sys.executable, *flags, "-m", module, *arguments]


def guard_children() -> None:
    """Apply the same rule to children that libraries start (`multiprocessing`, compilers) from now
    on."""
    os.environ["PYTHONSAFEPATH"] = "1"


def freeze_loaded() -> None:
    """Leave out what this process has loaded, which stays, of garbage collections from now on. A full
    collection would take 150 ms each time, in the middle of a step."""
    gc.collect()
    gc.freeze()
