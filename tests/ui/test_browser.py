"""The page in headless Chromium: what a person sees, reloads and clicks. docs/chainlit.md.

With MERGEPOINT_SHOTS=FOLDER each state is kept there as a picture.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("chainlit")
pytest.importorskip("playwright")

from playwright.sync_api import BrowserContext, Page, expect, sync_playwright
from tests.ui.conftest import Server, Starting
from tests.ui.serve import ANSWER, GREETING, MENDED

pytestmark = pytest.mark.browser

CHROMIUM = "/usr/bin/chromium"
WAIT = 60_000  # milliseconds after which what is waited for will not come
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[BrowserContext]:
    """Give a browser with a profile of its own, whose pages reach this machine alone."""
    if not Path(CHROMIUM).exists():
        said = f"there is no {CHROMIUM}: apt-get install chromium"
        pytest.fail(said) if os.environ.get("CI") == "true" else pytest.skip(said)
    expect.set_options(timeout=WAIT)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch_persistent_context(
            str(tmp_path / "profile"),
            executable_path=CHROMIUM,
            headless=True,
            args=list(FLAGS),
            viewport={"width": 1100, "height": 800},
        )
        found.set_default_timeout(WAIT)
        answered: list[str] = []
        found.on("response", lambda response: answered.append(response.url))
        try:
            yield found
        finally:
            found.close()
        outside = [url for url in answered if not url.startswith(("http://localhost:", "data:"))]
        assert outside == []


def opened(browser: BrowserContext, server: Server) -> Page:
    """Open the page."""
    page = browser.pages[0] if browser.pages else browser.new_page()
    page.goto(server.address)
    page.locator("#chat-input").wait_for()
    return page


def say(page: Page, text: str) -> None:
    """Type a message and send it."""
    page.locator("#chat-input").fill(text)
    page.locator("#chat-submit").click()  # it waits until the page is connected


def button(page: Page, name: str) -> Any:
    """Give a button by its label."""
    return page.get_by_role("button", name=name, exact=True)


def shot(page: Page, name: str) -> None:
    """Keep a picture where somebody wants to look at it."""
    folder = os.environ.get("MERGEPOINT_SHOTS")
    if folder:
        page.wait_for_timeout(700)
        page.screenshot(path=f"{folder}/{name}.png")


def test_a_plan_survives_a_reload_and_is_carried_out(
    browser: BrowserContext, server: Server
) -> None:
    """Sent, planned, reloaded, approved, run in nested steps, answered once, and found again."""
    page = opened(browser, server)
    shot(page, "start")
    say(page, "Please sum the sales")
    expect(page.get_by_text("Sum them by region.")).to_be_visible()
    expect(button(page, "Approve")).to_be_visible()
    shot(page, "plan")
    page.reload()
    expect(page.get_by_text("Sum them by region.")).to_be_visible()
    button(page, "Approve").click()
    expect(page.get_by_text("Run this program?")).to_be_visible()
    expect(button(page, "Approve")).to_have_count(1)
    shot(page, "program")
    button(page, "Approve").click()
    expect(page.get_by_text(ANSWER)).to_be_visible()
    expect(button(page, "Approve")).to_have_count(0)
    shot(page, "answer")
    page.reload()
    expect(page.get_by_text(ANSWER)).to_have_count(1)
    page.get_by_role("button", name="Codegen (attempt 1)").click()
    page.get_by_role("button", name="Execute (attempt 1)").click()
    expect(page.get_by_text("Exit code 0")).to_be_visible()
    shot(page, "steps")
    say(page, "Hi there")
    expect(page.get_by_text(GREETING)).to_be_visible()


def test_a_killed_server_asks_again(browser: BrowserContext, starting: Starting) -> None:
    """After kill -9 at the approval a page that is loaded again goes on to the one answer."""
    server = starting()
    page = opened(browser, server)
    say(page, "Let it fail")
    expect(button(page, "Approve")).to_be_visible()
    server.kill()
    server.start()  # the page finds it by itself
    button(page, "Approve").click()
    expect(page.get_by_text("Run this program?")).to_be_visible()
    server.kill()
    server.start()
    page.reload()
    button(page, "Approve").click()
    expect(page.get_by_text("print(7)")).to_be_visible()
    button(page, "Approve").click()
    expect(page.get_by_text(MENDED)).to_have_count(1)
    page.get_by_role("button", name="Codegen (attempt 1)").click()
    page.get_by_role("button", name="Execute (attempt 1)").click()
    expect(page.get_by_text("ValueError: not a number")).to_be_visible()
    shot(page, "mended")


def test_history_stop_and_cancel(browser: BrowserContext, server: Server) -> None:
    """A program is stopped, a plan changed and cancelled, and the list leads back to a thread."""
    page = opened(browser, server)
    say(page, "Run forever")
    button(page, "Approve").click()
    expect(page.get_by_text("Run this program?")).to_be_visible()
    button(page, "Approve").click()
    page.locator("#stop-button").wait_for()
    expect(page.get_by_text("Execute (attempt 1)")).to_be_visible()
    shot(page, "running")
    page.locator("#stop-button").click()
    expect(page.get_by_text("Cancelled.")).to_be_visible()
    shot(page, "stopped")
    say(page, "Please sum it, again")
    expect(button(page, "Approve")).to_be_visible()
    say(page, "only the north")
    expect(page.get_by_text("Mind: only the north")).to_be_visible()
    shot(page, "changed")
    button(page, "Cancel").click()
    expect(page.get_by_text("Cancelled.")).to_have_count(2)
    page.goto(server.address)
    page.get_by_role("link", name="Run forever").click()
    expect(page.get_by_text("Cancelled.")).to_have_count(2)
    expect(page.get_by_text("only the north", exact=True)).to_be_visible()
    shot(page, "history")
    above = page.get_by_text("only the north", exact=True).bounding_box()
    below = page.get_by_role("button", name="Plan (attempt 2)").bounding_box()
    assert above is not None
    assert below is not None
    assert above["y"] < below["y"]


def test_what_is_not_stored_is_seen(browser: BrowserContext, server: Server) -> None:
    """An error of the data layer is on the page, and so is a session that cannot be read."""
    page = opened(browser, server)
    say(page, "Hi there")
    expect(page.get_by_text(GREETING)).to_be_visible()
    page.wait_for_url("**/thread/*")
    thread = page.url.rpartition("/")[2]
    rows = Path(server.place) / thread / "chainlit.jsonl"
    rows.rename(rows.with_suffix(".away"))
    rows.mkdir()
    say(page, "More")
    expect(page.get_by_text("Not stored:").first).to_be_visible()
    shot(page, "not-stored")
    expect(page.get_by_text(GREETING)).to_be_attached()
    shutil.rmtree(rows)
    rows.with_suffix(".away").rename(rows)
