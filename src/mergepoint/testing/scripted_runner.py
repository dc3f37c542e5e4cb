"""ScriptedRunner: a CodeRunner that runs nothing and plays a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from mergepoint.agent.code_job import CodeJob
from mergepoint.agent.code_run import CodeRun, ToolCall

Played = CodeRun | str | Callable[[CodeJob], CodeRun | str]
"""What a run comes to: a CodeRun, an output that went well, or a function of the job."""


class ScriptedRunner:
    """Gives what the script says, run by run, and keeps the `jobs` that it was given.

    A function in the script may call the job's tools. Raises AssertionError where the script is
    at its end.
    """

    name = "scripted"

    def __init__(self, runs: Iterable[Played] = ()) -> None:
        self.jobs: list[CodeJob] = []
        self._runs = iter(list(runs))

    async def run(self, job: CodeJob, *, on_output: Callable[[str], None] | None = None) -> CodeRun:
        """Play the next run; its output is told of line by line."""
        self.jobs.append(job)
        played = next(self._runs, None)
        if played is None:
            raise AssertionError(f"the script has no run {len(self.jobs)}; code:\n{job.code}")
        if callable(played):
            played = played(job)
        run = went_well(played) if isinstance(played, str) else played
        for line in run.output.splitlines(keepends=True):
            await asyncio.sleep(0)
            if on_output is not None:
                on_output(line)
        return replace(run, backend=self.name)


def went_well(output: str, *tools: str) -> CodeRun:
    """Give a run that ended with exit code 0."""
    calls = tuple(ToolCall(name=tool, keywords={}) for tool in tools)
    return CodeRun(backend="", exit_code=0, output=output, tool_calls=calls)


def failed(output: str, *, exit_code: int = 1) -> CodeRun:
    """Give a run that ended with an error."""
    return CodeRun(backend="", exit_code=exit_code, output=output)
