"""`eyas` whose servers have forked engines: `python -m tests.server.forked_serve ENGINE serve ...`.

ENGINE is the engine's command line in JSON.
"""

from __future__ import annotations

import json
import sys
from functools import partial

from eyas.cli import main
from eyas.server.process import launch
from tests import forked


def forked_eyas() -> list[str]:
    """Return a command line like `eyas`, for servers whose processes are forked."""
    engine = forked.command("eyas.engine.worker")
    return [*forked.command("tests.server.forked_serve"), json.dumps(engine)]


if __name__ == "__main__":
    launch.serve = partial(launch.serve, command=json.loads(sys.argv.pop(1)))  # type: ignore[assignment]
    main()
