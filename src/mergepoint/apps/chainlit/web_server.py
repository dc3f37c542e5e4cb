"""The web server of the page, and the folder with its settings, texts, and login secret."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import json
import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mergepoint.apps.chainlit.security import ExternalLinkFilter, Logins, RequestGuard
from mergepoint.core.errors import MergepointError, install_command
from mergepoint.journal.checked_lines import write_whole
from mergepoint.session.session_store import sessions_at
from mergepoint.session.turn_runner import TurnRunner

if TYPE_CHECKING:
    from mergepoint.apps.cli.turn_queue import TurnQueue

SECRET = "secret"  # noqa: S105  (the file's name)
_HERE = Path(__file__).parent
_BYTES = 48

_SETTINGS = """\
# Written by `mergepoint ui` at every start.
[project]
session_timeout = 3600
user_session_timeout = 1296000
cache = false
persist_user_env = false
allow_origins = {origins}

[features]
unsafe_allow_html = false
latex = false
user_message_markdown = false
edit_message = false
auto_tag_thread = false
allow_thread_sharing = false
favorites = false

[features.spontaneous_file_upload]
enabled = false
accept = ["text/plain"]

[features.audio]
enabled = false

[features.mcp]
enabled = false

[UI]
name = "mergepoint"
description = "Conversations whose work you see"
language = "en-US"
cot = "full"
default_sidebar_state = "open"
confirm_new_chat = false
default_avatar_file_url = "/favicon"
custom_css = "/public/page.css"
custom_js = "/public/page.js"

[meta]
generated_by = "{version}"
"""

_PAGE_TEXTS: Mapping[str, str] = {
    "auth.login.form.email.label": "Name",
    "auth.login.form.email.placeholder": "",
    "auth.login.form.email.required": "a name is required",
    "chat.input.placeholder": "Ask for something, such as a report",
    "chat.input.actions.stop": "Stop",
    "chat.messages.status.using": "",
    "chat.messages.status.used": "",
    "navigation.header.readme": "How it works",
    "threadHistory.sidebar.empty": "No conversations yet",
}
"""The page's texts that replace Chainlit's."""


class AppFolderError(MergepointError):
    """A page folder that can't be created or isn't safe."""


def app_folder(store: str) -> Path:
    """Return the page's folder: inside a folder of sessions, or the user's state folder."""
    if "://" not in store:
        return Path(store) / ".ui"
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "mergepoint" / "ui"


def write_app_folder(root: Path, *, origins: Sequence[str]) -> Path:
    """Write the settings, the welcome page, and the pictures, and return the folder.

    Pages and pictures that exist stay as they are; settings, styles, and scripts are overwritten.
    Raise AppFolderError if the folder can't be written.
    """
    settings = _SETTINGS.format(origins=json.dumps(list(origins)), version=version("chainlit"))
    try:
        (root / ".chainlit").mkdir(parents=True, exist_ok=True)
        # Written at every start: settings such as unsafe_allow_html must not be weakened by an old
        # file.
        write_whole(root / ".chainlit" / "config.toml", settings.encode(), flush=False)
        (root / "public").mkdir(exist_ok=True)
        for file in (_HERE / "chainlit.md", *(_HERE / "public").iterdir()):
            copy = root / file.relative_to(_HERE)
            # The welcome page and the pictures are the user's to replace; the style and the script
            # belong to this version.
            if file.suffix in (".css", ".js") or not copy.exists():
                write_whole(copy, file.read_bytes(), flush=False)
        _write_page_texts(root / ".chainlit" / "translations")
    except OSError as error:
        raise AppFolderError(f"can't write {error.filename or root}: {error.strerror}") from error
    return root


def _write_page_texts(folder: Path) -> None:
    """Write Chainlit's English texts with the replacements; Chainlit adds the other languages."""
    spec = find_spec("chainlit")
    for package in (spec.submodule_search_locations or ()) if spec else ():
        texts = json.loads((Path(package) / "translations" / "en-US.json").read_text("utf-8"))
        for path, replacement in _PAGE_TEXTS.items():
            *above, last = path.split(".")
            functools.reduce(dict.__getitem__, above, texts)[last] = replacement
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(texts, ensure_ascii=False, indent=2)
        write_whole(folder / "en-US.json", text.encode(), flush=False)


