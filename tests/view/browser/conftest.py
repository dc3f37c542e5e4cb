"""Fixtures: a headless Chromium that opens pages from files, and the runs that they show."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = "/usr/bin/chromium"
WAIT = 60_000  # milliseconds after which what is waited for will not come


@dataclass
class Shown:
    """A page that is shown, with the addresses that it asked for and what its console said."""

    page: Page
    requests: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)


Opening = Callable[..., Shown]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Yield a browser that many tests use, each with a context of its own."""
    playwright_api = pytest.importorskip("playwright.sync_api")
    if not Path(CHROMIUM).exists():
        said = f"there is no {CHROMIUM}: apt-get install chromium"
        pytest.fail(said) if os.environ.get("CI") == "true" else pytest.skip(said)
    with playwright_api.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def opening(chromium: Browser, tmp_path: Path) -> Iterator[Opening]:
    """Yield a function that writes a page and opens it from its file.

    After the test each page has asked for nothing but its file, and its console is empty.
    """
    from mergepoint.view.page import write_html

    shown: list[Shown] = []

    def opened(
        data: Mapping[str, Any],
        fragment: str = "",
        *,
        width: int = 1280,
        height: int = 800,
        scheme: str = "light",
    ) -> Shown:
        file = write_html(tmp_path / f"page{len(shown)}.html", data)
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        context.set_default_timeout(WAIT)
        one = Shown(context.new_page())
        one.page.on("request", lambda request: one.requests.append(request.url))
        one.page.on("console", lambda message: one.console.append(message.text))
        one.page.on("pageerror", lambda error: one.console.append(str(error)))
        one.page.goto(file.as_uri() + fragment)
        one.page.locator("body[data-ready]").wait_for()
        shown.append(one)
        return one

    yield opened
    for one in shown:
        one.page.context.close()
        assert [url for url in one.requests if not url.startswith("blob:")] == one.requests[:1]
        assert one.requests[0].startswith("file:")
        assert one.console == []
