"""What is said between a program that starts and who started it."""

from __future__ import annotations

import socket

from mergepoint.sandbox.process import _ready


def test_a_tool_that_is_called_at_once_waits_behind_the_start() -> None:
    """What comes in the same breath as the first word is left on the line."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'ready\n{"tool": "own"}\n')
        assert _ready(ours, count=0) == ()
        assert ours.recv(100) == b'{"tool": "own"}\n'
