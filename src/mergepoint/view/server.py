"""Serve pages on loopback, until Ctrl-C: what `mergepoint view --serve` does."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mergepoint.core.errors import MergepointError, install_command
from mergepoint.view.gate_resume import ResumeCommand, Resumes
from mergepoint.view.live_pages import PageCache, Pages

if TYPE_CHECKING:
    import uvicorn

EXTRA = "view"
HOST = "127.0.0.1"
_BACKLOG = 128
_GRACE = 1  # seconds for open requests when the server stops


class ServeError(MergepointError):
    """Pages that can't be served with these settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewServer:
    """Settings of the server.

    Attributes:
        pages: The runs and sessions.
        resume: Returns the command that resumes a run, by its id and the path of the gate that is
            answered; None if answers can't be given here.
        enqueues: Whether that command adds the run to a queue, from which a worker takes it.
        port: Port on the loopback address; 0 for any free port.
    """

    pages: Pages
    resume: Callable[[str, str], ResumeCommand] | None = None
    enqueues: bool = False
    port: int = 0


def check_extra() -> None:
    """Raise ServeError with the install command if the server's packages are missing."""
    packages = ("starlette", "uvicorn", "sse_starlette")
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ServeError(
            f"--serve needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            f"installed: {install_command(EXTRA)}"
        )


def serve(
    server: ViewServer,
    *,
    ready: Callable[[str], None],
    stopped: Callable[[list[str]], None] = lambda _: None,
) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        server: What to show.
        ready: Called with the address as soon as the server accepts requests.
        stopped: Called at the end with the ids of the runs that were being resumed; they are
            interrupted, and finish the calls in progress.

    Raises:
        ServeError: The extra isn't installed, or the port is in use.
    """
    check_extra()
    with listening(server.port) as listener:
        try:
            asyncio.run(_serve(server, listener, ready, stopped))
        except KeyboardInterrupt:
            # uvicorn raises the signal again after it has stopped: this is the way to end it.
            return


async def _serve(
    server: ViewServer,
    listener: socket.socket,
    ready: Callable[[str], None],
    stopped: Callable[[list[str]], None],
) -> None:
    web, resumes = web_server(server, listener)
    # The socket listens already: a request that comes before the server accepts it waits.
    asyncio.get_running_loop().call_soon(ready, address_of(listener))
    try:
        await web.serve(sockets=[listener])
    finally:
        # Without await: after Ctrl-C, the task is cancelled at the next one.
        if resumes is not None and (interrupted := resumes.stop()):
            stopped(interrupted)


def web_server(
    server: ViewServer, listener: socket.socket
) -> tuple[uvicorn.Server, Resumes | None]:
    """Return the web server for a listening socket, and the processes that resume runs."""
    # Only here: the packages of the extra need not be installed to write a page.
    import uvicorn

    from mergepoint.view.web_app import LoopbackGuard, application, new_token

    cache = PageCache(
        server.pages,
        token=new_token(),
        answers=server.resume is not None,
        enqueues=server.enqueues,
    )
    resumes = None if server.resume is None else Resumes(server.resume, cache)
    # At the end, streams of events are cut off on purpose, which uvicorn takes for an error.
    logging.getLogger("uvicorn.error").addFilter(_is_no_cut_stream)
    config = uvicorn.Config(
        LoopbackGuard(application(cache, resumes), port=listener.getsockname()[1]),
        log_level="error",
        lifespan="off",
        timeout_graceful_shutdown=_GRACE,
    )
    return uvicorn.Server(config), resumes


def _is_no_cut_stream(record: logging.LogRecord) -> bool:
    return "without completing response" not in record.getMessage()


def address_of(listener: socket.socket) -> str:
    """Return the address of the list of runs."""
    return f"http://{HOST}:{listener.getsockname()[1]}/"


def listening(port: int) -> socket.socket:
    """Return a listening socket, so that a port in use is an error before anything runs."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Lets a restarted server reuse the port while old connections time out.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((HOST, port))
        found.listen(_BACKLOG)
    except OSError as error:
        found.close()
        raise ServeError(
            f"can't listen on {HOST}:{port}: {error.strerror}; set another --port, or 0 for any"
        ) from error
    return found
