"""`mergepoint view --serve` as a process of its own, as people start it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WAIT = 120.0
"""Seconds after which a process that doesn't end counts as hanging."""

WAITING = '''\
"""A tree whose second call waits until there is a file."""

import time
from pathlib import Path

from mergepoint import Block, Call, Step


def wait(ctx):
    while not Path("go").exists():
        time.sleep(0.05)
    return "It went on."


draft = Step("Write a line.", name="draft")
tree = Block([draft, Call(wait, name="wait", capture_key="w")], name="t")
'''

GATED = (
    WAITING.replace("Call, Step", "Call, Gate, Step")
    .replace("[draft, ", '[Gate(draft, name="ok"), ')
    .replace("whose second call", "with a gate, whose second call")
)


def started(*args: str, cwd: Path) -> subprocess.Popen[str]:
    """Start the command in a folder."""
    return subprocess.Popen(  # noqa: S603  (our own interpreter)
        [sys.executable, "-m", "mergepoint.apps.cli", *args],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@dataclass
class ViewProcess:
    """A server in a process: the address of its first page."""

    process: subprocess.Popen[str]
    address: str

    @property
    def origin(self) -> str:
        """Return the address without a path."""
        return "/".join(self.address.split("/")[:3])

    def kill(self) -> None:
        """Kill it, so that nothing of it can be tidied up."""
        self.process.kill()
        self.process.wait(WAIT)

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C, and return the exit code and what is on stderr."""
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=WAIT)
        return self.process.returncode, err


@contextlib.contextmanager
def viewing(*args: str, cwd: Path) -> Iterator[ViewProcess]:
    """Serve the pages of a folder until the block ends."""
    process = started("view", *args, "--serve", "--json", cwd=cwd)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate(timeout=WAIT)[1]
        told: dict[str, Any] = json.loads(line)
        yield ViewProcess(process, told["address"])
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=WAIT)
