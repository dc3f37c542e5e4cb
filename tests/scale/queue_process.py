"""A worker of a queue in a process, which is believed dead after three seconds of silence."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from mergepoint.apps.cli.enqueue import carry_out
from mergepoint.journal.file_journal import store_at
from mergepoint.scale.job_queue import open_queue
from mergepoint.scale.queue_worker import JobEvent, QueueWorker

CONCURRENCY = 4


def _write(event: JobEvent) -> None:
    alone = event.data.get("alone", False)
    plain = {"event": event.kind, "run_id": event.run_id, "alone": alone, "worker": os.getpid()}
    sys.stdout.write(json.dumps(plain) + "\n")
    sys.stdout.flush()


async def main(url: str) -> None:
    """Take runs until the process is ended."""

    async def run_order(order: Mapping[str, Any]) -> Mapping[str, Any]:
        return await carry_out(store_at(url), order)

    async with open_queue(url) as queue:
        await QueueWorker(
            queue, concurrency=CONCURRENCY, run_order=run_order, on_event=_write, stalled=3.0
        ).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
