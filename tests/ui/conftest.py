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

import pytest

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
        """Give where it listens."""
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
    """Give a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[Starting]:
    """Give a function that starts a server; all are killed after the test."""
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
