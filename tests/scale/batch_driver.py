"""A driver of a batch, for tests that kill it: `batch_driver.py OUT NUMBER WORKERS`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mergepoint.scale import batch

TARGET = f"{Path(__file__).with_name('counted_tree.py')}:tree"


async def drive(out: str, number: int, workers: int) -> None:
    """Run the inputs to their end."""
    topics = [{"id": f"q{position}", "topic": f"t{position}"} for position in range(number)]
    async for _ in batch(TARGET, topics, out=out, workers=workers, concurrency=40):
        pass


if __name__ == "__main__":
    asyncio.run(drive(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
