"""Unsafe subprocess: runs code as an ordinary program with all of your rights."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from mergepoint.core.errors import SandboxMissing
from mergepoint.journal.writer import in_threads
from mergepoint.sandbox.job import CodeJob, CodeRun
from mergepoint.sandbox.process import SandboxProcess, start
from mergepoint.sandbox.supervisor import Backend, OnOutput, supervised
from mergepoint.sandbox.workdir import collect_outputs, work_folder


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
