"""A PostgreSQL server of a test's own, which it can restart, and PgBouncer in front of it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
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


@contextmanager
def pooled(server: OwnServer, mode: str) -> Iterator[str]:
    """Yield the URL of a server behind PgBouncer, whose clients share one session."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        said = "PgBouncer is not installed: apt-get install pgbouncer"
        pytest.fail(said) if os.environ.get("CI") == "true" else pytest.skip(said)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = server.folder / f"{mode}.ini"
    settings.write_text(
        f"[databases]\npostgres = host=127.0.0.1 port={server.port} user=postgres\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"pool_mode = {mode}\ndefault_pool_size = {1 if mode == 'transaction' else 20}\n"
    )
    user = ("runuser", "-u", "postgres", "--") if os.getuid() == 0 else ()
    command = [*user, program, "-q", str(settings)]
    with subprocess.Popen(command, cwd="/", start_new_session=True) as process:  # noqa: S603
        try:
            _await_port(port)
            yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def _await_port(port: int) -> None:
    for _ in range(100):
        with socket.socket() as client:
            if not client.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.1)
    pytest.fail(f"nothing listens on port {port}")
