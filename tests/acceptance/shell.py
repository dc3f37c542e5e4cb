"""Shell: commands run as they are printed, in bash, with a terminal or without one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from select import select

from tests.apps.command import plain
from tests.docs.play import environment

_LONGEST = 240  # seconds; a busy machine takes long
_ROWS, _COLUMNS = 24, 80  # of a terminal as it is opened
_MOMENT = 0.05  # seconds
BASH = ("bash", "-uo", "pipefail", "-c")

Told = Callable[[str], bool]
"""Says by what was written so far whether it is time for Ctrl-C."""


@dataclass(frozen=True)
class Ran:
    """A script that was run: its exit code, and all that it wrote."""

    code: int
    shown: str

    def to_continue(self) -> str:
        """Return the last command to continue that was printed, as one would copy it: one line.

        Raises AssertionError where there is none.
        """
        found = re.findall(r"^ *resume:? +(mergepoint .*?) *$", self.shown, re.MULTILINE)
        assert found, self.shown
        return str(found[-1])


def piped(script: str, env: Mapping[str, str], *, interrupt: Told = lambda shown: False) -> Ran:
    """Run a script without a terminal, and with nothing to read."""
    with subprocess.Popen(  # noqa: S603  (our own pages)
        [*BASH, script],
        env={**environment(), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None

        def stop() -> None:
            os.killpg(process.pid, signal.SIGINT)

        shown = _read(process.stdout.fileno(), process.pid, lambda new: None, interrupt, stop)
    return Ran(process.returncode, shown.decode(errors="replace"))


def on_terminal(
    script: str,
    env: Mapping[str, str],
    answers: Sequence[tuple[str, str]] = (),
    *,
    interrupt: Told = lambda shown: False,
) -> Ran:
    """Run a script on a terminal of 80 columns.

    The answer is typed where the words beside it, a regular expression, stand last. Ctrl-C is typed
    once, when `interrupt` says so.
    """
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        whole = {**environment(), "TERM": "xterm-256color", **env}
        os.execvpe(BASH[0], [*BASH, script], whole)  # noqa: S606  (our own pages)

    def answer(new: str) -> str | None:
        said = plain(new)
        return next((typed for words, typed in answers if re.search(rf"{words}\Z", said)), None)

    shown = _read(terminal, child, answer, interrupt, lambda: os.write(terminal, b"\x03"))
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    return Ran(os.waitstatus_to_exitcode(status), plain(shown.decode(errors="replace")))


def _read(
    source: int,
    leader: int,
    answer: Callable[[str], str | None],
    interrupt: Told,
    stop: Callable[[], object],
) -> bytes:
    """Return all that is written, with what is typed meanwhile; what does not end is killed."""
    shown, seen, interrupted = b"", 0, False
    until = time.monotonic() + _LONGEST
    while True:
        if not interrupted and interrupt(plain(shown.decode(errors="replace"))):
            interrupted = True
            stop()
        if time.monotonic() > until:
            os.killpg(leader, signal.SIGKILL)
            return shown + b"\r\n(it did not end, and was killed)"
        if select([source], [], [], _MOMENT)[0]:
            try:
                data = os.read(source, 65536)
            except OSError:  # the end of a terminal is an error on Linux
                data = b""
            if not data:
                return shown
            shown += data
        elif (typed := answer(shown[seen:].decode(errors="replace"))) is not None:
            seen = len(shown)
            os.write(source, typed.encode())


def killed(script: str, env: Mapping[str, str], when: Callable[[], bool]) -> None:
    """Start a script, and kill all of it without a warning when it is time."""
    with subprocess.Popen(  # noqa: S603  (our own pages)
        [*BASH, f"exec {script}"],
        env={**environment(), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        while not when():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_MOMENT)
            assert process.poll() is None, "it ended before it could be killed"
        os.killpg(process.pid, signal.SIGKILL)
