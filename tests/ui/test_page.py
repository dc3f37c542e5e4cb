"""The page in headless Chromium: how each state looks, and what can be edited.

Its how-to guide: docs/how-to/agent/browser-ui.md.
"""

from __future__ import annotations

import csv
import json
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("chainlit")
pytest.importorskip("playwright")

from playwright.sync_api import BrowserContext, Page, expect
from tests.ui.browsing import Console, button, opened, say, shot, step
from tests.ui.conftest import Server, Starting
from tests.ui.serve import ANSWER, GREETING, MENDED

from mergepoint import open_session
from mergepoint.agent.skills import EXAMPLES
from mergepoint.apps.chainlit.security import login_line

pytestmark = pytest.mark.browser

COLOR = "one => getComputedStyle(one).color"


def thread_of(page: Page) -> str:
    """Return the id of the thread that a page shows."""
    page.wait_for_url("**/thread/*")
    address: str = page.url
    return address.rpartition("/")[2]


def is_red(color: str) -> bool:
    """Return whether a computed colour is red before all."""
    red, green, blue = map(int, re.findall(r"\d+", color)[:3])
    return red > 150 and red > 1.5 * max(green, blue)


def test_a_plan_and_a_program_are_edited(browser: BrowserContext, server: Server) -> None:
    """*Edit* opens a field with the text; what is saved there is the decision, and is run."""
    page = opened(browser, server.address)
    say(page, "Please sum the sales")
    button(page, "Edit").click()
    field = page.get_by_role("textbox", name="Edit the plan")
    expect(field).to_be_focused()
    expect(field).to_have_value(re.compile("^intent: Answer the request\naction: custom_script"))
    shot(page, "edit-plan")
    field.fill("intent: [")
    button(page, "Save and carry out").click()
    expect(page.get_by_role("alert")).to_contain_text("this is not YAML")
    shot(page, "edit-wrong")
    page.once("dialog", lambda dialog: dialog.dismiss())
    field.press("Escape")  # it asks before it throws away what was typed
    expect(field).to_have_value("intent: [")
    page.once("dialog", lambda dialog: dialog.accept())
    button(page.locator("dialog"), "Cancel").click()
    expect(field).to_have_count(0)

    button(page, "Edit").click()
    text = field.input_value()
    field.fill(text.replace("Sum them by region.", "Sum them by product."))
    field.press("Control+Enter")
    expect(page.get_by_text("Carry out this plan? ✓ Approved as edited")).to_be_visible()
    step(page, "Plan as edited").click()
    expect(page.get_by_text("Sum them by product.")).to_be_visible()

    button(page, "Edit").click()
    field = page.get_by_role("textbox", name="Edit the program")
    expect(field).to_have_value("print('north 20, south 12, west 10: 42')\n")
    field.fill("print('south 12')\n")
    shot(page, "edit-program")
    button(page, "Save and run").click()
    expect(page.get_by_text(ANSWER)).to_be_visible()
    step(page, "Codegen as edited").click()
    step(page, "Execute (attempt 1)").click()
    expect(page.get_by_text("south 12", exact=True)).to_be_visible()
    shot(page, "edited", whole=True)
    steps = open_session(thread_of(page), sessions=server.place).get_working_steps()
    edits = [(one.decides, one.content) for one in steps if one.decision == "edit"]
    assert edits[1] == ("codegen", "print('south 12')\n")
    assert json.loads(edits[0][1])["steps"] == ["Read the sales.", "Sum them by product."]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_failed_attempt_looks_failed(
    browser: BrowserContext, server: Server, scheme: Any
) -> None:
    """Its step is red, and says how and why; the next question says so too, with what changed."""
    page = browser.pages[0]
    page.emulate_media(color_scheme=scheme)
    page = opened(browser, server.address)
    say(page, "Let it fail")
    button(page, "Approve").click()
    expect(page.get_by_text("Run this program?")).to_be_visible()
    button(page, "Approve").click()
    failed = step(page, "Execute (attempt 1) · failed · ")
    expect(failed).to_be_visible()
    assert is_red(failed.evaluate(COLOR))
    expect(page.get_by_text("failed with exit code 1: ValueError: not a number")).to_be_visible()
    expect(page.locator(".hljs-addition")).to_have_text(["+print(7)"])
    assert is_red(page.locator(".hljs-deletion").first.evaluate(COLOR))
    failed.click()
    expect(page.get_by_text(re.compile(r"^Exit code 1 after .*s: ValueError"))).to_be_visible()
    shot(page, f"failed-{scheme}", whole=True)
    button(page, "Approve").click()
    expect(page.get_by_text(MENDED)).to_be_visible()
    fine = step(page, "Execute (attempt 2) · ok · ")
    assert not is_red(fine.evaluate(COLOR))
    shot(page, f"mended-{scheme}", whole=True)


