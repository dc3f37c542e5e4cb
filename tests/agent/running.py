"""Running code in tests: a job in a line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mergepoint.sandbox.backends import CodeRunner
from mergepoint.sandbox.job import CodeJob, CodeRun, Limits


def ran(
    runner: CodeRunner,
    code: str,
    *,
    data: dict[str, Path] | None = None,
    tools: dict[str, Callable[..., Any]] | None = None,
    on_output: Callable[[str], None] | None = None,
    **limits: Any,
) -> CodeRun:
    """Run code to its end."""
    job = CodeJob(code=code, files=data or {}, tools=tools or {}, limits=Limits(**limits))
    return asyncio.run(runner.run(job, on_output=on_output))
