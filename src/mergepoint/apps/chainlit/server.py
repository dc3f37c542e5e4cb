"""Server: the page, from its settings to the end of the process."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mergepoint.apps.chainlit.gatekeeper import Gatekeeper
from mergepoint.apps.chainlit.logins import Logins
from mergepoint.apps.chainlit.root import laid_out, root_of, secret_at
from mergepoint.core.errors import MergepointError
from mergepoint.session.sessions_at import sessions_at
from mergepoint.session.turn_runner import TurnRunner

if TYPE_CHECKING:
    from mergepoint.apps.chainlit.attendant import Attendant

EXTRA = "chainlit"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_BACKLOG = 128
_GRACE = 3  # seconds that an open tab may take to be told of the end
_SECRET = "CHAINLIT_AUTH_SECRET"  # noqa: S105  (a variable's name)


class UiError(MergepointError):
    """A page that cannot be served as it was asked for."""


@dataclass(frozen=True, kw_only=True)
class Ui:
    """What is served where. `place` is a folder of sessions, or the URL of a database.

    `starters` are labels and messages that a new page offers. Without `logins` there is one local
    user, and `host` has to be of this machine.
    """

    turns: TurnRunner
    place: str = "sessions"
    host: str = "127.0.0.1"
    port: int = 8000
    logins: Path | None = None
    browser: bool = False
    starters: Sequence[tuple[str, str]] = ()


def check_extra() -> None:
    """Raise UiError that says what to install where Chainlit is missing."""
    if find_spec(EXTRA) is None:
        raise UiError(
            "the page needs Chainlit, which is not installed: pip install 'mergepoint[chainlit]'"
        )


def serve(ui: Ui, *, ready: Callable[[str], None]) -> None:
    """Serve until the process is told to end; `ready` is called with the address.

    Chainlit ends the process when it is done, with exit code 0. Raises UiError for what cannot be
    served, and what the tree and the sessions raise.
    """
    check_extra()
    logins = None if ui.logins is None else Logins.read(ui.logins)
    if logins is None and not is_loopback(ui.host):
        raise UiError(
            f"everybody who reaches {ui.host} could talk to it: give --login FILE with those who "
            "may, or --host 127.0.0.1"
        )
    listening = _listening(ui.host, ui.port)
    port = listening.getsockname()[1]
    origins = [f"http://{_shown(name)}:{port}" for name in dict.fromkeys((*_LOOPBACK, ui.host))]
    _prepare(ui, origins)
    attendant = _attendant(ui)
    _install(attendant, logins, ui, port)
    hosts = None if not is_loopback(ui.host) else {*_LOOPBACK, ui.host}
    asyncio.run(_serving(listening, hosts, origins, lambda: ready(_address(ui.host, port))))


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _prepare(ui: Ui, origins: list[str]) -> None:
    """Lay out the folder that Chainlit works in, before it is imported and looks for it."""
    root = laid_out(root_of(ui.place).resolve(), origins=origins)
    os.environ["CHAINLIT_APP_ROOT"] = str(root)
    os.environ.setdefault(_SECRET, secret_at(root))
    if EXTRA in sys.modules:
        raise UiError("Chainlit was imported before its folder was known; serve in a new process")


def _attendant(ui: Ui) -> Attendant:
    from mergepoint.apps.chainlit.attendant import Attendant
    from mergepoint.apps.chainlit.threads import Threads

    return Attendant(Threads(sessions_at(ui.place), ui.turns.tree), ui.turns)


def _install(attendant: Attendant, logins: Logins | None, ui: Ui, port: int) -> None:
    from chainlit.config import config

    from mergepoint.apps.chainlit.app import install

    logging.getLogger("chainlit").setLevel(
        logging.ERROR
    )  # it warns of every page without a translation
    config.run.host = ui.host
    config.run.port = port
    config.run.headless = not ui.browser
    install(attendant, logins=logins, starters=ui.starters)


async def _serving(
    listening: socket.socket,
    hosts: set[str] | None,
    origins: list[str],
    ready: Callable[[], None],
) -> None:
    import uvicorn
    from chainlit.server import app

    guarded = Gatekeeper(app, hosts=hosts, origins=origins)
    config = uvicorn.Config(
        guarded, log_level="error", lifespan="on", timeout_graceful_shutdown=_GRACE
    )
    server = uvicorn.Server(config)
    asyncio.get_running_loop().call_soon(ready)
    await server.serve(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    """Give a socket that listens, so that a port that is taken is an error before anything runs."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, proto)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(_BACKLOG)
    except OSError as error:
        raise UiError(
            f"cannot listen at {host}:{port}: {error.strerror}; give another --port, or 0 for any"
        ) from error
    return found


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _address(host: str, port: int) -> str:
    return f"http://{_shown('localhost' if is_loopback(host) else host)}:{port}"
