"""The page of one run in headless Chromium: keyboard, addresses, X-ray, hostile text, sizes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import Page, expect
from tests.view.browser.conftest import Opening
from tests.view.browser.pages import CRITICS, DRAFT, REVISED, large_page, page_of, poem_page

pytestmark = pytest.mark.browser

HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
    "</script><style>body { display: none }</style> \x1b[31mred \u202ecba\u202c "
    "[link](javascript:window.hacked=1) ![picture](http://evil.invalid/p.png)"
)


@pytest.fixture
def poem(tmp_path: Path) -> dict[str, Any]:
    """Return the page of a run that ended well."""
    return poem_page(tmp_path / "runs")


def title(page: Page) -> Any:
    """Return the heading of the X-ray."""
    return page.locator(".xray h2")


def first_lines(page: Page) -> str:
    """Return the text of the top."""
    said: str = page.locator(".top").inner_text()
    return said


def test_the_top_answers_the_first_questions(opening: Opening, poem: dict[str, Any]) -> None:
    """Status, verdict, result and what was paid are above the fold, without a click."""
    page = opening(poem).page
    said = first_lines(page)
    verdict = poem["runs"][0]["verdict"]
    for words in ("done", verdict, "Rain, once more", "paid now", "in calls", "6 calls"):
        assert words in said
    box = page.locator(".top").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 300


def test_a_failed_run_opens_at_its_failure(opening: Opening, tmp_path: Path) -> None:
    """The first failure is named at the top, its X-ray is open, and the outline shows its path."""
    page = opening(poem_page(tmp_path / "runs", says={"poem/verse/panel/ben": " "})).page
    failure = page.get_by_role("group", name="First failure")
    expect(failure).to_contain_text("verse/panel/ben")
    expect(title(page)).to_have_text("ben")
    expect(page.locator(".x-failure")).to_be_visible()
    expect(page.get_by_role("treeitem", name=re.compile("^ben, failed"))).to_be_visible()
    assert page.evaluate("scrollY") == 0
    page.keyboard.press("Escape")
    expect(page.locator(".xray")).to_be_hidden()
    page.keyboard.press("f")
    expect(title(page)).to_have_text("ben")


def test_the_keyboard_reaches_calls_makers_readers_and_tabs(
    opening: Opening, poem: dict[str, Any]
) -> None:
    """`j` and `k` go through the calls, `[` and `]` to maker and reader, digits to tabs."""
    page = opening(poem).page
    page.keyboard.press("j")
    expect(title(page)).to_have_text("draft")
    page.keyboard.press("j")
    expect(title(page)).to_have_text("ada")
    page.keyboard.press("[")
    expect(title(page)).to_have_text("draft")
    page.keyboard.press("j")
    page.keyboard.press("]")
    expect(title(page)).to_have_text("consensus")
    page.keyboard.press("k")
    expect(title(page)).to_have_text("cleo")
    page.keyboard.press("2")
    expect(page.get_by_role("tab", name="Timeline")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(page.locator(".xray")).to_be_hidden()


def test_the_outline_is_a_tree_for_the_keyboard(opening: Opening, poem: dict[str, Any]) -> None:
    """Arrows move, open and fold; Enter selects; equal siblings are one line until opened."""
    page = opening(poem).page
    tree = page.get_by_role("tree")
    tree.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    panel = page.get_by_role("treeitem", name=re.compile("^panel"))
    expect(panel).to_have_attribute("aria-expanded", "false")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    expect(page.get_by_role("treeitem", name=re.compile("^3 siblings: "))).to_be_visible()
    expect(page.locator(".outline-head [title*='with waits']")).to_have_text("time")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(title(page)).to_have_text("ada")
    expect(page.get_by_role("treeitem", name=re.compile("^ada, done"))).to_have_attribute(
        "aria-selected", "true"
    )


def test_search_finds_texts_and_paths(opening: Opening, poem: dict[str, Any]) -> None:
    """`/` goes to the search, which finds words of answers and parts of paths; Enter selects."""
    page = opening(poem).page
    page.keyboard.press("/")
    page.keyboard.type("ONCE MORE")
    found = page.get_by_role("option")
    expect(found).to_have_count(2)
    expect(found.first).to_contain_text("consensus")
    expect(found.first.locator("mark")).to_have_text("once more")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(title(page)).to_have_text("title")
    page.get_by_role("combobox").fill("poem/tit")
    expect(found).to_have_count(1)
    page.get_by_role("combobox").fill("no such words")
    expect(page.locator(".search-count")).to_have_text("No call contains this.")


def test_the_address_names_run_tab_and_call(opening: Opening, poem: dict[str, Any]) -> None:
    """An address opens its tab and call, selecting changes it, and "back" returns."""
    page = opening(poem, "#run=r1&tab=timeline&call=poem/verse/panel/ada").page
    expect(title(page)).to_have_text("ada")
    expect(page.get_by_role("tab", name="Timeline")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("j")
    expect(title(page)).to_have_text("ben")
    assert page.url.endswith("#run=r1&tab=timeline&call=poem/verse/panel/ben")
    page.go_back()
    expect(title(page)).to_have_text("ada")


def test_the_xray_shows_makers_merges_and_fate(opening: Opening, poem: dict[str, Any]) -> None:
    """Each message names its maker and merge; the answer's fate names merges, keys and readers."""
    page = opening(poem, "#call=poem/verse/panel/consensus").page
    cards = page.locator(".xray .cards > li")
    expect(cards).to_have_count(3)
    expect(cards.nth(0)).to_contain_text("prompt of verse/draft")
    expect(cards.nth(1)).to_contain_text("by verse/draft")
    expect(cards.nth(1)).to_contain_text("all messages")
    expect(cards.nth(1)).to_contain_text(DRAFT)
    expect(cards.nth(2)).to_contain_text("the prompt of this call")
    for critic in CRITICS:
        expect(page.locator(".reads")).to_contain_text(f"notes.{critic} by {critic}")
    fate = page.locator(".x-fate")
    expect(fate).to_contain_text("Kept to the end of the run")
    expect(fate).to_contain_text("captured as verse at verse, read by title")
    expect(fate).to_contain_text("seen as a message by title")
    page.locator(".reads").get_by_role("button", name="ada").click()
    expect(title(page)).to_have_text("ada")
    expect(fate).to_contain_text("Dropped at verse/panel/ada")
    expect(fate).to_contain_text("captured as notes.ada at verse/panel/ada, read by")
    expect(page.locator(".answer strong")).to_have_text("grey")
    page.get_by_role("button", name="raw").click()
    expect(page.locator(".answer")).to_contain_text("**grey** is worn")
    page.keyboard.press("[")
    expect(fate).to_contain_text("Reduced away at verse")
    page.evaluate("location.hash = '#call=poem/title'")
    expect(cards.nth(0)).to_contain_text("by verse/panel/consensus")
    expect(cards.nth(0)).to_contain_text("last response at verse")


