"""The page in headless Chromium: what a person sees, reloads and clicks.

Its how-to guide: docs/how-to/agent/browser-ui.md.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("chainlit")
pytest.importorskip("playwright")

from playwright.sync_api import BrowserContext, Locator, expect
from tests.ui.browsing import AWAY, Console, button, opened, say, shot
from tests.ui.conftest import Server, Starting
from tests.ui.serve import ANSWER, GREETING, MENDED

pytestmark = pytest.mark.browser

COLOUR = "one => getComputedStyle(one).backgroundColor"


def test_a_plan_survives_a_reload_and_is_carried_out(
    browser: BrowserContext, server: Server
) -> None:
    """Sent, planned, reloaded, approved, run in nested steps, answered once, and found again."""
    page = opened(browser, server.address)
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


def colour(shown: Locator) -> str:
    """Return a button's colour.

    The page makes buttons anew when a turn begins to wait: one that has just left has no colour.
    """
    return next(filter(None, (str(shown.evaluate(COLOUR)) for _ in range(1_000))))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_question_says_which_button_is_meant(
    browser: BrowserContext, server: Server, scheme: Any
) -> None:
    """Approve stands out, asking for changes leads to the composer, thumbs judge no question."""
    page = browser.pages[0]
    page.emulate_media(color_scheme=scheme)
    page = opened(browser, server.address)
    expect(page.locator("html")).to_have_class(scheme)
    say(page, "Let it fail")
    expect(button(page, "Approve")).to_be_visible()
    primary = colour(button(page, "Approve"))
    expect(page.locator("#chat-submit")).to_have_css("background-color", primary)
    assert colour(button(page, "Cancel")) != primary
    expect(page.locator(".positive-feedback-off")).to_have_count(0)
    button(page, "Ask for changes").click()
    expect(page.locator("#chat-input")).to_be_focused()
    button(page, "Approve").click()
    expect(page.get_by_text("Run this program?")).to_be_visible()
    button(page, "Approve").click()
    expect(page.get_by_text("failed with exit code 1")).to_be_visible()
    expect(page.get_by_text("+print(7)")).to_be_visible()
    shot(page, f"why-again-{scheme}")


def test_a_killed_server_asks_again(
    browser: BrowserContext, starting: Starting, console: Console
) -> None:
    """After kill -9 at the approval a page that is loaded again goes on to the one answer."""
    console.expected += AWAY
    server = starting()
    page = opened(browser, server.address)
    say(page, "Let it fail")
    expect(button(page, "Approve")).to_be_visible()
    # Chainlit has left the page of a new chat by then; in its midst it leads back to it.
    expect(page.locator("#thread-history li")).to_have_count(1)
    page.wait_for_url("**/thread/*")
    server.kill()
    server.start()  # the page finds it by itself
    button(page, "Approve").click()
    expect(page.get_by_text("Run this program?")).to_be_visible()
    server.kill()
    server.start()
    page.reload()
    button(page, "Approve").click()
    expect(page.get_by_text("print(7)", exact=True)).to_be_visible()
    button(page, "Approve").click()
    expect(page.get_by_text(MENDED)).to_have_count(1)
    page.get_by_role("button", name="Execute (attempt 1)").click()
    expect(page.get_by_text("ValueError: not a number").first).to_be_visible()
    shot(page, "mended")


def test_history_stop_and_cancel(browser: BrowserContext, server: Server) -> None:
    """A program is stopped, a plan changed and cancelled, and the list leads back to a thread."""
    page = opened(browser, server.address)
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
    page = opened(browser, server.address)
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
