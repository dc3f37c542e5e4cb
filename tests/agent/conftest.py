"""What an attack is aimed at: a machine with a secret, which somebody watches."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.agent.throw_away import as_nobody

from mergepoint.sandbox.bubblewrap import Bubblewrap
from mergepoint.sandbox.resource_usage import new_cgroup

REQUIRED = "MERGEPOINT_SANDBOX"
"""Set to `required`, a machine without bubblewrap fails these tests; else it skips them."""


@pytest.fixture(scope="session")
def bubblewrap() -> Iterator[Bubblewrap]:
    """Yield the sandbox, which works. Where there is none, nothing is run in its place.

    At the end the cgroups go that killed processes left.
    """
    if shutil.which("bwrap") is None:
        reason = "bubblewrap is not installed (apt-get install bubblewrap)"
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    sandbox = Bubblewrap()
    sandbox.probe()
    yield sandbox
    if group := new_cgroup():
        group.remove()


@dataclass(frozen=True, slots=True)
class Machine:
    """What is outside: a secret, where it is, who would give it, and a process to be harmed."""

    canary: str
    folder: Path
    port: int
    victim: subprocess.Popen[bytes]

    def aimed(self, code: str) -> str:
        """Return an attack's code, aimed at this machine."""
        named = {"@CANARY@": self.canary, "@FOLDER@": str(self.folder), "@PORT@": str(self.port)}
        for mark, value in named.items():
            code = code.replace(mark, value)
        return code

    def processes_of(self, mark: str) -> list[str]:
        """Return the processes that have a mark in their command."""
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if mark.encode() in file.read_bytes():
                    found.append(file.parent.name)
            except OSError:  # it has ended
                continue
        return found


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """Yield a secret in the environment and in a file, servers that tell it, and a victim."""
    canary = f"canary-{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory(prefix="mergepoint-attacked-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        (folder / "secret.txt").write_text(canary, encoding="utf-8")
        with (
            _telling(socket.AF_INET, ("127.0.0.1", 0), canary) as tcp,
            _telling(socket.AF_UNIX, f"\0{canary}", canary),
            _telling(socket.AF_UNIX, str(folder / "socket"), canary),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
            subprocess.Popen(  # noqa: S603  (our own interpreter)
                ["/usr/bin/python3", "-I", "-c", f"input() # victim of {canary}"],
                stdin=subprocess.PIPE,
                cwd="/",
                **as_nobody(),
            ) as victim,
        ):
            (folder / "socket").chmod(0o777)
            port = tcp.getsockname()[1]
            udp.bind(("127.0.0.1", port))
            threading.Thread(target=_echoing, args=(udp, canary), daemon=True).start()
            before = os.environ.get("MERGEPOINT_CANARY")
            os.environ["MERGEPOINT_CANARY"] = canary
            try:
                yield Machine(canary, folder, port, victim)
            finally:
                os.environ.pop("MERGEPOINT_CANARY")
                if before is not None:
                    os.environ["MERGEPOINT_CANARY"] = before
                victim.kill()


def _telling(family: int, address: object, canary: str) -> socket.socket:
    server = socket.socket(family)
    server.bind(address)  # type: ignore[arg-type]
    server.listen()

    def tell() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # it is closed
                return
            with connection:
                connection.sendall(canary.encode())

    threading.Thread(target=tell, daemon=True).start()
    return server


def _echoing(server: socket.socket, canary: str) -> None:
    while True:
        try:
            _, sender = server.recvfrom(99)
            server.sendto(canary.encode(), sender)
        except OSError:  # it is closed
            return