def test_a_refused_answer_is_marked_where_it_did_not_parse(
    opening: Opening, poem: dict[str, Any]
) -> None:
    """The character at which parsing failed is marked, with its line and column."""
    call = next(one for one in poem["runs"][0]["calls"] if one["path"] == "poem/title")
    poem["texts"].append('{\n "title" "Rain"}')
    call |= {"refused": len(poem["texts"]) - 1, "position": 11, "answer": None, "status": "failed"}
    page = opening(poem, "#call=poem/title").page
    expect(page.locator(".parse-error")).to_contain_text('"')
    expect(page.locator(".x-refused-answer")).to_contain_text("line 2, column 10 (character 11)")


def test_copies_are_the_prompt_and_a_command_for_curl(
    opening: Opening, poem: dict[str, Any]
) -> None:
    """What is copied are the messages as sent, as text and as a command that a shell can read."""
    page = opening(poem, "#call=poem/verse/draft").page
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.get_by_role("button", name="copy prompt").click()
    page.wait_for_function("window.copied?.includes('[user]')")
    assert page.evaluate("copied") == "[system]\nBe brief.\n\n[user]\nWrite on rain.\n"
    page.get_by_role("button", name="copy as curl").click()
    page.wait_for_function("window.copied?.startsWith('curl')")
    command = page.evaluate("copied")
    assert "Bearer $OPENAI_API_KEY" in command
    body = json.loads(re.search(r"--data-raw '(.*)'", command, re.DOTALL).group(1))  # type: ignore[union-attr]
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Write on rain."},
    ]
    page.get_by_role("button", name="Copy the command that runs again from here").click()
    page.wait_for_function("window.copied?.startsWith('mergepoint run')")
    assert page.evaluate("copied").endswith("--set poem/verse/draft:prompt=...")


