"""Every command line that the pages show is run as printed: on a terminal, and without one."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from tests.acceptance.commands import (
    ELSEWHERE,
    LEFT_OUT,
    NAMES,
    NO_TERMINAL,
    OLLAMA,
    SERVING,
    Serving,
    alone,
    left_out,
    serving,
    shown,
    unasked,
)
from tests.acceptance.shell import Ran, on_terminal, piped
from tests.docs.pages import ROOT, Fence, Page
from tests.docs.play import play

from mergepoint.streams.registry import REGISTRY
from mergepoint.testing.server import ModelServer

pytestmark = pytest.mark.acceptance

OPEN, REFUSED = 4, 2
ANSWERS = (
    (r"\[l\]ater: ", "l\n"),
    (r"Continue\? \[y/N\]: ", "y\n"),
    (r"Password: |for confirmation: ", "a lantern\n"),
    (r"(^|\n)> ", "\x04"),
)
"""What is typed. Decisions are left for later, so that later commands find gates that are open."""


@pytest.fixture(autouse=True)
def chainlit_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the secret that the page on the browser UI asks for where an app has its own logins."""
    monkeypatch.setenv("CHAINLIT_AUTH_SECRET", "a secret of this test, which is long enough for it")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which the paths that the pages show lead to what they name."""
    shutil.copytree(ROOT / "graphs", tmp_path / "graphs")
    for name in ("docs", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(REGISTRY, "_found", dict(REGISTRY._found))
    return tmp_path


class User:
    """Runs what a page shows, as somebody would who reads it."""

    def __init__(self, home: Path, server: ModelServer, *, terminal: bool) -> None:
        self._terminal = terminal
        self._url = server.url
        places = {"HOME": str(home), "BROWSER": "true"}
        self._env = {**places, "OPENAI_API_KEY": "x", "OPENAI_BASE_URL": server.url}

    def __call__(self, fence: Fence, where: str) -> str | None:
        """Run a block that is marked to run, and return what it printed."""
        if "runs" not in fence.marks:
            return None
        ran = self._typed(f"set -e\n{fence.text}")
        check(ran, f"{where}: {fence.text}", terminal=self._terminal)
        return ran.shown

    def run(self, command: str, where: str) -> None:
        """Run a command, unless it is left out."""
        if left_out(command):
            return
        served = serving(command)
        nobody = not self._terminal and unasked(command) is not None
        if served is not None and served.is_here and not nobody:
            self._see(served, command, where)
        elif served is None or served.refuses:
            ran = self._typed(ELSEWHERE.sub(self._url, command))
            check(ran, f"{where}: {command}", terminal=self._terminal)

    def _typed(self, script: str, served: Serving | None = None) -> Ran:
        def listens(written: str) -> bool:
            found = served and re.search(served.address, written)
            if not served or not found:
                return False
            address = found[1].rstrip("/").replace("0.0.0.0", "127.0.0.1")  # noqa: S104
            try:
                with urlopen(address + served.page, timeout=60) as answer:  # noqa: S310
                    return int(answer.status) == 200
            except URLError:  # Chainlit says it a moment before it listens
                return False

        if self._terminal:
            return on_terminal(script, self._env, ANSWERS, interrupt=listens)
        return piped(script, self._env, interrupt=listens)

    def _see(self, served: Serving, command: str, where: str) -> None:
        """Start what serves, see that it answers, and end it by Ctrl-C."""
        ran = self._typed(command, served)
        assert re.search(served.address, ran.shown), f"{where}: {command}\n{ran.shown}"
        assert ran.code in (0, 130), f"{where}: {command}\nexit code {ran.code}\n{ran.shown}"


def check(ran: Ran, command: str, *, terminal: bool) -> None:
    """Check that a command did what the page says it does, or says what it lacks."""
    codes, served = {0, OPEN}, serving(command)
    if OLLAMA in command or (served is not None and not served.is_here):
        codes = {REFUSED}
        assert "pip install" in ran.shown, f"{command}\n{ran.shown}"
    elif not terminal and (code := unasked(command)) is not None:
        codes = {code}
    assert ran.code in codes, f"{command}\nexit code {ran.code}\n{ran.shown[-3000:]}"
    assert "Traceback (most recent call last)" not in ran.shown, f"{command}\n{ran.shown}"
    assert "this should not happen" not in ran.shown, f"{command}\n{ran.shown}"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("terminal", [False, True], ids=["piped", "terminal"])
@pytest.mark.parametrize("name", [name for name in NAMES if shown(name)])
def test_commands_of_a_page_run_as_printed(name: str, *, terminal: bool, project: Path) -> None:
    """Each ends well or waits at an open gate, and without a terminal it prints what is shown."""
    page = Page.read(name)
    with ModelServer(lambda body: "A lantern. " * 8) as server:
        user = User(project, server, terminal=terminal)
        for block in play(page, user):
            assert terminal or block.fits, (
                f"{name}:{block.fence.line} shows\n{block.fence.text}\nand it printed\n"
                f"{block.printed}"
            )
        # Behind what is marked to run, since it would add to the runs that are listed there.
        for command in alone(page):
            user.run(command, name)


def test_what_is_left_out_is_covered() -> None:
    """Each exception is a command that a page shows, and names what runs it."""
    every = [command for name in NAMES for command in shown(name)]
    assert len(every) >= 50
    for one in LEFT_OUT:
        assert any(one.command in command for command in every), one
        assert one.words in (ROOT / one.file).read_text(encoding="utf-8"), one
    for words in (*NO_TERMINAL, OLLAMA, *(served.command for served in SERVING)):
        assert any(words in command for command in every), words
    assert any(ELSEWHERE.search(command) for command in every)


def test_the_shell_of_the_tests_is_that_of_a_user() -> None:
    """The command is found by its name, as it is typed."""
    ran = piped("command -v mergepoint && mergepoint --version", {})
    assert ran.code == 0
    assert os.sep in ran.shown
