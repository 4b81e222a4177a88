"""The page as a user sees it: what can be clicked, typed and read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

SECONDS = 120
"""After which a test gives up; nothing is measured."""
WIDTH, HEIGHT = 1280, 800


class Page:
    """One browser with the page open."""

    def __init__(self, driver: Chrome, url: str) -> None:
        self.driver = driver
        self.url = url
        self.resize(WIDTH, HEIGHT)

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Ask for the light or the dark scheme, as a browser's setting does."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self) -> None:
        self.driver.get(self.url + "/")
        self.wait(lambda: self.one("#key-panel").is_displayed())

    def unlock(self, key: str) -> None:
        self.fill("#key", key + Keys.ENTER)
        self.wait(lambda: self.one("#exact").is_displayed())

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.one(selector).text

    def value(self, selector: str) -> str:
        return self.one(selector).get_property("value")

    def click(self, selector: str) -> None:
        self.one(selector).click()

    def fill(self, selector: str, text: str) -> None:
        field = self.one(selector)
        field.clear()
        field.send_keys(text)

    def example(self, name: str) -> None:
        """Use an example of the welcome screen, with a fixed seed, and send it."""
        self.click(f"[data-example={name}]")
        self.fill("#seed", "5")
        self.send()

    def send(self) -> None:
        """Send the message and wait until the answer has ended."""
        num_before = len(self.all(".turn.assistant"))
        self.click("#send")
        self.wait(lambda: len(self.all(".turn.assistant")) > num_before)
        self.wait(lambda: self.one("#send").is_enabled())

    def wait(self, condition: Callable[[], Any]) -> None:
        WebDriverWait(self.driver, SECONDS, 0.05).until(lambda _: condition())

    def complaints(self) -> list[str]:
        """What the browser's console has said since it was asked last, refused requests aside."""
        entries = self.driver.get_log("browser")
        return [e["message"] for e in entries if "Failed to load resource" not in e["message"]]
