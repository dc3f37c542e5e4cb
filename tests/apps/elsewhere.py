"""Run a module as on a system without POSIX: `python -m tests.apps.elsewhere MODULE ARGUMENT ...`.

The modules and names that Windows lacks are taken away, and `sys.platform` says win32. What the
standard library and other packages decide about a system when they are imported stays as it is
here: they are imported before.
"""

from __future__ import annotations

import os
import platform
import runpy
import select
import signal
import socket
import sys
import warnings
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
"""Modules of POSIX systems."""
DECIDED = (
    *("asyncio", "concurrent.futures.process", "ctypes", "multiprocessing.util", "shutil"),
    *("subprocess", "tempfile", "click", "httpx", "hypothesis", "langchain_core.messages"),
    *("langgraph.graph", "langgraph.pregel", "langsmith", "pydantic_monty", "rich.live"),
    *("sqlalchemy.dialects.sqlite", "typer", "genai_prices", "sse_starlette"),
)
LACKING: dict[ModuleType, tuple[str, ...]] = {
    os: (
        *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "WEXITED", "WNOHANG", "fork"),
        *("fstatvfs", "geteuid", "getuid", "killpg", "mkfifo", "nice", "pidfd_open", "pread"),
        *("pwrite", "register_at_fork", "setsid", "statvfs", "sysconf", "waitid"),
    ),
    signal: ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "pidfd_send_signal", "setitimer"),
    socket: ("AF_UNIX", "recv_fds", "send_fds"),
    select: ("epoll", "poll"),
}


class Absent(MetaPathFinder):
    """Finds no POSIX module."""

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for a module that such a system lacks."""
        if fullname in MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def without_posix() -> None:
    """Take away what such a system lacks."""
    platform.uname()
    for name in DECIDED:
        import_module(name)
    for name in MODULES & set(sys.modules):
        del sys.modules[name]
    sys.meta_path.insert(0, Absent())
    with warnings.catch_warnings(action="ignore"):  # filelock says that it has no better lock
        import_module("filelock")
    # It looks at `sys.platform` again when it reads a lock, for what only Windows' part defines.
    soft: Any = import_module("filelock._soft")
    soft.open_read_without_oplock_wait = partial(os.open, flags=os.O_RDONLY)
    socket.socketpair = partial(socket.socketpair, socket.AF_UNIX)  # event loops need it
    for module, names in LACKING.items():
        for name in names:
            delattr(module, name)
    os.supports_dir_fd.clear()
    sys.platform = "win32"


if __name__ == "__main__":
    without_posix()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
