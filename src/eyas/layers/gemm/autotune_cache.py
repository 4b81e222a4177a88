"""Store measurements in a file of the user's cache for later starts.

Promises: a file belongs to one machine and one set of versions. A file that is unreadable, damaged
or of another machine is ignored and replaced. Files are replaced atomically, so no reader sees half
of one. A folder that cannot be written to is no error.
Does not know: what its entries mean.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class AutotuneCache:
    """A file of entries by name.

    machine: everything that the entries depend on; each value has a file of its own in `folder`.
    """

    def __init__(self, folder: Path, kind: str, machine: Mapping[str, str]) -> None:
        self._machine = dict(machine)
        text = json.dumps(self._machine, sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.path = folder / f"{kind}-{name}.json"

    def read(self) -> dict[str, Any]:
        """Return all entries; none if there is no valid file of this machine."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(content, dict) or content.get("machine") != self._machine:
            return {}
        entries = content.get("entries")
        return entries if isinstance(entries, dict) else {}

    def add(self, name: str, entry: Any) -> None:
        """Add an entry to those in the file, which other processes may have changed."""
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
