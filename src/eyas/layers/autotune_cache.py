"""What was measured once, kept in a file of the user's cache for the next start.

Promises: a file speaks for one machine and one set of versions; one that is unreadable, damaged or
somebody else's is as good as none, and is replaced. It is replaced as a whole, so that nobody reads
half of it. A folder that cannot be written to is no error.
Does not know: what its entries mean.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where programs keep what they can make again, by the platform's convention."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if named and Path(named).is_absolute():
        folder = Path(named)
    elif sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Caches"
    else:
        folder = Path.home() / ".cache"
    return folder / "eyas"


class AutotuneCache:
    """Entries by name. machine: all that they depend on; each has a file of its own in `folder`."""

    def __init__(self, folder: Path, kind: str, machine: Mapping[str, str]) -> None:
        self._machine = dict(machine)
        text = json.dumps(self._machine, sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.path = folder / f"{kind}-{name}.json"

    def read(self) -> dict[str, Any]:
        """All entries; none where there is no file that can be trusted to be ours."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(content, dict) or content.get("machine") != self._machine:
            return {}
        entries = content.get("entries")
        return entries if isinstance(entries, dict) else {}

    def add(self, name: str, entry: Any) -> None:
        """Keep one more entry, beside those that others may have added meanwhile."""
        content = {"machine": self._machine, "entries": self.read() | {name: entry}}
        temporary = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.stem)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)
            os.replace(temporary, self.path)
        except OSError as error:
            log.debug("%s is not kept: %s", name, error)
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)
