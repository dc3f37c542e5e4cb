"""Pages in a headless browser: opened from a file, as people open them, with nothing to ask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mergepoint.view.page import write_html

CHROMIUM = "/usr/bin/chromium"
SHOTS = "MERGEPOINT_SHOTS"  # names a folder for a picture of each state that a test looks at


@dataclass
class Opened:
    """A browser that opens pages of data; what they write into the console is an error."""

    browser: Any
    folder: Path
    said: list[str] = field(default_factory=list)

    @contextmanager
    def page(
        self, data: dict[str, Any], *, width: int = 1280, scheme: str = "light"
    ) -> Iterator[Any]:
        """Yield a page of data, from a file; it may write and ask for nothing."""
        with self.file(
            write_html(self.folder / "view.html", data), width=width, scheme=scheme
        ) as page:
            yield page

    @contextmanager
    def file(self, file: Path, *, width: int = 1280, scheme: str = "light") -> Iterator[Any]:
        """Yield the page of a file; it may write and ask for nothing."""
        context = self.browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme
        )
        asked: list[str] = []
        said: list[str] = []
        try:
            page = context.new_page()
            page.on("request", lambda request: asked.append(request.url))
            page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: said.append(f"uncaught: {error}"))
            page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
            page.goto(file.as_uri())
            page.wait_for_selector("body[data-ready]")
            yield page
            assert said == []
            assert asked == [file.as_uri()]
        finally:
            context.close()


def picture(page: Any, name: str) -> None:
    """Keep a picture of a state, if a folder is named for them."""
    if folder := os.environ.get(SHOTS):
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


@contextmanager
def a_browser(folder: Path) -> Iterator[Opened]:
    """Yield a headless Chromium; skip the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"there is no {CHROMIUM}: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield Opened(browser, folder)
        finally:
            browser.close()


def axe_problems(page: Any) -> list[str]:
    """Return what axe-core finds serious or critical on a page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    # The page's own policy refuses scripts that aren't its own, which axe is.
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:120]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
