"""Serve a model of half a second until stdin ends: `python tests/benchmarks/model_server.py`."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])

from tests.scale.fleet import CountingModel

LATENCY = 0.5


def main() -> None:
    """Print the address, and serve."""
    with CountingModel(delay=LATENCY) as model:
        print(model.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
