"""What a user of the web page clicks and reads, in headless Chromium, with the built-in model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.browser.page import Page


@pytest.fixture(autouse=True)
def _no_complaints(locked_page: Page):
    """Nothing is refused by the security policy, and no script fails."""
    yield
    assert locked_page.complaints() == []


def contents(page: Page) -> list[str]:
    return [each.text for each in page.all(".turn:last-child .content")]


def test_a_wrong_key_is_refused_and_a_right_one_opens_the_page(
    locked_page: Page, request: pytest.FixtureRequest
) -> None:
    locked_page.open()
    locked_page.fill("#key", "wrong\n")
    locked_page.wait(lambda: "refuses" in locked_page.text("#problem"))
    assert not locked_page.one("#exact").is_displayed()
    locked_page.unlock(request.config.getoption("--page-key"))
    assert not locked_page.one("#key-panel").is_displayed()
    assert locked_page.value("#key") == ""
    assert locked_page.text("#model").startswith("builtin")


def test_an_answer_is_drafted_and_equals_the_plain_one(page: Page) -> None:
    page.example("story")
    drafted, plain = contents(page)
    assert drafted == plain != ""
    assert page.text(".badge.equal").startswith("✓ Equal: the same ")
    steps, plain_numbers = page.all("#steps button"), page.text(".card.plain .numbers")
    assert f"{len(steps)} steps" in page.text(".card.drafted .numbers")
    assert "1.00 tokens a step" in plain_numbers
    assert len(page.all("#steps button .accepted")) > len(steps)
    assert page.all("#tree .node.accepted") and page.all("#tree .node.chosen")
    assert page.text(".reasoning-text")


def test_steps_are_chosen_by_mouse_and_by_keys(page: Page) -> None:
    page.example("story")
    page.click("#steps button:nth-child(2)")
    assert page.text("#tree-summary").startswith("Step 2 of ")
    assert not page.one("#tree-live").is_selected()
    page.one("#steps button:nth-child(2)").send_keys("\ue014")  # right arrow
    assert page.text("#tree-summary").startswith("Step 3 of ")
    assert page.driver.switch_to.active_element.get_attribute("aria-pressed") == "true"
    page.click("#tree-details summary")
    page.wait(lambda: page.all("#tree-table tbody tr"))
    num_drawn, num_listed = len(page.all("#tree .node")), len(page.all("#tree-table tbody tr"))
    assert num_drawn - num_listed in (0, 1)  # the chosen token may have been drafted
    assert "last known token" in page.text("#tree-table tbody tr:first-child")


def test_a_regex_holds_and_refused_nodes_are_shown(page: Page) -> None:
    page.click("[data-example=regex]")
    page.fill("#regex", "(Rome|Amsterdam), of course")
    page.send()
    assert contents(page)[0] in ("Rome, of course", "Amsterdam, of course")
    assert page.all(".badge.equal")
    seen = set()
    for step in page.all("#steps button"):
        step.click()
        seen |= {node.get_attribute("class") for node in page.all("#tree .node")}
    assert seen >= {"node root", "node accepted", "node refused"}


def test_a_malformed_regex_is_explained_beside_its_editor(page: Page) -> None:
    page.click("[data-example=regex]")
    page.fill("#regex", "(Paris|Amsterdam}")
    page.send()
    assert "regex" in page.text("#regex-error")
    assert page.one("#regex").get_attribute("aria-invalid") == "true"
    page.fill("#regex", "(Paris|Amsterdam)")
    assert page.text("#regex-error") == ""
    page.fill("#prompt", "What is the capital of France?")
    page.send()
    assert contents(page)[0] in ("Paris", "Amsterdam")


def test_a_schema_holds_and_a_broken_one_is_not_sent(page: Page) -> None:
    page.example("person")
    answer = json.loads(contents(page)[0])
    assert set(answer) == {"name", "age"} and isinstance(answer["age"], int)
    page.fill("#schema", "{")
    page.fill("#prompt", "Again.")
    page.click("#send")
    assert "not valid JSON" in page.text("#schema-error")
    assert page.value("#prompt") == "Again."
    page.fill("#schema", '{"type":"object"}')
    page.click("#schema-format")
    assert page.value("#schema") == '{\n  "type": "object"\n}'


def test_a_tool_is_called_and_its_result_sent_back(page: Page) -> None:
    page.example("weather")
    assert page.text(".call b") == "get_weather"
    assert json.loads(page.text(".call code")) == {"city": "Oslo"}
    page.fill(".tool-results input", '{"sky": "clear"}')
    page.click(".tool-results button")
    page.wait(lambda: len(page.all(".turn.assistant")) == 2)
    page.wait(lambda: page.one("#send").is_enabled())
    assert page.text(".turn.result") == '{"sky": "clear"}'
    assert contents(page)[0] != ""


def test_markup_is_shown_as_text(page: Page) -> None:
    markup = "<img src=x onerror=alert(1)><b>bold</b>"
    page.click("[data-example=regex]")
    page.fill("#regex", "<b>bold</b><script>1</script>")
    page.fill("#prompt", markup)
    page.send()
    assert page.text(".turn.user") == markup
    assert contents(page)[0] == "<b>bold</b><script>1</script>"
    assert not page.all("#log img, .content b, #log script, #trees b")


def test_without_the_plain_answer_there_is_one_card(page: Page) -> None:
    page.click("#compare")
    page.example("regex")
    assert len(page.all(".card")) == 1 and not page.text(".badge")
    page.click("#new")
    assert not page.all(".card") and page.one("#welcome").is_displayed()
    assert not page.all("#tree svg") and not page.all("#steps button")


def test_it_can_be_used_by_keys_alone(page: Page) -> None:
    focused = page.driver.switch_to.active_element
    assert focused.get_attribute("id") == "prompt"
    focused.send_keys("What is the capital of France?\n")
    page.wait(lambda: page.all(".badge.equal"))
    assert contents(page)[0] != ""


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_width_needs_sideways_scrolling(page: Page, width: int) -> None:
    page.resize(width, 800)
    try:
        page.example("regex")
        root = "document.documentElement"
        assert page.driver.execute_script(f"return {root}.scrollWidth <= {root}.clientWidth")
    finally:
        page.resize(1280, 800)


def test_screenshots(page: Page, request: pytest.FixtureRequest) -> None:
    """Both schemes differ; the pictures of the documentation are taken from them."""
    folder: Path | None = request.config.getoption("--screenshots")
    pictures = {}
    for scheme, example in (("light", "story"), ("dark", "regex")):
        page.prefer(scheme)
        page.click("#new")
        page.example(example)
        if example == "regex":
            for step in page.all("#steps button"):
                step.click()
                if page.all("#tree .node.refused"):
                    break
        pictures[scheme] = page.driver.get_screenshot_as_png()
        body = page.one("body").value_of_css_property("background-color")
        assert ("246" in body) == (scheme == "light")
        if folder is not None:
            folder.mkdir(exist_ok=True)
            (folder / f"playground-{scheme}.png").write_bytes(pictures[scheme])
    page.prefer("")
