"""A served page in a browser: it follows its run, and answers at gates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.apps.command import command
from tests.view.browser.opening import Opened, axe_problems, picture
from tests.view.view_process import WAIT, WAITING, started, viewing

pytestmark = pytest.mark.browser

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x1b[31m"
GATE = "pipeline/planning/iteration_01/approval"
SECOND = "pipeline/planning/iteration_02/approval"


@pytest.fixture(scope="module")
def chromium(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Return the browser, with a folder for the pages of the module."""
    return Opened(chromium, tmp_path_factory.mktemp("pages"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that the test stands in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MERGEPOINT_STORE", raising=False)
    return tmp_path


def opened(
    chromium: Opened,
    address: str,
    asked: list[str],
    said: list[str] | None = None,
    *,
    width: int = 1280,
    scheme: str = "light",
) -> Any:
    """Return a page of the server, and note what it asks for and what it says."""
    said = [] if said is None else said
    size = {"width": width, "height": 800}
    page = chromium.browser.new_context(viewport=size, color_scheme=scheme).new_page()
    page.set_default_timeout(60_000)
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"uncaught: {error}"))
    page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    return page


def test_a_running_run_updates_itself_for_two_viewers(chromium: Opened, here: Path) -> None:
    """Both pages show the end without being loaded again, and ask nobody but their server."""
    (here / "slow.py").write_text(WAITING, encoding="utf-8")
    run = started("run", "slow.py", "--run-id", "s", "-q", cwd=here)
    while not (here / "runs/s/journal.jsonl").exists():
        assert run.poll() is None
    with viewing("s", cwd=here) as server:
        asked: list[str] = []
        pages = [opened(chromium, server.address, asked) for _ in range(2)]
        for page in pages:
            page.wait_for_selector("[data-live='live']")
        picture(pages[0], "live-running")
        (here / "go").touch()
        for page in pages:
            page.wait_for_selector("[data-live='ended']")
            page.wait_for_selector("text=It went on.")
        picture(pages[0], "live-ended")
        assert all(url.startswith(server.origin) for url in asked)
        for page in pages:
            page.context.close()
    run.communicate(timeout=WAIT)


def test_a_gate_is_answered_in_the_page(chromium: Opened, here: Path) -> None:
    """An edited answer resumes the run, whose end the page shows; a killed server is told."""
    command("run", "plan_approve", "-i", "topic=rain", "--run-id", "r", "-q")
    with viewing("r", cwd=here) as server:
        gate = "pipeline/planning/iteration_01/approval"
        page = opened(chromium, f"{server.address}#call={gate}", [])
        form = page.get_by_role("form", name=f"Decision at {gate}")
        form.get_by_label("Answer").fill("1. Begin with an umbrella.")
        picture(page, "gate-form")
        form.get_by_role("button", name="Approve with your edit").press("Enter")
        page.wait_for_selector("[data-live='ended']")
        assert form.count() == 0
        picture(page, "gate-answered")
        page.context.close()
        page = opened(chromium, server.origin, [])
        page.wait_for_selector("[data-live='live']")
        server.kill()
        page.wait_for_selector("[data-live='lost']")
        page.context.close()
    assert "umbrella" in command("runs", "export", "r").out


def sideways(page: Any) -> int:
    """Return how many pixels a page is wider than its window."""
    found: int = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_serious_in_the_form(
    chromium: Opened, here: Path, width: int, scheme: str
) -> None:
    """The form of a gate has labels, contrast and room, also on a phone."""
    command("run", "plan_approve", "-i", "topic=rain", "--run-id", "r", "-q")
    with viewing("r", cwd=here) as server:
        page = opened(chromium, f"{server.address}#call={GATE}", [], width=width, scheme=scheme)
        form = page.get_by_role("form", name=f"Decision at {GATE}")
        form.get_by_label("Answer").fill("word" * 300)
        form.get_by_label("Comment").fill("A comment.")
        assert axe_problems(page) == []
        assert sideways(page) <= 0
        picture(page, f"gate-{width}-{scheme}")
        page.context.close()


def test_a_gate_is_rejected_with_a_comment(chromium: Opened, here: Path) -> None:
    """The comment reaches the next attempt, whose gate waits again, and a reload stays there."""
    command("run", "plan_approve", "-i", "topic=rain", "--run-id", "r", "-q")
    with viewing("r", cwd=here) as server:
        page = opened(chromium, f"{server.address}#call={GATE}", [])
        form = page.get_by_role("form", name=f"Decision at {GATE}")
        form.get_by_label("Comment").fill(f"Shorter. {HOSTILE}")
        form.get_by_role("button", name="Reject").click()
        page.wait_for_selector(f"text={SECOND}")
        assert form.count() == 0
        page.goto(f"{server.address}#run=r&tab=timeline&call={SECOND}")
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert page.url.endswith(f"#run=r&tab=timeline&call={SECOND}")
        assert page.get_by_role("tab", selected=True).inner_text().startswith("Timeline")
        assert page.get_by_role("form", name=f"Decision at {SECOND}").is_visible()
        picture(page, "gate-rejected")
        page.context.close()
    assert "Shorter." in command("runs", "export", "r").out


def test_hostile_words_are_served_as_text(chromium: Opened, here: Path) -> None:
    """Names, inputs and answers of a served run are shown visibly, and nothing of them runs."""
    command("run", "flat_chat", "-i", f"topic={HOSTILE}", "-q", "--run-id", "<b>&'\"r")
    with viewing(cwd=here) as server:
        said: list[str] = []
        page = opened(chromium, server.address, [], said)
        row = page.locator("tbody tr").inner_text()
        assert "<script>alert(1)</script>" in row
        assert "\\u202e" in row
        page.locator(".runs-name").click()
        page.wait_for_selector("body[data-ready].screen-run")
        page.keyboard.press("j")
        text = page.locator(".xray").inner_text()
        assert "</script><script>alert(1)</script>" in text
        assert "\\x1b" in text
        assert page.locator("img").count() == 0
        picture(page, "live-hostile")
        data = page.context.request.get(f"{page.url.partition('#')[0]}/data.json")
        assert data.headers["content-type"] == "application/json"
        assert data.headers["x-content-type-options"] == "nosniff"
        assert said == []
        page.context.close()