def test_a_stopped_program_leaves_what_it_printed(browser: BrowserContext, server: Server) -> None:
    """A step says that it was stopped and by whom, with the output; later too."""
    page = opened(browser, server.address)
    say(page, "Run forever")
    button(page, "Approve").click()
    expect(page.get_by_text("Run this program?")).to_be_visible()
    button(page, "Approve").click()
    expect(page.get_by_text("begun", exact=True)).to_be_visible()
    shot(page, "running")
    page.locator("#stop-button").click()
    expect(step(page, "Execute (attempt 1) · stopped · ")).to_be_visible()
    page.wait_for_url("**/thread/*")
    page.reload()
    step(page, "Execute (attempt 1) · stopped · ").click()
    expect(page.get_by_text("begun", exact=True)).to_be_visible()
    expect(page.get_by_text(re.compile("^Stopped by you after .*s$"))).to_be_visible()
    assert not is_red(step(page, "Execute (attempt 1)").evaluate(COLOR))
    shot(page, "stopped")


def test_an_answer_says_what_it_cost(browser: BrowserContext, server: Server) -> None:
    """Calls, tokens, cost and seconds are below it, and open to a table of the calls."""
    page = opened(browser, server.address)
    say(page, "Hi there")
    expect(page.get_by_text(GREETING)).to_be_visible()
    cost = page.get_by_role(
        "button", name=re.compile(r"^2 calls · \d+ tokens · cost unknown · \d\.\d\ds$")
    )
    cost.click()
    expect(page.get_by_role("cell", name="agent/respond")).to_be_visible()
    expect(page.get_by_role("cell", name="scripted:scripted").first).to_be_visible()
    above, below = page.get_by_text(GREETING).bounding_box(), cost.bounding_box()
    assert above is not None
    assert below is not None
    assert above["y"] < below["y"]
    shot(page, "cost")


def test_the_list_says_how_threads_stand(browser: BrowserContext, starting: Starting) -> None:
    """Running, waiting and failed threads are marked, in a tab that looks at another one too."""
    server = starting()
    page = opened(browser, server.address)
    say(page, "Let it break")
    expect(button(page, "Try again")).to_be_visible()
    other = browser.new_page()
    other.goto(server.address)
    other.locator("#chat-input").wait_for()
    marked = "#thread-history li[data-mark='{}']"
    expect(other.locator(marked.format("failed"))).to_have_text("Let it break")
    page.goto(server.address)
    page.locator("#chat-input").wait_for()
    say(page, "Run forever")
    expect(button(page, "Approve")).to_be_visible()
    expect(page.locator(marked.format("waiting"))).to_have_text("Run forever")
    button(page, "Approve").click()
    expect(page.get_by_text("Run this program?")).to_be_visible()
    button(page, "Approve").click()
    expect(page.get_by_text("begun", exact=True)).to_be_visible()
    other.reload()
    expect(other.locator(marked.format("running"))).to_have_text("Run forever")
    say(other, "Please sum it")
    expect(other.locator(marked.format("waiting"))).to_have_text("Please sum it")
    shot(other, "marks")
    page.locator("#stop-button").click()
    expect(other.locator(marked.format("running"))).to_have_count(0)
    button(other, "Cancel").click()
    expect(other.locator(marked.format("waiting"))).to_have_count(0)
    expect(other.locator(marked.format("failed"))).to_have_count(1)


WATCH = """
() => {
  window.seen = new Set();
  const look = () => {
    const text = document.querySelector("[data-step-type='tool']")?.innerText;
    if (text) window.seen.add(text);
  };
  new MutationObserver(look).observe(document.body,
    { childList: true, subtree: true, characterData: true });
}
"""


def test_a_plan_is_no_json_while_it_streams(browser: BrowserContext, server: Server) -> None:
    """Whatever of a plan is there at a moment is shown as fields, from the first word on."""
    page = opened(browser, server.address)
    page.evaluate(WATCH)
    say(page, "Please sum the sales slowly")
    expect(page.get_by_text("Sum them by region.")).to_be_visible()
    expect(button(page, "Approve")).to_be_visible()
    seen: list[str] = page.evaluate("[...window.seen]")
    assert len(seen) > 3
    assert any("Action:" in text and "Sum them" not in text for text in seen)
    assert [text for text in seen if re.search(r'[{}"]|intent"|steps"', text)] == []


