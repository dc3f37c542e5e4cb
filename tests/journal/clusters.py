"""PostgreSQL servers of a test's own, which it may stop and start, and ways to them that hang."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from threading import Thread

import pytest

_OPTIONS = "-c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=100"


@dataclass(frozen=True)
class Cluster:
    """A server with its data in a folder, at a port of this machine."""

    programs: Path
    folder: Path
    port: int

    @property
    def url(self) -> str:
        """Return the URL of its database."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = f"{_OPTIONS} -c port={self.port} -c unix_socket_directories={self.folder}"
        log = str(self.folder / "log")
        self._control("start", "-w", "-l", log, "-o", options)

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server; by default as a crash would."""
        self._control("stop", "-w", "-m", mode)

    def _control(self, *args: str) -> None:
        _as_user([str(self.programs / "pg_ctl"), "-D", str(self.folder / "data"), *args])


class Proxy:
    """A port of this machine that forwards to another one, and may stop to."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._hung = 0  # connections of earlier generations get no answer any more
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    def hang(self) -> None:
        """Take what comes over the connections of now, and answer nothing."""
        self._hung += 1

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                for pair in ((client, server), (server, client)):
                    Thread(target=self._forward, args=(*pair, self._hung), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, generation: int) -> None:
        with suppress(OSError), source, target:
            while data := source.recv(65_536):
                if generation == self._hung:
                    target.sendall(data)


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Yield a running server; skip the test where PostgreSQL isn't installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    named = shutil.which("initdb")
    if not (found or named):
        pytest.skip("PostgreSQL's programs aren't installed: no initdb")
    programs = (found[-1] if found else Path(str(named))).parent
    folder = Path(mkdtemp(prefix="mergepoint-postgres-"))
    if _is_root():
        shutil.chown(folder, "postgres")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Cluster(programs, folder, port)
    data = str(folder / "data")
    try:
        _as_user(
            [str(programs / "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"]
        )
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def _is_root() -> bool:
    return os.geteuid() == 0


def _as_user(command: Sequence[str]) -> None:
    """Run a program of PostgreSQL, which refuses to run as root."""
    prefix = ["runuser", "-u", "postgres", "--"] if _is_root() else []
    ended = subprocess.run(  # noqa: S603  (a program of the system)
        [*prefix, *command],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    assert ended.returncode == 0, command
