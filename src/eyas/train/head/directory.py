"""The output directory of a run, and the check that a run may continue in it.

Promises: a run never uses the answers or weights of a run with other settings; the error names the
setting or file that differs. Does not know: what the phases store there.
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


def claim_directory(config: HeadTraining, digests: Mapping[str, str]) -> bool:
    """Create the directory of a run, or check that this run may continue in it. Return whether it
    is done.

    digests: of the files of texts, by setting.
    ValueError: the directory holds other files, or a run with other settings or files.
    """
    config.output.mkdir(parents=True, exist_ok=True)
    path, report = config.output / RUN_FILE, config.output / REPORT_FILE
    data, training = config.data_settings(), config.training_settings()
    if path.exists():
        stored = json.loads(path.read_text())
        _check_settings(stored["data"], data, config.output, "answers")
        _check_files(stored.get("files", {}), digests, config)
        if (config.output / STATE_FILE).exists():
            _check_settings(stored["training"], training, config.output, "state")
        elif report.exists() and stored["training"] == training:
            return True
    elif any(config.output.iterdir()):
        raise ValueError(
            f"output: {config.output} holds other files; give an empty or a new directory"
        )
    report.unlink(missing_ok=True)
    record = {"data": data, "files": dict(digests), "training": training}
    path.write_text(json.dumps(record, indent=1) + "\n")
    return False


def _check_settings(
    stored: dict[str, Any], wanted: dict[str, Any], directory: Path, what: str
) -> None:
    remedy = "give the same settings to continue, or another directory"
    if what == "state":
        remedy += f", or delete {directory / STATE_FILE} to train again on the same answers"
    for name, value in wanted.items():
        if stored.get(name) != value:
            raise ValueError(
                f"output: {directory} holds the {what} of a run with {name} {stored.get(name)!r}, not "
                f"{value!r}; {remedy}"
            )


def _check_files(
    stored: Mapping[str, str], wanted: Mapping[str, str], config: HeadTraining
) -> None:
    for setting, digest in wanted.items():
        if stored.get(setting, digest) != digest:
            raise ValueError(
                f"{setting}: {getattr(config, setting)} has changed since {config.output} was created, "
                "whose answers belong to the old lines; give another --output, or the old file"
            )