@pytest.fixture
def offline(tmp_path: Path) -> Iterator[str]:
    """Yield the address of the command's own page, with the model that it has by default."""
    command = [sys.executable, "-m", "mergepoint.apps.cli", "ui", "--headless", "--json"]
    place = ["--port", "0", "--sessions", str(tmp_path / "sessions")]
    process = subprocess.Popen(  # noqa: S603  (our own interpreter)
        [*command, *place], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["address"]
    finally:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def sales() -> list[str]:
    """Work out from the sample data what the regions sold, the best first."""
    sold: Counter[str] = Counter()
    with (EXAMPLES / "sales_report" / "sales.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            sold[row["region"]] += round(100 * int(row["units"]) * float(row["price"]))
    return [f"{region}: {cents / 100:.2f}" for region, cents in sold.most_common()]


def open_orders() -> list[str]:
    """Work out how many orders are open."""
    orders = json.loads((EXAMPLES / "order_report" / "orders.json").read_text())
    found = [order["total"] for order in orders if order["status"] == "open"]
    return [f"open: {len(found)} orders, {sum(found):.2f}"]


def stock() -> list[str]:
    """Work out what is in the warehouses."""
    with closing(sqlite3.connect(EXAMPLES / "stock_report" / "stock.db")) as database:
        units: Counter[str] = Counter()
        for warehouse, number in database.execute("select warehouse, units from stock"):
            units[warehouse] += number
    return [f"{warehouse}: {number} units" for warehouse, number in sorted(units.items())]


STARTERS = {
    "Sales by region": sales,
    "Open orders": open_orders,
    "Stock by warehouse": stock,
}


def test_the_starters_are_answered_rightly(browser: BrowserContext, offline: str) -> None:
    """Each example of the page is answered from the sample data, by the default model too."""
    page = opened(browser, offline)
    labels = page.locator("#starters button")
    expect(labels).to_have_text([*STARTERS])
    shot(page, "start")
    for number, (label, right) in enumerate(STARTERS.items()):
        page.goto(offline)
        button(page, label).click()
        button(page, "Approve").click()
        expect(page.get_by_text("Run this program?")).to_be_visible()
        button(page, "Approve").click()
        expect(page.locator(".positive-feedback-off")).to_be_visible()
        answer = page.locator("[data-step-type='assistant_message']").inner_text()
        said = [line.strip() for line in answer.splitlines() if ": " in line]
        for at, line in enumerate(right()):
            assert any(one.startswith(line) for one in said), (line, said)
            assert label != "Sales by region" or said[at].startswith(line)
        expect(
            page.get_by_role("button", name=re.compile(r"3 calls · .* · \$0 · "))
        ).to_be_visible()
        shot(page, f"starter-{number}")


def test_light_or_dark_follows_the_browser(browser: BrowserContext, server: Server) -> None:
    """A page is as the browser is, turns with it, and stays as somebody chose."""
    page = browser.pages[0]
    html = page.locator("html")
    schemes: list[Any] = ["dark", "light", "dark"]
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme)
        opened(browser, server.address)
        expect(html).to_have_class(scheme)
    page.emulate_media(color_scheme="light")  # the page is open
    expect(html).to_have_class("light")
    page.locator("#theme-toggle").click()
    page.get_by_role("menuitem", name="Dark").click()
    expect(html).to_have_class("dark")
    page.reload()
    expect(html).to_have_class("dark")
    page.emulate_media(color_scheme="dark")
    page.emulate_media(color_scheme="light")
    expect(html).to_have_class("dark")


@pytest.mark.parametrize("width", [390, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off(
    browser: BrowserContext, server: Server, width: int, scheme: Any
) -> None:
    """On a telephone and on a wide screen the page does not scroll sideways, nor its editor."""
    page = browser.pages[0]
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 844})
    page = opened(browser, server.address)
    say(page, "Please sum the sales, *all* as:of now")
    expect(page.get_by_text("Please sum the sales, *all* as:of now").last).to_be_visible()
    expect(button(page, "Approve")).to_be_visible()
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) <= 0
    for name in ("Approve", "Edit", "Ask for changes", "Cancel"):
        box = button(page, name).bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width
    shot(page, f"plan-{width}-{scheme}")
    button(page, "Edit").click()
    box = page.locator("dialog").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    shot(page, f"edit-{width}-{scheme}")


def test_a_login_asks_for_a_name(
    browser: BrowserContext, starting: Starting, tmp_path: Path, console: Console
) -> None:
    """With logins the page asks for a name and a password, and lets in who has them."""
    # Chainlit asks who it is before it shows the form: a browser writes down the refusal.
    console.expected += [
        r"error: Failed to load resource: the server responded with a status of 401 .*",
        r"error: \w+: Unauthorized\n.*",
    ]
    logins = tmp_path / "logins.txt"
    logins.write_text(login_line("ada", "lovelace"))
    server = starting("--login", str(logins))
    page = browser.pages[0]
    page.goto(server.address)
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill("lovelace")
    shot(page, "login")
    button(page, "Sign In").click()
    say(page, "Hi there")
    expect(page.get_by_text(GREETING)).to_be_visible()


def test_each_answer_links_to_its_xray(browser: BrowserContext, server: Server) -> None:
    """The link below an answer opens the session's page at the call that wrote the answer."""
    page = opened(browser, server.address)
    say(page, "Hi there")
    expect(page.get_by_text(GREETING)).to_be_visible()
    link = page.get_by_role("link", name="How this answer was made")
    expect(link).to_be_visible()
    shot(page, "xray-link")
    with browser.expect_page() as opening:
        link.click()
    xray = opening.value
    xray.locator("body[data-ready]").wait_for()
    assert xray.url.endswith("&call=agent/respond")
    expect(xray.locator("h1")).to_contain_text("Hi there")
    shot(xray, "xray")
    xray.close()
