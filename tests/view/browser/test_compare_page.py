"""The page of two runs in a browser: what comes first, and what a click opens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mergepoint import Block, Step, run_generation, with_overrides
from mergepoint.journal.file_journal import FileStore
from mergepoint.report.run_state import read_state
from mergepoint.testing import ScriptedModel
from mergepoint.view.page import write_html
from mergepoint.view.pages import compare_page

pytestmark = pytest.mark.browser

HOSTILE = (
    "</script><script>document.title = 'taken'</script><img src=x onerror=alert(1)> \u202eback"
)
STEPS = ("draft", "critic", "revise", "title")
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of two runs, of which the second has a hostile critic."""
    folder = tmp_path_factory.mktemp("runs")
    tree = Block([Step(f"Do the {name}.", name=name) for name in STEPS], name="work")
    other = with_overrides(tree, {"critic": {"prompt": f"Do the critic {HOSTILE}"}})
    for name, one, critic in (("first", tree, "good and short"), ("second", other, HOSTILE)):
        answers = ["a draft", critic, "the same", "a title"]
        run_generation(one, model=ScriptedModel(answers), runs=folder, run_id=name)
    states = [read_state(FileStore(folder), name) for name in ("first", "second")]
    file = folder / "compare.html"
    write_html(file, compare_page(states[0], states[1], version="0"))
    return file


@pytest.fixture
def open_page(chromium: Any, page_file: Path) -> Iterator[Open]:
    """Return a function that opens the page; nothing may stand in the console afterwards."""
    said: list[str] = []
    asked: list[str] = []

    def opened(width: int = 1280, *, scheme: str = "light", fragment: str = "") -> Any:
        context = chromium.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=False
        )
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{page_file.as_uri()}{fragment}")
        page.wait_for_selector("body[data-ready]")
        return page

    yield opened
    for context in chromium.contexts:
        context.close()
    assert said == []
    assert {url.partition("#")[0] for url in asked} <= {page_file.as_uri()}


def test_the_first_divergence_is_on_top_with_its_words(open_page: Open) -> None:
    """Without scrolling, the path and the words that differ are read; hostile text is text."""
    page = open_page()
    first = page.locator(".compare-first")
    assert "work/critic has another prompt." in first.inner_text()
    assert first.bounding_box()["y"] < 300
    assert "onerror=alert(1)" in first.inner_text()
    assert "\\u202e" in first.inner_text()
    assert page.title() == "first and second"
    assert page.locator(".compare-first ins").count() > 0


def test_paths_are_aligned_and_equal_ones_are_folded(open_page: Open) -> None:
    """What differs is listed in the order of the tree; what is the same is shown on demand."""
    page = open_page()
    names = page.locator("button.compare-row .compare-name")
    assert names.all_inner_texts() == ["critic", "revise", "title"]
    page.get_by_role("button", name="same").click()
    assert names.all_inner_texts() == list(STEPS)
    assert "because" not in page.locator(".compare-list").inner_text()


def test_a_click_opens_the_difference_and_both_x_rays(open_page: Open) -> None:
    """A path opens its texts side by side, then the X-ray of each run; the address follows."""
    page = open_page()
    page.locator("button.compare-row").nth(1).click()
    panel = page.locator(".compare-panel")
    assert "work/revise" in panel.inner_text()
    assert "because of work/critic" in " ".join(panel.inner_text().split())
    page.keyboard.press("2")
    assert panel.locator(".xray h2").inner_text() == "revise"
    assert "run=first" in page.url
    page.keyboard.press("3")
    assert "run=second" in page.url
    assert page.url.endswith("call=work/revise")
    page.keyboard.press("Escape")
    assert panel.is_hidden()


def test_the_keyboard_reaches_every_difference(open_page: Open) -> None:
    """F selects the first divergence, j and k the next and the previous path."""
    page = open_page()
    current = page.locator("button.compare-row[aria-current] .compare-name")
    for key, name in (("f", "critic"), ("j", "revise"), ("j", "title"), ("k", "revise")):
        page.keyboard.press(key)
        assert current.inner_text() == name


def test_an_address_opens_what_it_names(open_page: Open) -> None:
    """A link to a call of the second run shows its X-ray."""
    page = open_page(fragment="#run=second&tab=b&call=work/title")
    assert page.locator(".compare-panel .xray h2").inner_text() == "title"


def test_a_phone_shows_it_in_one_column(open_page: Open) -> None:
    """At 390 px nothing is wider than the screen, before and after a click."""
    page = open_page(390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("button.compare-row").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_serious(open_page: Open, scheme: str, width: int) -> None:
    """With a path open or not, no rule of axe-core with a serious impact is broken."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = open_page(width, scheme=scheme)
    for press in ("Escape", "f", "2"):
        page.keyboard.press(press)
        found = axe.run(page).response["violations"]
        assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
