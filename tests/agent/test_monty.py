"""Monty: what its interpreter limits, and what it lacks."""

from __future__ import annotations

import re

import pytest
from tests.agent.running import ran

from mergepoint.sandbox.backends import Monty
from mergepoint.sandbox.job import MIB, Stop

pytest.importorskip("pydantic_monty", reason="pydantic-monty is not installed")


@pytest.mark.parametrize(
    ("code", "stopped"),
    [
        ("held = []\nwhile True:\n    held.append('x' * 1000)", "memory"),
        ("held = 'x' * 10 ** 10", "memory"),
        ("while True:\n    pass", "cpu"),
        ("import time\nwhile True:\n    time.sleep(9)", "wall"),
    ],
)
def test_limits_of_the_interpreter_stop_a_run(code: str, stopped: Stop) -> None:
    """Memory, processor and wall time end a run with their names."""
    run = ran(Monty(), code, memory=16 * MIB, cpu=0.3, wall=1)
    assert (run.stopped, run.exit_code) == (stopped, None)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os\nprint(os.environ)", "not supported"),
        ("print(open('/etc/passwd').read())", "PermissionError"),
        ("print(open('../secret').read())", "PermissionError"),
        ("import socket", "ModuleNotFoundError"),
        ("import subprocess", "ModuleNotFoundError"),
        ("import ctypes", "ModuleNotFoundError"),
        ("import os\nos.fork()", "AttributeError"),
        ("import os\nos.symlink('/etc/passwd', 'link')", "AttributeError"),
        ("def f(n):\n    return f(n + 1)\nf(0)", "RecursionError"),
        ("n = 0\nwhile True:\n    open(str(n), 'w').close()\n    n += 1", "limit .* exceeded"),
        ("while True:\n    open('x', 'a').write('y' * 1000000)", "limit .* exceeded"),
    ],
)
def test_what_the_interpreter_lacks_cannot_be_reached(code: str, told: str) -> None:
    """The machine is not there: each way to it is an error in the code."""
    run = ran(Monty(), code, files=2 * MIB, file_count=50)
    assert (run.stopped, run.exit_code) == (None, 1)
    assert re.search(told, run.output)
