"""A served page whose answers go to a queue: a worker in another process resumes the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.journal.places import place_of
from tests.view.browser.opening import Opened, picture
from tests.view.browser.test_live import GATE, opened
from tests.view.view_process import WAIT, started, viewing

pytest.importorskip("procrastinate", reason="it is not installed: pip install 'mergepoint[queue]'")

pytestmark = pytest.mark.browser

QUEUED = "The run waits in the queue for a worker."


@pytest.fixture(scope="module")
def chromium(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Return the browser, with a folder for the pages of the module."""
    return Opened(chromium, tmp_path_factory.mktemp("pages"))


def ended(*words: str, cwd: Path) -> str:
    """Run a command to its end, and return its stderr."""
    process = started(*words, cwd=cwd)
    _, said = process.communicate(timeout=WAIT)
    assert process.returncode == 0, said
    return said


def test_a_worker_resumes_a_run_that_is_answered_in_the_page(
    chromium: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is queued for both viewers until a worker takes it, and both follow it to its end."""
    with place_of("postgresql", tmp_path) as place:
        monkeypatch.setenv("MERGEPOINT_STORE", place.address)
        ended("run", "plan_approve", "-i", "topic=rain", "--run-id", "r", "--enqueue", cwd=tmp_path)
        assert "waiting   r" in ended("work", "--until-empty", cwd=tmp_path)
        with viewing("r", "--enqueue", cwd=tmp_path) as server:
            page, other = (opened(chromium, f"{server.address}#call={GATE}", []) for _ in range(2))
            name = f"Decision at {GATE}"
            form = page.get_by_role("form", name=name)
            form.get_by_label("Answer").fill("1. Begin with an umbrella.")
            form.get_by_role("button", name="Approve with your edit").click()
            for one in (page, other):
                one.locator(".gate-said", has_text=QUEUED).wait_for()
                one.locator(".badge", has_text="queued").first.wait_for()
                # Nobody answers a second time: the forms are gone.
                one.wait_for_function("!document.querySelector('.gate-form')")
            picture(page, "gate-queued")
            assert "done      r" in ended("work", "--until-empty", cwd=tmp_path)
            for one in (page, other):
                one.wait_for_selector("[data-live='ended']")
                assert one.locator(".gate-said").count() == 0
                one.context.close()
        exported = started("runs", "export", "r", cwd=tmp_path)
        assert "umbrella" in exported.communicate(timeout=WAIT)[0]
