"""A PostgreSQL server of a test's own, which it can restart."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


@dataclass(frozen=True)
class OwnServer:
    """A server with its data in a folder, on a port of its own."""

    folder: Path
    port: int

    @property
    def url(self) -> str:
        """Return the URL of its database."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    def control(self, *words: str) -> None:
        """Start, stop or restart it."""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        log = str(self.folder / "log")
        data = str(self.folder / "data")
        _as_postgres("pg_ctl", *words, "-w", "-s", "-D", data, "-l", log, "-o", options)


@contextmanager
def own_server() -> Iterator[OwnServer]:
    """Yield a server; skip the test where PostgreSQL isn't installed."""
    if not _BINARIES:
        pytest.skip("PostgreSQL's server is not installed: /usr/lib/postgresql has no initdb")
    folder = Path(tempfile.mkdtemp(prefix="mergepoint-pg-"))
    try:
        if os.getuid() == 0:
            shutil.chown(folder, "postgres")
        auth = ("-A", "trust", "-U", "postgres", "--no-sync")
        _as_postgres("initdb", "-D", str(folder / "data"), *auth)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = OwnServer(folder, port)
        server.control("start")
        try:
            yield server
        finally:
            server.control("stop", "-m", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _as_postgres(program: str, *words: str) -> None:
    # Its server refuses to run as root.
    user = ("runuser", "-u", "postgres", "--") if os.getuid() == 0 else ()
    command = [*user, str(_BINARIES[-1] / program), *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")  # noqa: S603
