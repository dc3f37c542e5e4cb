"""Unsafe subprocess: runs code as what it is, a program with all of your rights."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from mergepoint.agent.code_job import CodeJob
from mergepoint.agent.code_run import CodeRun
from mergepoint.agent.sandbox.folder import made_in, work_folder
from mergepoint.agent.sandbox.started import Started, start
from mergepoint.agent.sandbox.supervised import Backend, OnOutput, supervised


@dataclass(frozen=True, slots=True)
class UnsafeSubprocess:
    """Runs code in a process that NOTHING CONFINES.

    Warning: the code reads and deletes your files, opens connections, and leaves daemons, as you
    could. It is there for code that you would run yourself, and for machines that confine already,
    such as a container that is thrown away. It is never chosen unless it is named, and its name
    stands on each run.

    Of the limits wall time and output hold, and what is taken of made files. CPU, memory, processes
    and the size of files are not limited. Its process group is ended; what leaves that goes on.
    The environment is not handed on, which hides it from honest code only.
    """

    @property
    def name(self) -> str:
        """Give the name that stands on each run."""
        return "unsafe_subprocess"

    def probe(self) -> None:
        """Nothing can be missing."""

    async def run(self, job: CodeJob, *, on_output: OnOutput | None = None) -> CodeRun:
        """Run a job, confined by nothing."""
        with work_folder(job) as folder:
            environment = {
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(folder),
                "LANG": "C.UTF-8",
            }

            def begin(job: CodeJob) -> Started:
                return start(
                    job,
                    lambda rest: [sys.executable, *rest],
                    confined=False,
                    cwd=folder,
                    env=environment,
                )

            backend = Backend(self.name, begin, lambda _: made_in(folder, job))
            return await supervised(job, backend, on_output=on_output)
