"""Headless Chromium and the page of a running server, as `make browser` provides them.

Nothing here may import eyas, which is not in the driver's environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.browser.page import Page

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # nothing but the server is reached
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--page-url", help="address of a running `eyas serve` that wants a key")
    parser.addoption("--page-key", help="its key")
    parser.addoption("--screenshots", type=Path, help="folder to write screenshots to")


@pytest.fixture(scope="session")
def locked_page(request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page as it is opened, before a key was entered."""
    url = request.config.getoption("--page-url", None)
    if url is None:
        pytest.skip("needs a server: `make browser` starts one")
    from selenium import webdriver

    from tests.browser.page import Page

    options = webdriver.ChromeOptions()
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options) as driver:
        page = Page(driver, str(url))
        page.open()
        yield page


@pytest.fixture
def page(locked_page: Page, request: pytest.FixtureRequest) -> Page:
    """The page with the key, in a new conversation."""
    locked_page.open()
    locked_page.unlock(request.config.getoption("--page-key"))
    return locked_page
