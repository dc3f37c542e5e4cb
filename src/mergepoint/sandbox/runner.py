"""CodeRunner: the protocol of backends that run model-generated code, and their choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mergepoint.core.errors import SandboxMissing, install_command
from mergepoint.sandbox.bubblewrap import Bubblewrap
from mergepoint.sandbox.job import CodeJob, CodeRun
from mergepoint.sandbox.monty import Monty
from mergepoint.sandbox.unsafe_subprocess import UnsafeSubprocess

SAFE = ("bubblewrap", "monty")
"""The backends that are tried without a name, in order."""

_BACKENDS: dict[str, type[Bubblewrap | Monty | UnsafeSubprocess]] = {
    "bubblewrap": Bubblewrap,
    "monty": Monty,
    "unsafe_subprocess": UnsafeSubprocess,
}
_WAYS_OUT = f"""Three ways out:
  - install bubblewrap (on Debian and Ubuntu: apt-get install bubblewrap)
  - {install_command("monty")}, a subset of Python
  - give a runner of your own (see mergepoint.agent.CodeRunner); where the machine confines already,
    code_runner("unsafe_subprocess"), which confines nothing"""


class CodeRunner(Protocol):
    """A backend that runs code. To add your own, write a class with a name and this method.

    `on_output` is called with pieces of the output as they arrive, on the event loop that runs the
    job. A cancelled job leaves no running process.
    """

    @property
    def name(self) -> str:
        """Return the backend's name, which each run records."""

    async def run(self, job: CodeJob, *, on_output: Callable[[str], None] | None = None) -> CodeRun:
        """Run a job until it ends, or until a limit stops it."""


def code_runner(name: str | None = None) -> CodeRunner:
    """Return the runner with a name, or the first safe one that works here.

    The names are `bubblewrap`, `monty` and `unsafe_subprocess`; the last is used only by name.

    Raises SandboxMissing if the runner (or without a name, each safe one) does not work here, with
    the reasons and fixes, and ValueError for an unknown name.
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
