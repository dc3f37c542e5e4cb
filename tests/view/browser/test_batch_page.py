"""The page of a batch in a browser: what a person who ran many inputs finds there."""

from __future__ import annotations

import json
import random
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.apps.command import command
from tests.view.browser.opening import Opened, axe_problems, picture
from tests.view.browser.test_access import CONTROLS, REACH
from tests.view.browser.test_live import opened, sideways
from tests.view.view_process import WAIT, started, viewing

pytestmark = pytest.mark.browser

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x1b[31m"

TREE = '''\
"""A tree that refuses some numbers, and waits for a file before those over 20."""

import asyncio
from pathlib import Path

from mergepoint import Block, Call, Input, Step, Template


async def check(ctx):
    number = int(ctx.inputs["number"])
    while number > 20 and not Path("go").exists():
        await asyncio.sleep(0.02)
    if ctx.inputs["word"] != "hello":
        raise LookupError(ctx.inputs["word"])
    if number % 10 == 0:
        raise ValueError("no tens")
    if number % 7 == 0:
        raise TimeoutError(f"{number} took too long")
    return "fine"


tree = Block(
    [Call(check, name="check"), Step(Template("Say {{ word }}, {{ number }}."), name="say")],
    name="counting",
    inputs=(Input("number", type=int), Input("word", type=str, default="hello")),
)
'''

SHOWN = ".batch-list .batch-row"


@pytest.fixture(scope="module")
def chromium(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Return the browser, with a folder for the pages of the module."""
    return Opened(chromium, tmp_path_factory.mktemp("pages"))


def prepared(folder: Path, numbers: range) -> None:
    """Write the tree and its inputs."""
    (folder / "counting.py").write_text(TREE, encoding="utf-8")
    lines = [{"id": f"n{number}", "number": number} for number in numbers]
    lines[1] = {**lines[1], "id": "<b>&'\"", "word": HOSTILE}
    (folder / "in.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a batch of 60 inputs, run by the command: of which 15 fail."""
    folder = tmp_path_factory.mktemp("batch")
    prepared(folder, range(1, 61))
    (folder / "go").touch()
    # Processes of their own: in this one, Playwright has the event loop.
    run = started("batch", "counting.py:tree", "in.jsonl", "--quiet", cwd=folder)
    _, said = run.communicate(timeout=WAIT)
    assert run.returncode == 1, said
    seen = started("view", "results.jsonl", "-o", "batch.html", "--no-open", cwd=folder)
    _, said = seen.communicate(timeout=WAIT)
    assert seen.returncode == 0, said
    return folder


def ids(page: Any) -> set[str]:
    """Return the ids of the rows that are drawn."""
    return {str(one.get_attribute("data-id")) for one in page.locator(SHOWN).all()}


def test_the_head_says_how_the_batch_went(chromium: Opened, batch: Path) -> None:
    """Target, status, done and failed, times, calls, tokens and cost are there in words."""
    with chromium.file(batch / "batch.html") as page:
        head = page.locator(".batch-top").inner_text()
        for words in ("counting.py:tree", "failed", "45 done", "15 failed", "of 60 inputs"):
            assert words in head
        assert "45" in page.locator(".batch-facts div", has_text="Calls").inner_text()
        assert "$0" in page.locator(".batch-facts div", has_text="Cost").inner_text()
        assert "Start to last result" in head
        picture(page, "batch")


def test_failures_are_grouped_and_filter_the_rows(chromium: Opened, batch: Path) -> None:
    """A click on a kind of failure, or on a message, leaves its rows; a second one shows all."""
    with chromium.file(batch / "batch.html") as page:
        kinds = [one.inner_text() for one in page.locator(".batch-kind").all()]
        assert kinds == [
            "8 TimeoutError at counting/check",
            "6 ValueError at counting/check",
            "1 LookupError at counting/check",
        ]
        page.locator(".batch-kind", has_text="ValueError").click()
        assert ids(page) == {f"n{number}" for number in range(10, 61, 10)}
        assert "6 of 60 results" in page.locator(".batch-summary").inner_text()
        assert page.locator(".batch-kind[aria-pressed=true]").count() == 1
        page.get_by_role("button", name="and 6 more messages").click()
        assert page.locator(".batch-one", has_text="took too long").count() == 8
        page.locator(".batch-one", has_text="took too long").last.click()
        assert len(ids(page)) == 1
        assert page.locator(".batch-kind[aria-pressed=true]").count() == 0
        page.get_by_role("button", name="show all").click()
        assert page.get_by_role("table", name="Results").get_attribute("aria-rowcount") == "61"


def test_rows_are_searched_filtered_and_sorted(chromium: Opened, batch: Path) -> None:
    """`/` leads to the search, chips are statuses, and heads sort, numbers in ids as numbers."""
    with chromium.file(batch / "batch.html") as page:
        page.keyboard.press("/")
        page.keyboard.type("timeouterror 49")
        assert ids(page) == {"n49"}
        page.keyboard.press("Escape")
        page.get_by_role("group", name="Status").get_by_role("button", name="failed").click()
        assert "15 of 60 results" in page.locator(".batch-summary").inner_text()
        head = page.get_by_role("columnheader", name="ID")
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == "ascending"
        first = [row.get_attribute("data-id") for row in page.locator(SHOWN).all()[:3]]
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator(".batch-printed tbody tr").count() == 15
        assert first == ["<b>&'\"", "n7", "n10"]


def test_the_keyboard_leads_to_a_run(chromium: Opened, batch: Path) -> None:
    """`f` opens the first failure, j and arrows the next row, and the command opens its run."""
    with chromium.file(batch / "batch.html") as page:
        page.keyboard.press("f")
        detail = page.get_by_role("region", name="The selected result")
        assert "failed" in detail.inner_text()
        before = detail.locator("h3").inner_text()
        page.keyboard.press("j")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("k")
        assert detail.locator("h3").inner_text() == before
        assert page.evaluate("document.activeElement.textContent") == before
        line = detail.locator("code", has_text="mergepoint view").inner_text()
        picture(page, "batch-detail")
        page.keyboard.press("Escape")
        assert not detail.is_visible()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(batch)
        patch.delenv("MERGEPOINT_STORE", raising=False)
        seen = command(*line.removeprefix("mergepoint ").split())
        assert seen.code == 0, seen.err


def test_hostile_results_are_text(chromium: Opened, batch: Path) -> None:
    """Scripts, escapes and direction marks in an id and a text are shown, and nothing runs."""
    with chromium.file(batch / "batch.html") as page:
        page.locator("input[type=search]").fill("<img")
        (row,) = page.locator(SHOWN).all()
        assert "<b>&'\"" in row.inner_text()
        row.click()
        text = page.locator(".batch-detail").inner_text()
        assert "<script>alert(1)</script>" in text
        assert "\\u202e" in text
        assert page.locator("img").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_serious(chromium: Opened, batch: Path, width: int, scheme: str) -> None:
    """The page has names, roles, contrast and room, in light, dark and on a phone."""
    with chromium.file(batch / "batch.html", width=width, scheme=scheme) as page:
        page.keyboard.press("f")
        page.locator(".batch-kind").first.click()
        assert axe_problems(page) == []
        assert sideways(page) <= 0
        picture(page, f"batch-{width}-{scheme}")


def test_tab_reaches_every_control(chromium: Opened, batch: Path) -> None:
    """A person who presses Tab gets to all rows and every other control, and sees where."""
    with chromium.file(batch / "batch.html") as page:
        page.evaluate("window.reached = new Set()")
        unseen: list[str] = []
        for _ in range(200):
            page.keyboard.press("Tab")
            said = page.evaluate(REACH)
            if said is None:
                break
            unseen += said
        missed = page.evaluate(f"({CONTROLS})().map(named).filter((one) => !reached.has(one))")
        rows = page.evaluate("[...reached].filter((one) => one.includes('data-key=\"row')).length")
    assert (missed, unseen, rows) == ([], [], 60)


def many_results(folder: Path, number: int) -> Path:
    """Write a results file as long batches leave it: in two calls, with failures, long texts."""
    chance = random.Random(1)  # noqa: S311  (no secret)
    now = datetime(2026, 11, 23, 9, tzinfo=UTC)
    starts = [now]
    path = folder / "many.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for at in range(number):
            now += timedelta(seconds=chance.expovariate(40))
            if at == number // 2:
                now += timedelta(hours=9)
                starts.append(now - timedelta(seconds=1))
            failed = chance.random() < 0.03
            error = {"type": "RateLimitError", "message": f"429: {at % 3}", "path": "t/a"}
            calls = chance.choice([2, 2, 3, 7])
            usage = {"input_tokens": calls * chance.randint(200, 900), "output_tokens": 90}
            line = {
                "id": f"q{at}",
                "status": "failed" if failed else "done",
                "calls": calls,
                "text": "" if failed else f"Result {at}. {'word ' * chance.randint(5, 900)}",
                "outputs": {},
                "usage": {**usage, "cost": None if at % 50 else 0.01},
                "error": error if failed else None,
                "run_id": f"many-1.q{at}",
                "attempts": 1 + (at % 99 == 0),
                "ended_at": now.isoformat(),
            }
            file.write(f"{json.dumps(line)}\n")
    known = {"batch": "many-1", "target": "t.yaml", "inputs": number + 500}
    times = [one.isoformat() for one in starts]
    path.with_name("many.jsonl.batch").write_text(json.dumps({**known, "starts": times}))
    return path


def test_twenty_thousand_results_open_and_scroll(
    chromium: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page has 50 MB of results in under 10 MB, is there in seconds, and draws what is seen."""
    monkeypatch.chdir(tmp_path)
    path = many_results(tmp_path, 20_000)
    assert path.stat().st_size > 40_000_000
    assert command("view", str(path), "-o", "many.html", "--no-open").code == 0
    file = tmp_path / "many.html"
    assert file.stat().st_size < 10_000_000
    began = time.monotonic()
    with chromium.file(file) as page:
        loaded = time.monotonic() - began
        # It takes 0.7 s where nothing else runs.
        assert loaded < 15
        head = page.locator(".batch-top").inner_text()
        assert "500 left" in head
        assert "in 2 calls of the batch" in head
        assert "unknown for 19,600 results" in head
        assert page.locator(".batch-chart").count() == 3
        assert page.locator(SHOWN).count() < 60
        page.locator(".batch-list").evaluate("list => { list.scrollTop = list.scrollHeight }")
        last = page.locator(".batch-row[data-id=q19999]")
        last.wait_for()
        assert last.get_attribute("aria-rowindex") == "20001"
        last.click()
        assert page.locator(".batch-detail h3").inner_text() == "q19999"
        page.locator("input[type=search]").fill("result 12345.")
        assert ids(page) == {"q12345"}
        picture(page, "batch-many")


def test_a_served_page_follows_a_running_batch(
    chromium: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the batch runs, results come in; what is chosen stays, and a link opens a run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MERGEPOINT_STORE", raising=False)
    prepared(tmp_path, range(1, 41))
    running = started("batch", "counting.py:tree", "in.jsonl", "--quiet", cwd=tmp_path)
    deadline = time.monotonic() + WAIT
    while not Path("results.jsonl").exists() or not Path("results.jsonl").stat().st_size:
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with viewing("results.jsonl", cwd=tmp_path) as server:
        asked: list[str] = []
        said: list[str] = []
        page = opened(chromium, server.address, asked, said)
        page.wait_for_selector("[data-live='live']")
        page.wait_for_selector("text=20 left")
        assert "running" in page.locator(".batch-title").inner_text()
        page.locator(".batch-row[data-id=n10] button").click()
        page.locator(".batch-kind", has_text="ValueError").focus()
        picture(page, "batch-live")
        (tmp_path / "go").touch()
        page.wait_for_selector(".batch-title >> text=failed")
        assert "30 done" in page.locator(".batch-progress").inner_text()
        assert page.locator(".batch-detail h3").inner_text() == "n10"
        assert "ValueError" in page.evaluate("document.activeElement.textContent")
        page.get_by_role("link", name="Open the page of its run").click()
        page.wait_for_selector("body[data-ready].screen-run")
        assert "no tens" in page.locator("main").inner_text()
        data = page.context.request.get(f"{page.url.partition('#')[0]}/data.json").json()
        # `mergepoint resume` can't resume a run of a batch.
        assert data["live"]["answers"] == ""
        page.get_by_role("link", name="all runs").click()
        page.wait_for_selector("body[data-ready].screen-batch")
        assert all(url.startswith(server.origin) for url in asked)
        assert said == []
        page.context.close()
        assert running.wait(WAIT) == 1
        assert server.interrupt() == (0, "")
    running.communicate(timeout=WAIT)
