"""`python -m eyas` is `eyas`.

Promises: from here on nothing is imported from the working directory, which `-m` puts first. Before
this line Python itself has looked there for `eyas` and for what `runpy` imports; `eyas` and
`python -P -m eyas` never do.
"""

import os
import sys


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it is gone, and Python has left it out
        return None


if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[:1] == [_working_directory()]:
        del sys.path[0]
    from eyas.cli import main

    main()
