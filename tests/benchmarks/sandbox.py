"""Sandbox: what a run of code takes in each backend, against a bare interpreter."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable

from tests.benchmarks.result import Ratio, Results, Spent
from tests.benchmarks.timing import Times, ratio

from mergepoint.core.errors import SandboxMissing
from mergepoint.sandbox import CodeJob, code_runner

GOALS = {"bubblewrap": 3.0, "monty": 3.0, "unsafe_subprocess": None}


def one_run_of_code(rounds: int, repetitions: int, results: Results) -> None:
    """Time a run of `pass`: of the interpreter that we run in, and of each backend."""
    contenders: dict[str, Callable[[], object]] = {"python -c pass": _bare}
    for name in GOALS:
        try:
            contenders[name] = _running(name)
        except SandboxMissing as missing:
            print(missing, file=sys.stderr)
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        spent_on = dict.fromkeys(contenders, 0.0)
        for _ in range(rounds):
            for name, run in contenders.items():
                start = time.perf_counter()
                run()
                spent_on[name] += time.perf_counter() - start
        for name, seconds in spent_on.items():
            found[name].append(seconds / rounds)
    times = {name: Times(tuple(seconds)) for name, seconds in found.items()}
    bare = times["python -c pass"]
    for name, spent in times.items():
        middle, low = spent.median * 1e6, spent.minimum * 1e6
        results.spent.append(Spent("wall", f"a run in {name}", "async", "r", "wall", middle, low))
        if name in GOALS:
            middle, low = ratio(spent, bare)
            work = f"a run in {name} against python -c pass"
            results.ratios.append(Ratio("wall", work, "async", "r/p", middle, low, GOALS[name]))


def _bare() -> None:
    subprocess.run([sys.executable, "-c", "pass"], check=True)


def _running(name: str) -> Callable[[], object]:
    runner = code_runner(name)

    def run() -> None:
        assert asyncio.run(runner.run(CodeJob(code="pass"))).ok

    return run
