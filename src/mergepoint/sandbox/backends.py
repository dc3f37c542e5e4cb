"""The choice of a backend that runs model-generated code, and the backend without confinement."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from mergepoint.core.errors import SandboxMissing, install_command
from mergepoint.journal.writer import in_threads
from mergepoint.sandbox.bubblewrap import Bubblewrap
from mergepoint.sandbox.job import CodeJob, CodeRun, collect_outputs, work_folder
from mergepoint.sandbox.monty import Monty
from mergepoint.sandbox.process import Backend, OnOutput, SandboxProcess, start, supervised


@dataclass(frozen=True, slots=True)
class UnsafeSubprocess:
    """Runs code in a process that NOTHING CONFINES.

    Warning: the code can read and delete your files, open connections, and leave daemons, as you
    can. Use it for code that you would run yourself, and on machines that are confined already,
    such as a disposable container. It is used only by name, and each run records its name.

    Only wall time, output and the collected files are limited; CPU, memory, processes and the size
    of files are not. Its process group is ended; processes that leave the group continue. The
    environment is not passed on, which hides it only from honest code.
    """

    @property
    def name(self) -> str:
        """Return the name that each run records."""
        return "unsafe_subprocess"

    def probe(self) -> None:
        """Raise SandboxMissing if processes inherit no descriptors, as on Windows."""
        if not hasattr(os, "killpg"):
            raise SandboxMissing(f"it needs Linux, macOS or WSL, and this is {sys.platform}")

    async def run(self, job: CodeJob, *, on_output: OnOutput | None = None) -> CodeRun:
        """Run a job without any confinement."""
        async with in_threads(work_folder(job)) as folder:
            environment = {
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(folder),
                "LANG": "C.UTF-8",
            }

            def begin(job: CodeJob) -> SandboxProcess:
                return start(
                    job,
                    lambda rest: [sys.executable, *rest],
                    confined=False,
                    cwd=folder,
                    env=environment,
                )

            backend = Backend(self.name, begin, lambda _: collect_outputs(folder, job))
            return await supervised(job, backend, on_output=on_output)


SAFE = ("bubblewrap", "monty")
"""The backends that are tried without a name, in order."""

_BACKENDS: dict[str, type[Bubblewrap | Monty | UnsafeSubprocess]] = {
    "bubblewrap": Bubblewrap,
    "monty": Monty,
    "unsafe_subprocess": UnsafeSubprocess,
}
_FIXES = f"""To fix this, do one of these:
  - install bubblewrap (on Debian and Ubuntu: apt-get install bubblewrap)
  - {install_command("monty")}, a subset of Python
  - write a custom runner (see mergepoint.agent.CodeRunner); on a machine that is confined already,
    use code_runner("unsafe_subprocess"), which confines nothing"""


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
        raise ValueError(f"no code runner {name!r}; known runners: {', '.join(_BACKENDS)}")
    reasons = {}
    for one in (name,) if name else SAFE:
        try:
            _probed(one, os.environ.get("PATH"))
        except SandboxMissing as error:
            reasons[one] = str(error)
        else:
            return _BACKENDS[one]()
    told = "".join(f"\n  {one}: {reason}" for one, reason in reasons.items())
    raise SandboxMissing(f"no sandbox works on this machine:{told}\n{_FIXES}")


@cache
def _probed(name: str, path: str | None) -> None:
    """Run a backend's self-test once per process and search path. Raises SandboxMissing.

    The test of bubblewrap starts a process, a tenth of a second. A failed one is tried again, since
    its error says what to install.
    """
    _BACKENDS[name]().probe()
