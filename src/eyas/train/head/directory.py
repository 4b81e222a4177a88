"""The directory of a run: whose it is, and what may go on in it.

Promises: a run is never mixed with another one's answers or weights; the refusal says which setting or
file differs. Does not know: what the phases leave there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eyas.train.head.config import HeadTraining
from eyas.train.head.loop import STATE_FILE

RUN_FILE = "run.json"
REPORT_FILE = "report.json"


def claim(config: HeadTraining, digests: Mapping[str, str]) -> bool:
    """Make the directory this run's own, or refuse another run's; whether the run is done.

    digests: of the files that the texts come from, by setting.
    """
    config.output.mkdir(parents=True, exist_ok=True)
    path, report = config.output / RUN_FILE, config.output / REPORT_FILE
    data, training = config.data_settings(), config.training_settings()
    if path.exists():
        found = json.loads(path.read_text())
        _same(found["data"], data, config.output, "answers")
        _same_files(found.get("files", {}), digests, config)
        if (config.output / STATE_FILE).exists():
            _same(found["training"], training, config.output, "state")
        elif report.exists() and found["training"] == training:
            return True
    elif any(config.output.iterdir()):
        raise ValueError(
            f"output: {config.output} holds other files; give an empty or a new directory"
        )
    report.unlink(missing_ok=True)
    record = {"data": data, "files": dict(digests), "training": training}
    path.write_text(json.dumps(record, indent=1) + "\n")
    return False


def _same(found: dict[str, Any], wanted: dict[str, Any], directory: Path, what: str) -> None:
    remedy = "give the same settings to go on, or another directory"
    if what == "state":
        remedy += f", or delete {directory / STATE_FILE} to train anew on the same answers"
    for name, value in wanted.items():
        if found.get(name) != value:
            raise ValueError(
                f"output: {directory} holds the {what} of a run with {name} {found.get(name)!r}, not "
                f"{value!r}; {remedy}"
            )


def _same_files(found: Mapping[str, str], wanted: Mapping[str, str], config: HeadTraining) -> None:
    for setting, digest in wanted.items():
        if found.get(setting, digest) != digest:
            raise ValueError(
                f"{setting}: {getattr(config, setting)} has changed since {config.output} was begun, "
                "whose answers belong to the old lines; give another --output, or the file as it was"
            )