def login_secret(root: Path) -> str:
    """Return the secret that signs logins, creating it once with owner-only permissions.

    Raise AppFolderError if other users can read the secret, or it can't be stored.
    """
    path = root / SECRET
    try:
        with suppress(FileExistsError):
            # O_EXCL: of two servers that start together, one creates the file and the other reads
            # it.
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(number, "w") as file:
                file.write(secrets.token_urlsafe(_BYTES))
        if path.stat().st_mode & 0o077:
            raise AppFolderError(
                f"other users can read {path}, which signs logins; delete it to get a new one "
                "(everyone has to log in again)"
            )
        found = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise AppFolderError(f"can't store the secret {path}: {error.strerror}") from error
    if len(found) < _BYTES:
        raise AppFolderError(f"{path} is incomplete, as after a crash; delete it to get a new one")
    return found


EXTRA = "chainlit"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_BACKLOG = 128
# Seconds for open tabs to receive the shutdown.
_GRACE = 3
_SECRET = "CHAINLIT_AUTH_SECRET"  # noqa: S105  (a variable's name)


class UiError(MergepointError):
    """A page that can't be served with these settings."""


@dataclass(frozen=True, kw_only=True)
class UiSettings:
    """Settings of the page.

    Attributes:
        turns: Runner of the turns.
        store: A folder of sessions, or the URL of a database.
        host: Address to listen on; without `logins`, it must be a loopback address.
        port: Port to listen on; 0 for any free port.
        logins: File of users who may log in; None means one local user.
        browser: Whether to open a browser.
        starters: Labels and messages that a new page offers.
        queue: The queue that decided turns are handed to; None to run them here.
    """

    turns: TurnRunner
    store: str = "sessions"
    host: str = "127.0.0.1"
    port: int = 8000
    logins: Path | None = None
    browser: bool = False
    starters: Sequence[tuple[str, str]] = ()
    queue: TurnQueue | None = None


def check_extra() -> None:
    """Raise UiError with the install command if Chainlit is missing."""
    if find_spec(EXTRA) is None:
        raise UiError(
            f"the page needs Chainlit, which is not installed: {install_command('chainlit')}"
        )


def serve(ui: UiSettings, *, ready: Callable[[str], None]) -> None:
    """Serve the page until the process ends.

    Chainlit ends the process with exit code 0 after the server stops.

    Args:
        ui: Settings of the page.
        ready: Called with the address as soon as the server accepts requests.

    Raises:
        UiError: The page can't be served with these settings.
        LoginError: The login file is invalid.
    """
    check_extra()
    logins = None if ui.logins is None else Logins.read(ui.logins)
    if logins is None and not is_loopback(ui.host):
        raise UiError(
            f"everyone who can reach {ui.host} could use the page; set --login FILE with the users "
            "who may log in, or --host 127.0.0.1"
        )
    # Listen before anything else: with port 0, the origins below need the real port.
    listener = _listen(ui.host, ui.port)
    port = listener.getsockname()[1]
    origins = [f"http://{_bracketed(name)}:{port}" for name in dict.fromkeys((*_LOOPBACK, ui.host))]
    _prepare(ui, origins)
    _install(ui, logins, port)
    hosts = None if not is_loopback(ui.host) else {*_LOOPBACK, ui.host}
    asyncio.run(_serve_requests(listener, hosts, origins, lambda: ready(_url(ui.host, port))))


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _prepare(ui: UiSettings, origins: list[str]) -> None:
    """Write Chainlit's folder before Chainlit is imported, which reads it at import time."""
    root = write_app_folder(app_folder(ui.store).resolve(), origins=origins)
    os.environ["CHAINLIT_APP_ROOT"] = str(root)
    os.environ.setdefault(_SECRET, login_secret(root))
    if EXTRA in sys.modules:
        raise UiError("Chainlit was imported before its folder was set; serve in a new process")


def _install(ui: UiSettings, logins: Logins | None, port: int) -> None:
    from chainlit.config import config

    from mergepoint.apps.chainlit.event_handlers import install
    from mergepoint.apps.chainlit.threads import Threads
    from mergepoint.apps.chainlit.turn_controller import TurnController

    # The command prints the address itself; Chainlit's own lines would repeat it.
    logging.getLogger("chainlit").setLevel(logging.ERROR)
    config.run.host = ui.host
    config.run.port = port
    # With `headless` set, Chainlit opens no browser when the server starts.
    config.run.headless = not ui.browser
    threads = Threads(sessions_at(ui.store), ui.turns.tree)
    controller = TurnController(threads, ui.turns, ui.queue)
    install(controller, logins=logins, starters=ui.starters)


async def _serve_requests(
    listener: socket.socket,
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
    # The socket listens already: a request that comes before the server accepts it waits.
    asyncio.get_running_loop().call_soon(ready)
    await server.serve(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
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


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _url(host: str, port: int) -> str:
    return f"http://{_bracketed('localhost' if is_loopback(host) else host)}:{port}"
