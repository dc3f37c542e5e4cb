"""Run the benchmarks: `python tests/benchmarks/run.py [measure ...] [--reps 7] [--quick]`."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])
    from tests.benchmarks.command import main

    sys.exit(main())
