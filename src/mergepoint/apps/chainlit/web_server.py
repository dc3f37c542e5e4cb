"""The web server of the page, from its settings to the end of the process."""

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

from mergepoint.apps.chainlit.app_folder import laid_out, root_of, secret_at
from mergepoint.apps.chainlit.external_links import ExternalLinkFilter
from mergepoint.apps.chainlit.logins import Logins
from mergepoint.apps.chainlit.request_guard import RequestGuard
from mergepoint.core.errors import MergepointError, install_command
from mergepoint.session.file_sessions import sessions_at
from mergepoint.session.turn_runner import TurnRunner

if TYPE_CHECKING:
    from mergepoint.apps.chainlit.turn_controller import TurnController

EXTRA = "chainlit"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_BACKLOG = 128
# Seconds for open tabs to receive the shutdown.
_GRACE = 3
_SECRET = "CHAINLIT_AUTH_SECRET"  # noqa: S105  (a variable's name)


class UiError(MergepointError):
    """A page that can't be served with these settings."""


@dataclass(frozen=True, kw_only=True)
class Ui:
    """Settings of the page.

    Attributes:
        turns: Runner of the turns.
        place: A folder of sessions, or the URL of a database.
        host: Address to listen on; without `logins`, it must be a loopback address.
        port: Port to listen on; 0 for any free port.
        logins: File of users who may log in; None means one local user.
        browser: Whether to open a browser.
        starters: Labels and messages that a new page offers.
    """

    turns: TurnRunner
    place: str = "sessions"
    host: str = "127.0.0.1"
    port: int = 8000
    logins: Path | None = None
    browser: bool = False
    starters: Sequence[tuple[str, str]] = ()


def check_extra() -> None:
    """Raise UiError with the install command if Chainlit is missing."""
    if find_spec(EXTRA) is None:
        raise UiError(
            f"the page needs Chainlit, which is not installed: {install_command('chainlit')}"
        )


def serve(ui: Ui, *, ready: Callable[[str], None]) -> None:
    """Serve until the process is told to end; `ready` is called with the address.

    Chainlit ends the process with exit code 0 when it is done. Raise UiError if the page can't be
    served.
    """
    check_extra()
    logins = None if ui.logins is None else Logins.read(ui.logins)
    if logins is None and not is_loopback(ui.host):
        raise UiError(
            f"everyone who can reach {ui.host} could use the page; set --login FILE with the users "
            "who may log in, or --host 127.0.0.1"
        )
    # Listen before anything else: with port 0, the origins below need the real port.
    listening = _listening(ui.host, ui.port)
    port = listening.getsockname()[1]
    origins = [f"http://{_shown(name)}:{port}" for name in dict.fromkeys((*_LOOPBACK, ui.host))]
    _prepare(ui, origins)
    attendant = _attendant(ui)
    _install(attendant, logins, ui, port)
    hosts = None if not is_loopback(ui.host) else {*_LOOPBACK, ui.host}
    asyncio.run(_serving(listening, hosts, origins, lambda: ready(_address(ui.host, port))))


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _prepare(ui: Ui, origins: list[str]) -> None:
    """Write Chainlit's folder before Chainlit is imported, which reads it at import time."""
    root = laid_out(root_of(ui.place).resolve(), origins=origins)
    os.environ["CHAINLIT_APP_ROOT"] = str(root)
    os.environ.setdefault(_SECRET, secret_at(root))
    if EXTRA in sys.modules:
        raise UiError("Chainlit was imported before its folder was set; serve in a new process")


def _attendant(ui: Ui) -> TurnController:
    from mergepoint.apps.chainlit.threads import Threads
    from mergepoint.apps.chainlit.turn_controller import TurnController

    return TurnController(Threads(sessions_at(ui.place), ui.turns.tree), ui.turns)


def _install(attendant: TurnController, logins: Logins | None, ui: Ui, port: int) -> None:
    from chainlit.config import config

    from mergepoint.apps.chainlit.app import install

    logging.getLogger("chainlit").setLevel(
        logging.ERROR
        # ::
    )
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

    guarded = RequestGuard(ExternalLinkFilter(app), hosts=hosts, origins=origins)
    config = uvicorn.Config(
        guarded, log_level="error", lifespan="on", timeout_graceful_shutdown=_GRACE
    )
    server = uvicorn.Server(config)
    asyncio.get_running_loop().call_soon(ready)
    await server.serve(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    """Return a listening socket, so that a port in use is an error before anything runs."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, proto)
        # Lets a restarted server reuse the port while old connections time out.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(_BACKLOG)
    except OSError as error:
        raise UiError(
            f"can't listen on {host}:{port}: {error.strerror}; set another --port, or 0 for any"
        ) from error
    return found


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _address(host: str, port: int) -> str:
    return f"http://{_shown('localhost' if is_loopback(host) else host)}:{port}"
