"""What holds for the whole suite: no network, no tracing, strict checkpoints."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Read when langgraph is imported: a checkpoint may hold plain data and messages, nothing else.
os.environ.setdefault("LANGGRAPH_STRICT_MSGPACK", "true")
os.environ["LANGSMITH_TRACING"] = "false"

_HERE = ("127.0.0.1", "::1", "localhost", b"localhost", b"127.0.0.1", None)


def _refuse_strangers(event: str, args: tuple[Any, ...]) -> None:
    if event == "socket.connect" and isinstance(args[1], tuple):
        host = args[1][0]
    elif event == "socket.getaddrinfo":
        host = args[0]
    else:
        return
    if host not in _HERE:
        raise ConnectionRefusedError(f"tests talk to this machine only, not to {host!r}")


sys.addaudithook(_refuse_strangers)


@pytest.fixture
def unblocked() -> Iterator[None]:
    """Let each call of mergepoint that blocks an event loop (files, sleep, processes) raise."""
    blockbuster = pytest.importorskip("blockbuster")
    with blockbuster.blockbuster_ctx("mergepoint"):
        yield


@pytest.fixture
def memory() -> Iterator[Path]:
    """Give a folder on a file system in memory where there is one: flushing costs nothing there."""
    shared = Path("/dev/shm")  # noqa: S108  (a folder of its own is made in it)
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C interrupt again: who runs the tests in the background may have it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave all cases but the first of a test marked `first_case` to the campaigns."""
    seen: set[tuple[Path, str]] = set()
    for item in items:
        if item.get_closest_marker("first_case") is None:
            continue
        test = (item.path, getattr(item, "originalname", item.name))
        if test in seen:
            item.add_marker(pytest.mark.campaign)
        seen.add(test)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Start a worker more than there are cores: a third of its time a worker waits for others."""
    return (os.cpu_count() or 1) + 1
