"""`mergepoint ui --enqueue`: decided in Chromium, carried out by `mergepoint work` elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("chainlit")
pytest.importorskip("playwright")
pytest.importorskip("procrastinate", reason="it is not installed: pip install 'mergepoint[queue]'")

from playwright.sync_api import BrowserContext, Page, expect
from tests.apps.command import command
from tests.journal.places import place_of
from tests.ui.browsing import AWAY, Console, button, opened, shot
from tests.ui.conftest import free_port
from tests.ui.tab import Tab

WITH_WORKER = "A worker has this turn already"
QUEUED = "This waits for a worker"
WAIT = 200
DATABASE = "postgresql://postgres@localhost/runs"

WAITING = '''\
"""A tree that asks until its line is good, and then waits until there is a file."""

import asyncio
from pathlib import Path

from mergepoint import Block, Call, Gate, Loop, Step


async def wait(ctx):
    Path("begun").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.05)
    return "It went on."


line = Step("Write a line.", name="line")
check = Gate(line, name="check", question="Is it good?", capture_key="review")
again = Loop([check], name="trying", until="review", max_iterations=3)
tree = Block([again, Call(wait, name="wait", merge="last_response")], name="t")
'''


def begun(*words: str, cwd: Path, url: str) -> subprocess.Popen[str]:
    """Start the command with the database as its store."""
    cwd.mkdir(exist_ok=True)
    state = {"MERGEPOINT_STORE": url, "XDG_STATE_HOME": str(cwd)}
    return subprocess.Popen(  # noqa: S603  (our own interpreter)
        [sys.executable, "-m", "mergepoint.apps.cli", *words],
        cwd=cwd,
        env={**os.environ, **state},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def serving(folder: Path, url: str, port: int, *more: str) -> Iterator[str]:
    """Yield the address of a page, whose server is killed at the end."""
    words = ["ui", "--enqueue", "--headless", "--json", *more]
    environment = folder / "server"
    with begun(*words, "--port", str(port), cwd=environment, url=url) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()
            yield json.loads(line)["address"]
        finally:
            process.kill()


def worked(folder: Path, url: str) -> list[Any]:
    """Let a worker in another folder empty the queue, and return what it did."""
    words = ("work", "--until-empty", "--json")
    with begun(*words, cwd=folder / "worker", url=url) as process:
        said, problem = process.communicate(timeout=WAIT)
    assert process.returncode == 0, problem
    events = [json.loads(line)["event"] for line in said.splitlines()]
    return [one for one in events if one not in ("ready", "started", "ended")]


def both(pages: tuple[Page, Page], text: str, *, count: int = 1) -> None:
    """Expect a text in both tabs."""
    for page in pages:
        expect(page.get_by_text(text)).to_have_count(count)


def click(pages: tuple[Page, Page], name: str) -> None:
    """Click a button in the second tab, once both have seen the end of what ran before.

    The page makes its buttons anew then, and a click on an old one is lost.
    """
    for page in pages:
        expect(page.locator("#stop-button")).to_have_count(0)
    button(pages[1], name).click()


@pytest.mark.browser
def test_a_worker_goes_on_with_what_is_approved(
    browser: BrowserContext, tmp_path: Path, console: Console
) -> None:
    """Both tabs see the turn queued, taken back, queued again, asking again, and answered."""
    console.expected += AWAY
    port = free_port()
    with place_of("postgresql", tmp_path) as place:
        runner = ("--runner", "unsafe_subprocess")
        with serving(tmp_path, place.address, port, *runner) as address:
            page = opened(browser, address)
            button(page, "Sales by region").click()
            expect(button(page, "Approve")).to_be_visible()
            page.wait_for_url("**/thread/*")
            other = browser.new_page()
            thread = page.url
            other.goto(thread)
            expect(button(other, "Approve")).to_be_visible()
            pages = (page, other)

            button(page, "Approve").click()
            both(pages, QUEUED)
            for one in pages:
                expect(button(one, "Approve")).to_have_count(0)
            shot(page, "queued")
            page.locator("#stop-button").click()
            both(pages, QUEUED, count=0)
            expect(page.get_by_text("This was interrupted")).to_be_visible()
            assert worked(tmp_path, place.address) == []
            click(pages, "Go on")
            both(pages, QUEUED)
            assert worked(tmp_path, place.address) == ["waiting"]
            both(pages, "Run this program?")
            both(pages, QUEUED, count=0)
            click(pages, "Approve")
            both(pages, QUEUED)
        # The server is killed while the turn waits, and another one follows it.
        with serving(tmp_path, place.address, port, *runner):
            for one in pages:
                one.goto(thread)
            both(pages, QUEUED)
            shot(page, "queued-again")
            assert worked(tmp_path, place.address) == ["done"]
            both(pages, QUEUED, count=0)
            both(pages, "How this answer was made")
            for one in pages:
                expect(one.locator("#stop-button")).to_have_count(0)
            shot(page, "answered-by-worker")


@pytest.mark.chainlit
def test_a_message_goes_to_the_queue_and_a_worker_is_not_stopped(tmp_path: Path) -> None:
    """A worker carries out feedback too, and Stop says that a worker has the turn."""
    (tmp_path / "waits.py").write_text(WAITING)

    async def work(address: str, url: str) -> None:
        async with Tab(address) as tab:
            await tab.say("Say a line.")
            await tab.until_asked("Is it good?")
            await tab.say("Shorter, please")
            await tab.until(lambda: any(QUEUED in one for one in tab.texts()))
            assert await asyncio.to_thread(worked, tmp_path, url) == ["waiting"]
            await tab.until(lambda: any(one["label"] == "Approve" for one in tab.actions.values()))
            assert not any(QUEUED in one for one in tab.texts())
            await tab.click("Approve")
            working = asyncio.create_task(asyncio.to_thread(worked, tmp_path, url))
            folder = tmp_path / "worker"
            while not (folder / "begun").exists():
                assert not working.done(), working.result()
                await asyncio.sleep(0.05)
            await tab.until(lambda: not any(QUEUED in one for one in tab.texts()))
            await tab.stop()
            await tab.until(lambda: any(WITH_WORKER in one for one in tab.toasts))
            await tab.until(lambda: tab.busy)
            (folder / "go").touch()
            await tab.until_said("It went on.")
            assert await working == ["done"]
            await tab.until(lambda: not tab.busy)

    target = f"{tmp_path / 'waits.py'}:tree"
    with (
        place_of("postgresql", tmp_path) as place,
        serving(tmp_path, place.address, free_port(), target) as address,
    ):
        asyncio.run(work(address, place.address))


@pytest.mark.chainlit
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sessions", "here"], "A queue needs a PostgreSQL database, and the sessions are in"),
        (["--sessions", "sqlite:///s.db"], "Pass --sessions postgresql://user@host/database"),
        (
            ["--sessions", DATABASE, "--model", "openai:gpt-5-mini", "--base-url", "http://a:b@c/"],
            "--base-url: the value looks like a key",
        ),
        (["--sessions", "postgresql://postgres@127.0.0.1:1/none"], "can't open the queue in"),
    ],
)
def test_what_a_queue_refuses(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a database that has a queue, or with a key, no page is served."""
    monkeypatch.chdir(tmp_path)
    done = command("ui", "--enqueue", "--headless", "--port", "0", *words)
    assert done.code == 2
    assert message in " ".join(done.err.split())
