"""Run tests/browser: the web page of `eyas serve`, clicked through in headless Chromium.

`python tools/run_browser.py` installs tests/browser/lock.txt into `.venv-browser`, starts a server of
the built-in model that wants a key, and runs the tests there. `--screenshots` also renews docs/images.
`--lock` first resolves the group `browser` of pyproject.toml anew.

Promises: nothing is downloaded but the locked packages; a machine without Chromium's driver is told so
and nothing is run. Does not know: what the tests do.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tomllib
from pathlib import Path

from run_clients import PYTEST, ROOT, Client, install, lock, run, server

TESTS = ROOT / "tests" / "browser"
IMAGES = ROOT / "docs" / "images"
KEY = "key of the tests"


class Browser(Client):
    """The environment of the browser's driver."""

    @property
    def environment(self) -> Path:
        return self.environments

    @property
    def lock(self) -> Path:
        return TESTS / "lock.txt"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lock", action="store_true", help="resolve the versions anew")
    parser.add_argument("--screenshots", action="store_true", help="renew docs/images")
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv-browser")
    options = parser.parse_args()
    if shutil.which("chromedriver") is None:
        print("browser: there is no chromedriver on the path; nothing was run")
        return 0
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    browser = Browser("browser", tuple(groups["browser"]), options.environment)
    (lock if options.lock else install)(browser)
    asked = [f"--screenshots={IMAGES}"] if options.screenshots else []
    try:
        with server("--api-key", KEY, "--draft-nodes", "16") as url:
            page = (f"--page-url={url}", f"--page-key={KEY}")
            print(run(browser.python, *PYTEST, str(TESTS), *page, *asked).strip())
    except RuntimeError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
