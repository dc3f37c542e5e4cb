"""Fixtures: servers in processes of their own, as people start them."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.ui.browsing import Console

# Read when Chainlit is imported, which writes there.
_HOME = tempfile.TemporaryDirectory(prefix="mergepoint-ui-", ignore_cleanup_errors=True)
os.environ.setdefault("CHAINLIT_APP_ROOT", _HOME.name)
atexit.register(_HOME.cleanup)

ROOT = Path(__file__).parents[2]


@dataclass
class Server:
    """A server at an address, with its sessions at a place. It can be killed and started again."""

    place: str
    port: int
    args: tuple[str, ...] = ()
    process: subprocess.Popen[str] | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        """Return where it listens."""
        return f"http://localhost:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it listens."""
        command = [sys.executable, "-m", "tests.ui.serve", self.place, str(self.port), *self.args]
        self.process = subprocess.Popen(  # noqa: S603  (our own interpreter)
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("http"), f"the server did not start: {line!r}"

    def kill(self) -> None:
        """Kill it, so that nothing of it can be tidied up."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None


Starting = Callable[..., Server]


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[Starting]:
    """Yield a function that starts a server; all are killed after the test."""
    begun: list[Server] = []

    def start(*args: str, place: str | None = None) -> Server:
        server = Server(place or str(tmp_path / "sessions"), free_port(), args)
        begun.append(server)
        server.start()
        return server

    try:
        yield start
    finally:
        for server in begun:
            server.kill()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Give one server that many tests use, each with threads of its own."""
    server = Server(str(tmp_path_factory.mktemp("ui") / "sessions"), free_port())
    server.start()
    try:
        yield server
    finally:
        server.kill()


FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture
def console() -> Console:
    """Return the console of a test's pages, to which a test adds what it expects there."""
    from tests.ui.browsing import Console

    return Console()


@pytest.fixture
def browser(tmp_path: Path, console: Console, starting: Starting) -> Iterator[Any]:
    """Yield a browser with a profile of its own, whose pages reach this machine alone.

    After the test nothing stands in the console that is not expected. The browser is closed before
    the test's servers are killed, whose end a page would complain of.
    """
    del starting  # it is asked for, so that it ends later
    from playwright.sync_api import expect, sync_playwright
    from tests.ui.browsing import CHROMIUM, WAIT

    if not Path(CHROMIUM).exists():
        said = f"there is no {CHROMIUM}: apt-get install chromium"
        pytest.fail(said) if os.environ.get("CI") == "true" else pytest.skip(said)
    expect.set_options(timeout=WAIT)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch_persistent_context(
            str(tmp_path / "profile"),
            executable_path=CHROMIUM,
            headless=True,
            args=list(FLAGS),
            viewport={"width": 1100, "height": 800},
        )
        found.set_default_timeout(WAIT)
        answered: list[str] = []
        found.on("response", lambda response: answered.append(response.url))
        found.on("console", console.hear)
        found.on("weberror", lambda error: console.hear_error(error.error))
        try:
            yield found
        finally:
            found.close()
        outside = [url for url in answered if not url.startswith(("http://localhost:", "data:"))]
        assert outside == []
        assert console.unexpected() == []