def test_the_story_compares_the_consensus_with_the_draft(
    opening: Opening, poem: dict[str, Any]
) -> None:
    """Critics stand side by side as dropped, and the consensus shows the words that changed."""
    page = opening(poem).page
    columns = page.locator(".columns .call")
    expect(columns).to_have_count(len(CRITICS))
    expect(page.locator(".row-fate")).to_contain_text("3 dropped as messages, read by consensus")
    card = page.locator(".call", has_text="against draft")
    assert "".join(card.locator(".call-text > :not(del)").all_text_contents()) == REVISED
    assert [one.strip() for one in card.locator("del").all_text_contents()] == [
        "grey",
        "nobody",
        "any",
    ]
    tops = {round(box["y"]) for one in columns.all() if (box := one.bounding_box())}
    assert len(tops) == 1
    columns.first.get_by_role("button", name="ada").click()
    expect(title(page)).to_have_text("ada")


def test_a_run_of_42_calls_is_told_on_three_screens(opening: Opening, tmp_path: Path) -> None:
    """The story of the image prompt, with the top of its page, is at most 2,400 pixels high."""
    from tests.apps.command import command

    out = str(tmp_path / "runs")
    command("run", "image_prompt", "-i", "brief=A fair", "--out", out, "--run-id", "r42", "-q")
    data = page_of(tmp_path / "runs", "r42")
    assert len(data["runs"][0]["calls"]) == 42
    page = opening(data).page
    expect(page.locator(".story .call")).to_have_count(42)
    assert page.evaluate("document.documentElement.scrollHeight") <= 2400


def test_hostile_text_is_shown_and_not_executed(opening: Opening, tmp_path: Path) -> None:
    """Tags, escapes and direction marks are visible text in every tab; nothing of them runs."""
    data = poem_page(
        tmp_path / "runs",
        topic=HOSTILE,
        says={"poem/verse/draft": HOSTILE, "poem/title": HOSTILE, "poem/verse/panel/ada": HOSTILE},
    )
    data["title"] = data["runs"][0]["graph"] = HOSTILE
    data["runs"][0]["notes"].append(HOSTILE)
    page = opening(data, "#call=poem/verse/draft").page
    for tab in ("1", "2", "3"):
        page.keyboard.press(tab)
        expect(page.locator(".xray")).to_contain_text("<script>window.hacked = 1</script>")
    page.keyboard.press("/")
    page.keyboard.type("hacked")
    expect(page.get_by_role("option").first).to_be_visible()
    said = page.locator("body").inner_text()
    assert "\\x1b[31mred" in said
    assert "\\u202ecba" in said
    assert not re.search("[\x1b\u202e]", said)
    assert page.evaluate("window.hacked") is None
    assert (
        page.locator("img, iframe, main style, main script, main a[href^=javascript]").count() == 0
    )
    assert page.evaluate("getComputedStyle(document.body).display") == "block"


