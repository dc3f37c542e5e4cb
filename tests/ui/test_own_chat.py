"""The example of a Chainlit app of one's own: it answers, and its session holds the work."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("chainlit")
pytest.importorskip("socketio")

import httpx
from tests.ui.conftest import ROOT, free_port
from tests.ui.tab import Tab

from mergepoint.session.session_store import sessions_at

pytestmark = pytest.mark.chainlit

EXAMPLES = ROOT / "docs" / "examples"
QUESTION = "A title for a night market?"


@contextmanager
def served(example: str, folder: Path) -> Iterator[str]:
    """Serve an example as its page says, and give its address."""
    port = free_port()
    command = [sys.executable, "-m", "chainlit", "run", str(EXAMPLES / example), "--headless"]
    given = {
        "OWN_CHAT_SESSIONS": str(folder / "sessions"),
        "CHAINLIT_APP_ROOT": str(folder),
        "CHAINLIT_AUTH_SECRET": "a secret of this test, which is long enough for its algorithm",
    }
    process = subprocess.Popen(  # noqa: S603  (our own interpreter)
        [*command, "--port", str(port)], cwd=folder, env={**os.environ, **given}
    )
    try:
        address = f"http://localhost:{port}"
        _until_it_listens(address)
        yield address
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize("example", ["own_chat.py", "own_history.py"])
def test_the_page_prints_the_examples_as_they_are(example: str) -> None:
    """What a reader copies out of the page is what is tested here."""
    assert (
        f"```text\n{(EXAMPLES / example).read_text()}```"
        in (ROOT / "docs" / "how-to" / "agent" / "browser-ui.md").read_text()
    )


def test_an_app_of_ones_own_writes_what_it_did_to_a_session(tmp_path: Path) -> None:
    """A message and its answer are in the conversation, the plan is a working step."""

    async def work(address: str) -> None:
        async with Tab(address) as tab:
            await tab.say(QUESTION)
            await tab.until(lambda: not tab.busy and bool(tab.texts()))

    with served("own_chat.py", tmp_path) as address:
        asyncio.run(work(address))
    sessions = sessions_at(tmp_path / "sessions")
    (brief,) = sessions.sessions()
    memory = sessions.open(brief.session_id)
    question, answer = memory.get_messages()
    assert (question.role, question.content) == ("user", QUESTION)
    assert (answer.role, bool(answer.content)) == ("assistant", True)
    (plan,) = memory.get_working_steps()
    assert (plan.type, bool(plan.content)) == ("plan", True)
    assert plan.metadata is not None
    assert plan.metadata["model"] == "offline"


def test_the_threads_of_an_app_of_ones_own_are_sessions(tmp_path: Path) -> None:
    """Its list has the thread, which shows question and answer once, and goes on."""

    async def work(address: str) -> None:
        async with Tab(address) as tab:
            await tab.say(QUESTION)
            await tab.until(lambda: not tab.busy and bool(tab.texts()))
            assert [(one["id"], one["name"]) for one in await tab.threads()] == [
                (tab.thread, QUESTION)
            ]
            async with Tab(address, tab.thread) as again:
                assert again.texts("user_message") == [QUESTION]
                assert again.texts() == tab.texts()
                assert len(again.texts()) == 1
                await again.say("Another one?")
                await again.until(lambda: not again.busy and len(again.texts()) == 2)

    with served("own_history.py", tmp_path) as address:
        asyncio.run(work(address))
    (brief,) = sessions_at(tmp_path / "sessions").sessions()
    memory = sessions_at(tmp_path / "sessions").open(brief.session_id)
    assert [one.role for one in memory.get_messages()] == ["user", "assistant"] * 2


def _until_it_listens(address: str) -> None:
    for _ in range(600):
        try:
            httpx.get(address)
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the example does not start")
