"""A CodeRunner that plays a script instead of running code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from mergepoint.sandbox.job import CodeJob, CodeRun, ToolCall

Played = CodeRun | str | Callable[[CodeJob], CodeRun | str]
"""The result of a run: a CodeRun, the output of a success, or a function of the job."""


class ScriptedRunner:
    """Returns scripted results, run by run, and records its `jobs`.

    A function in the script can call the job's tools. Raise AssertionError when the script is
    exhausted.
    """

    name = "scripted"

    def __init__(self, runs: Iterable[Played] = ()) -> None:
        self.jobs: list[CodeJob] = []
        self._runs = iter(list(runs))

    async def run(self, job: CodeJob, *, on_output: Callable[[str], None] | None = None) -> CodeRun:
        """Return the next result, after reporting its output line by line."""
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
    """Return a run that ended with exit code 0."""
    calls = tuple(ToolCall(name=tool, keywords={}) for tool in tools)
    return CodeRun(backend="", exit_code=0, output=output, tool_calls=calls)


def failed(output: str, *, exit_code: int = 1) -> CodeRun:
    """Return a run that ended with an error."""
    return CodeRun(backend="", exit_code=exit_code, output=output)
