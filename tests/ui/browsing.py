"""Browsing: what tests do with a page in a browser, and what its console may say.

With MERGEPOINT_SHOTS=FOLDER each state that a test looks at is kept there as a picture.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import BrowserContext, ConsoleMessage, Page

CHROMIUM = "/usr/bin/chromium"
WAIT = 60_000  # milliseconds after which what is waited for will not come

CHAINLITS_OWN = (
    # Before it has the settings, which name text/plain, Chainlit takes a default for its field of
    # files, which is switched off. Chromium knows no such type.
    (r'warning: Skipped "application/\*" because it is not a valid MIME type\..*'),
    # A page that is left or loaded anew while its connection is being made drops it.
    (
        r"warning: WebSocket connection to 'ws://localhost:.*' failed: "
        r"WebSocket is closed before the connection is established\..*"
    ),
)
"""What Chainlit itself writes into the console, whatever the server says."""

AWAY = (
    # The page asks a server that was killed until it is there again.
    r"error: WebSocket connection to 'ws://localhost:.*' failed:.*",
    r"error: Failed to load resource: net::ERR_CONNECTION_(REFUSED|RESET).*",
    r"error: TypeError: Failed to fetch.*",
    r"error: Failed to set sticky session cookie: TypeError: Failed to fetch.*",
)
"""What a browser writes of a server that is not there."""


@dataclass
class Console:
    """What pages wrote into the console: warnings, errors, and exceptions that nobody caught."""

    lines: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=lambda: [*CHAINLITS_OWN])

    def hear(self, message: ConsoleMessage) -> None:
        """Note a message."""
        if message.type in ("warning", "error", "assert"):
            self.lines.append(f"{message.type}: {message.text}")

    def hear_error(self, error: object) -> None:
        """Note an exception that nobody caught."""
        self.lines.append(f"uncaught: {error}")

    def unexpected(self) -> list[str]:
        """Return what is no line that a test expects."""
        return [
            line
            for line in self.lines
            if not any(re.fullmatch(one, line, re.DOTALL) for one in self.expected)
        ]


def opened(browser: BrowserContext, address: str) -> Page:
    """Open the page."""
    page = browser.pages[0] if browser.pages else browser.new_page()
    page.goto(address)
    page.locator("#chat-input").wait_for()
    return page


def say(page: Page, text: str) -> None:
    """Type a message and send it."""
    page.locator("#chat-input").fill(text)
    page.locator("#chat-submit").click()  # it waits until the page is connected


def button(page: Page, name: str) -> Any:
    """Return a button by its label."""
    return page.get_by_role("button", name=name, exact=True)


def step(page: Page, name: str) -> Any:
    """Return the line that opens a step, by how its name begins."""
    return page.get_by_role("button", name=re.compile(rf"^\s*{re.escape(name)}"))


def shot(page: Page, name: str, *, whole: bool = False) -> None:
    """Keep a picture where somebody wants to look at it; the `whole` conversation, if wanted."""
    folder = os.environ.get("MERGEPOINT_SHOTS")
    if not folder:
        return
    page.mouse.move(0, 0)
    page.wait_for_timeout(700)
    size = page.viewport_size
    if whole and size is not None:
        tall = page.evaluate(
            "Math.max(...[...document.querySelectorAll('*')].map(one => one.scrollHeight))"
        )
        page.set_viewport_size({"width": size["width"], "height": min(3000, tall + 160)})
        page.wait_for_timeout(300)
    page.screenshot(path=f"{folder}/{name}.png")
    if whole and size is not None:
        page.set_viewport_size(size)
