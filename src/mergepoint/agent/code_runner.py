"""CodeRunner: what runs code that a model wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mergepoint.agent.code_job import CodeJob
from mergepoint.agent.code_run import CodeRun
from mergepoint.agent.sandbox.bubblewrap import Bubblewrap
from mergepoint.agent.sandbox.monty import Monty
from mergepoint.agent.sandbox.unsafe_subprocess import UnsafeSubprocess
from mergepoint.core.errors import SandboxMissing

SAFE = ("bubblewrap", "monty")
"""What is chosen without a name: the first of these that works."""

_BACKENDS: dict[str, type[Bubblewrap | Monty | UnsafeSubprocess]] = {
    "bubblewrap": Bubblewrap,
    "monty": Monty,
    "unsafe_subprocess": UnsafeSubprocess,
}
_WAYS_OUT = """Three ways out:
  - install bubblewrap (on Debian and Ubuntu: apt-get install bubblewrap)
  - pip install 'mergepoint[monty]', a subset of Python
  - give a runner of your own (see mergepoint.agent.CodeRunner); where the machine confines already,
    code_runner("unsafe_subprocess"), which confines nothing"""


class CodeRunner(Protocol):
    """Something that runs code. Bring your own: a class with a name and this method.

    `on_output` is called with pieces of the output as they come, on the loop that runs the job.
    A job that is cancelled leaves nothing that runs.
    """

    @property
    def name(self) -> str:
        """Give the backend's name, which is written on each run."""

    async def run(self, job: CodeJob, *, on_output: Callable[[str], None] | None = None) -> CodeRun:
        """Run a job to its end, or until a limit stops it."""


def code_runner(name: str | None = None) -> CodeRunner:
    """Give the runner of a name, or the first safe one that works here.

    The names are `bubblewrap`, `monty` and `unsafe_subprocess`; the last is never chosen unasked.

    Raises SandboxMissing where the runner (or without a name, each safe one) does not work here,
    with the reasons and the ways out, and ValueError for an unknown name.
    """
    if name is not None and name not in _BACKENDS:
        raise ValueError(f"no code runner {name!r}; there are: {', '.join(_BACKENDS)}")
    reasons = {}
    for one in (name,) if name else SAFE:
        runner = _BACKENDS[one]()
        try:
            runner.probe()
        except SandboxMissing as error:
            reasons[one] = str(error)
        else:
            return runner
    told = "".join(f"\n  {one}: {reason}" for one, reason in reasons.items())
    raise SandboxMissing(f"nothing here confines code of a model:{told}\n{_WAYS_OUT}")
