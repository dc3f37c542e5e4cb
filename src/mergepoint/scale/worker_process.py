"""A worker process: `python -m mergepoint.scale.worker_process`, started by `WorkerPool`.

It reads {"spec": ...} and then {"input": ...} lines from stdin, and writes {"ready": true},
{"result": ...}, {"beat": true} and {"error": "..."} lines. When stdin ends, it ends.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Any, Final

from mergepoint.core.errors import describe_error
from mergepoint.journal.writer import run_off_loop
from mergepoint.scale.protocol import BatchInput, RunSpec
from mergepoint.scale.worker import BatchWorker

_BEAT_SECONDS: Final = 2.0
_GRACE_SECONDS: Final = 60.0
"""How long runs may take to stop when the driver is gone: calls in progress finish first."""


class _Output:
    """Lines to the driver. Writes block only while the driver doesn't read."""

    def __init__(self) -> None:
        # What user code prints must not get between the lines: its stdout becomes stderr.
        self._file = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(self, message: dict[str, Any]) -> None:
        """Write one line."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        # The driver may be dead; then stdin ends, and this process with it.
        with suppress(BrokenPipeError):
            while data:
                data = data[self._file.write(data) or 0 :]


class _Lines:
    """The lines of stdin, read in a thread: it notices their end while the event loop is blocked.

    If the loop doesn't come to its end after that, the process ends all the same.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.ended = threading.Event()
        threading.Thread(target=self._read, name="mergepoint-stdin", daemon=True).start()

    async def next(self) -> bytes | None:
        """Return the next line, None at the end."""
        return await self._lines.get()

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
        # The loop may be closed already.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._lines.put_nowait, None)
        if not self.ended.wait(_GRACE_SECONDS):
            os._exit(1)


async def _serve(output: _Output) -> int:
    """Serve the driver until stdin ends, and return the exit code."""
    lines = _Lines()
    first = await lines.next()
    if first is None:
        return 0
    try:
        worker = await run_off_loop(BatchWorker, RunSpec.from_plain(json.loads(first)["spec"]))
    except Exception as error:  # noqa: BLE001  (the driver raises it)
        output.send({"error": describe_error(error)})
        return 1
    # What is loaded now stays: without it, each full collection would stop the runs for long.
    gc.collect()
    gc.freeze()
    output.send({"ready": True})
    beating = asyncio.create_task(_beat(output))
    runs: set[asyncio.Task[None]] = set()
    try:
        while (line := await lines.next()) is not None:
            given = BatchInput.from_plain(json.loads(line)["input"])
            run = asyncio.create_task(_run(worker, given, output))
            runs.add(run)
            run.add_done_callback(runs.discard)
    finally:
        for task in (*runs, beating):
            task.cancel()
        await asyncio.gather(*runs, beating, return_exceptions=True)
        await worker.close()
        lines.ended.set()
    return 0


async def _run(worker: BatchWorker, given: BatchInput, output: _Output) -> None:
    try:
        result = await worker.run(given)
    except Exception as error:  # noqa: BLE001  (an error of the store: the driver raises it)
        output.send({"error": describe_error(error), "id": given.id})
    else:
        output.send({"result": result.to_plain()})


async def _beat(output: _Output) -> None:
    while True:
        await asyncio.sleep(_BEAT_SECONDS)
        output.send({"beat": True})


def main() -> None:
    """Serve the driver that started this process."""
    # Ctrl-C reaches every process of the terminal: the driver ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    output = _Output()
    code = asyncio.run(_serve(output))
    if code:
        # The reading thread still has stdin, which the interpreter would wait for at its end.
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