def test_the_drawing_loses_scripts_and_selects(opening: Opening, poem: dict[str, Any]) -> None:
    """A script in the SVG is left out, each node has its status, and a click selects its call."""
    run = poem["runs"][0]
    hostile = '<script>window.hacked = 1</script><image href="http://evil.invalid/x"/><g onload="1"'
    run["drawing"] = run["drawing"].replace("<g", hostile, 1)
    page = opening(poem, "#tab=drawing").page
    expect(page.locator(".drawing svg")).to_be_visible()
    assert page.locator(".drawing script, .drawing image, .drawing [onload]").count() == 0
    draft = page.locator("[data-path='poem/verse/draft']")
    expect(draft).to_have_attribute("data-status", "done")
    draft.click()
    expect(title(page)).to_have_text("draft")
    assert page.evaluate("window.hacked") is None


def test_the_timeline_exports_chrome_trace_events(opening: Opening, poem: dict[str, Any]) -> None:
    """The exported file has one complete event per call, and none in a row overlap."""
    page = opening(poem, "#tab=timeline").page
    with page.expect_download() as download:
        page.get_by_role("button", name="export trace").click()
    events = json.loads(Path(download.value.path()).read_text())["traceEvents"]
    calls = [one for one in events if one.get("cat") == "call"]
    assert {one["args"]["path"] for one in calls} == {
        one["path"] for one in poem["runs"][0]["calls"]
    }
    rows: dict[int, int] = {}
    for one in sorted((e for e in events if e["ph"] == "X"), key=lambda event: event["ts"]):
        assert one["ts"] >= rows.get(one["tid"], 0) - 1  # microseconds are rounded
        rows[one["tid"]] = one["ts"] + one["dur"]


@pytest.mark.parametrize("tab", ["story", "timeline", "drawing"])
def test_a_phone_needs_no_sideways_scrolling(
    opening: Opening, poem: dict[str, Any], tab: str
) -> None:
    """At 390 pixels nothing is wider than the page; X-ray and outline cover it on demand."""
    page = opening(poem, f"#tab={tab}", width=390, height=844).page
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    expect(page.get_by_role("tree")).to_be_hidden()
    page.get_by_role("button", name="Outline").click()
    expect(page.get_by_role("tree")).to_be_visible()
    page.get_by_role("treeitem", name=re.compile("^title")).click()
    expect(title(page)).to_have_text("title")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.get_by_role("button", name="Close the X-ray").click()
    expect(page.locator(".xray")).to_be_hidden()


def test_dark_and_print_have_their_own_looks(opening: Opening, poem: dict[str, Any]) -> None:
    """The system's scheme decides the colors; print has whole texts and nothing to press."""
    ground = "getComputedStyle(document.body).backgroundColor"
    light = opening(poem).page
    dark = opening(poem, scheme="dark").page
    assert light.evaluate(ground) != dark.evaluate(ground)
    light.emulate_media(media="print")
    for part in (".search", ".side", ".tabs"):
        expect(light.locator(part)).to_be_hidden()
    clamp = "getComputedStyle(document.querySelector('.call-text')).webkitLineClamp"
    assert light.evaluate(clamp) == "none"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("tab", ["story", "timeline", "drawing"])
def test_nothing_is_out_of_reach(
    opening: Opening, poem: dict[str, Any], tab: str, scheme: str
) -> None:
    """axe-core finds nothing serious in any tab, with the X-ray open, in both schemes."""
    from axe_playwright_python.sync_playwright import Axe

    page = opening(poem, f"#tab={tab}&call=poem/verse/panel/ada", scheme=scheme).page
    found = Axe().run(page).response["violations"]
    assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []


def test_ten_thousand_calls_stay_small(opening: Opening) -> None:
    """A page of 10,000 calls has few elements and little heap, and every call can be reached."""
    shown = opening(large_page(1429))
    page = shown.page
    assert page.evaluate("document.querySelectorAll('*').length") < 3000
    page.keyboard.press("/")
    page.keyboard.type("harbour light 9999 ")
    expect(page.get_by_role("option")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator(".x-path")).to_have_text("section_01428/step_3")
    expect(page.locator(".story .is-selected")).to_be_visible()
    expect(page.locator(".o-row.is-selected")).to_be_visible()
    page.keyboard.press("2")
    expect(page.locator(".t-canvas")).to_be_visible()
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    assert page.evaluate("performance.memory.usedJSHeapSize") < 120_000_000
