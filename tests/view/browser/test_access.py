"""Every screen for people who use a keyboard, a screen reader, or a dark room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.view.browser.opening import Opened, axe_problems
from tests.view.browser.stored_runs import CHANGED_PROMPT, StoredRuns

pytestmark = pytest.mark.browser

SCREENS = {
    "run": ("picture",),
    "failed": ("failed",),
    "things": ("things",),
    "session": ("--session", "trip"),
    "compare": ("picture", "changed"),
    "list": (),
    "explain": ("explain",),
}
# The elements that a press of Tab must reach. A group of radio buttons, tabs, or tree items is one
# stop, in which arrows move on: their other members have tabindex -1.
CONTROLS = """() => [...document.querySelectorAll(
    "a[href], button, input, select, textarea, summary, [tabindex]")].filter((one) =>
      one.tabIndex >= 0 && !one.disabled && one.checkVisibility({visibilityProperty: true}))"""

# Notes the element that has the focus; returns it if nothing marks it, and null after the last one.
REACH = """async () => {
    // Rows of long lists are drawn in the next frame, and people press more slowly than that.
    await new Promise(requestAnimationFrame);
    await new Promise(requestAnimationFrame);
    window.named = (one) => one.outerHTML.slice(0, 300);
    const one = document.activeElement;
    if (one === document.body) return null;
    reached.add(named(one));
    const style = getComputedStyle(one);
    const marked = style.outlineStyle !== "none" || style.boxShadow !== "none";
    return marked ? [] : [named(one)];
}"""


@pytest.fixture(scope="module")
def opened(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Return the browser, with a folder for the pages of the module."""
    return Opened(chromium, tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a page of each screen."""
    stored = StoredRuns(tmp_path_factory.mktemp("stored"))
    stored.make_picture()
    stored.make_picture("changed", "--set", CHANGED_PROMPT, "--reuse", "picture")
    stored.make_failed()
    stored.make_things()
    stored.make_session()
    return {
        name: stored.plan() if name == "explain" else stored.page(*given)
        for name, given in SCREENS.items()
    }


def states(page: Any, name: str) -> Iterator[str]:
    """Bring a page into each of its states, and yield their names."""
    yield name
    if name in ("run", "things"):
        for number in range(page.locator("[role=tab]").count()):
            page.keyboard.press(str(number + 1))
            yield f"{name}, {page.locator('[role=tab][aria-selected=true]').inner_text()}"
        page.keyboard.press("j")
        yield f"{name}, X-ray"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", SCREENS)
def test_axe_finds_nothing_serious(
    opened: Opened, pages: dict[str, Path], name: str, scheme: str
) -> None:
    """axe-core finds no serious and no critical problem in any state of a screen."""
    with opened.file(pages[name], scheme=scheme) as page:
        found = {state: axe_problems(page) for state in states(page, name)}
    assert {state: problems for state, problems in found.items() if problems} == {}


@pytest.mark.parametrize("name", SCREENS)
def test_tab_reaches_every_control(opened: Opened, pages: dict[str, Path], name: str) -> None:
    """A person who presses Tab gets to every control, in the order of the page, and sees where."""
    with opened.file(pages[name]) as page:
        if name == "run":
            page.keyboard.press("j")
        page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        page.evaluate("window.reached = new Set()")
        unseen: list[str] = []
        # A list of 200 rows draws those in sight, and more as Tab gets to them.
        for _ in range(800):
            page.keyboard.press("Tab")
            said = page.evaluate(REACH)
            if said is None:
                break
            unseen += said
        missed = page.evaluate(f"({CONTROLS})().map(named).filter((one) => !reached.has(one))")
    assert missed == []
    assert unseen == []


def test_no_screen_is_wider_than_a_phone(opened: Opened, pages: dict[str, Path]) -> None:
    """At 390 pixels nothing is cut off: no page scrolls sideways."""
    wide = {}
    for name, file in pages.items():
        with opened.file(file, width=390) as page:
            for state in states(page, name):
                width = page.evaluate("document.documentElement.scrollWidth")
                if width > 390:
                    wide[state] = width
    assert wide == {}


def test_a_failed_run_begins_with_its_verdict_on_a_phone(
    opened: Opened, pages: dict[str, Path]
) -> None:
    """At 390 pixels the X-ray covers the page, so it opens when a person asks for it."""
    with opened.file(pages["failed"], width=390) as page:
        assert not page.locator(".xray").is_visible()
        assert page.locator(".failure-box").first.is_visible()
        page.keyboard.press("f")
        assert page.locator(".xray h2").inner_text() == "rate"
