"""CodeRunner: what runs code that a model wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mergepoint.agent.code_job import CodeJob
from mergepoint.agent.code_run import CodeRun
from mergepoint.core.errors import SandboxMissing


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
    raise SandboxMissing("no backend is built yet")
