"""A throw-away namespace: where an attack is let succeed, so that we know that it is one.

It has processes, users, network and IPC of its own and ends with its first process. It sees the
machine's files, read-only. What the sandbox adds to that is what a test is about.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "throw-away"
REACHED = "REACHED"
"""What an attack prints that has come to where it wants."""

GUARD = f"""
import os
if os.uname().nodename not in ("sandbox", "{NAME}") or os.getpid() > 1000:
    raise SystemExit("an attack runs in a sandbox or not at all")
"""
"""How each attack begins."""


def as_nobody() -> dict[str, Any]:
    """Return the options of a process that must not be root."""
    return {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}


def thrown_away(
    code: str, *, root: bool, environment: Mapping[str, str], files: Mapping[str, str]
) -> str:
    """Run code in such a namespace, as its root or not, and give what it prints.

    `files` are contents by the paths where it sees them.
    """
    user = ("--uid", "0", "--gid", "0", "--cap-add", "ALL") if root else ("--uid", "1000")
    read: list[int] = []
    words: list[str] = []
    for path, text in files.items():
        end, begin = os.pipe()
        os.write(begin, text.encode())
        os.close(begin)
        read.append(end)
        words += ["--ro-bind-data", str(end), str(Path(path).resolve())]
    command = [
        *("bwrap", "--unshare-all", "--unshare-user", *user, "--die-with-parent"),
        *("--new-session", "--hostname", NAME, "--ro-bind", "/", "/"),
        *("--dev", "/dev", *words, "--chdir", "/"),
        *(("--proc", "/proc") if root else ()),
        *("--", "/usr/bin/python3", "-I", "-c", GUARD + code),
    ]
    try:
        done: subprocess.CompletedProcess[str] = subprocess.run(  # noqa: S603  (a namespace of its own)
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=60,
            env={"PATH": "/usr/bin:/bin", **environment},
            pass_fds=read,
            cwd="/",
            **as_nobody(),
        )
    finally:
        for end in read:
            os.close(end)
    return done.stdout
