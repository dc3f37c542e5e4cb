"""WorkerPool: worker processes on this machine, their inputs, heartbeats, deaths, and successors.

A worker is a process with a `BatchWorker` (`worker_process`). It reads lines of JSON from its
stdin and writes lines of JSON to its stdout. The end of stdin ends it, so no worker survives its
driver. One task changes the state of the pool: it takes events, of which each is one line, one
death, one input, or one tick of the clock.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mergepoint.scale.protocol import LOST, BatchError, BatchInput, BatchResult, RunSpec, run_id_of

_LONGEST_LINE: Final = 1 << 30
_MOST_FAILED_STARTS: Final = 3
_START_SECONDS: Final = 300.0
"""How long a worker may prepare its target: imports of a cold machine take a while."""

_GRACE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Trial:
    """An input, and how many workers have died with it."""

    value: BatchInput
    deaths: int = 0


@dataclass(eq=False, slots=True)
class _Process:
    """A worker process and the inputs that it has."""

    process: asyncio.subprocess.Process
    heard: float
    reading: asyncio.Task[None] | None = None
    ready: bool = False
    trials: dict[str, _Trial] = field(default_factory=dict)
    reserved: bool = False
    """It gets no other input until it has run one alone, whose next death is the last."""

    def send(self, message: dict[str, Any]) -> None:
        """Send a line. A dead worker's end is noticed where its lines are read."""
        stdin = self.process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(json.dumps(message).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class _Event:
    """A line of a worker (None at its end), an input (None at the end), an error, or a tick."""

    worker: _Process | None = None
    line: bytes | None = None
    given: BatchInput | None = None
    error: Exception | None = None
    tick: bool = False


class WorkerPool:
    """The worker processes of a batch.

    Args:
        spec: What they run.
        workers: Their number.
        concurrency: Most inputs in progress over all workers.
        max_attempts: Number of dead workers after which an input is a failed result.
        heartbeat: Seconds without a line from a worker after which it is killed.
    """

    def __init__(
        self,
        spec: RunSpec,
        *,
        workers: int,
        concurrency: int,
        max_attempts: int,
        heartbeat: float,
    ) -> None:
        self._spec = spec
        self._count = workers
        self._each = max(1, -(-concurrency // workers))
        self._max_attempts = max_attempts
        self._heartbeat = heartbeat
        self._workers: list[_Process] = []
        self._again: deque[_Trial] = deque()
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None
        self._source_ended = False
        self._failed: Exception | None = None
        self._failed_starts = 0

    async def results(self, inputs: AsyncIterator[BatchInput]) -> AsyncIterator[BatchResult]:
        """Yield one result for each input, as they finish. Closing it ends all workers."""
        ticking = asyncio.create_task(self._tick())
        try:
            for _ in range(self._count):
                await self._start()
            self._fill(inputs)
            while not self._is_over:
                event = await self._events.get()
                for result in self._handle(event):
                    yield result
                while len(self._workers) < self._count and not self._is_over:
                    await self._start()
                self._fill(inputs)
            if self._failed is not None:
                raise self._failed
        finally:
            tasks = [ticking, *filter(None, [self._reading])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._end()

    @property
    def _is_over(self) -> bool:
        """Return whether no run is in progress, and none is to begin."""
        nothing_left = self._source_ended and not self._again
        idle = not any(one.trials for one in self._workers)
        return idle and (nothing_left or self._failed is not None)

    # Events.

    def _handle(self, event: _Event) -> Iterator[BatchResult]:
        if event.tick:
            self._kill_silent()
        elif event.worker is not None and event.line is None:
            yield from self._buried(event.worker)
        elif event.worker is not None and event.line is not None:
            event.worker.heard = _now()
            yield from self._read(event.worker, json.loads(event.line))
        else:
            self._reading = None
            if event.error is not None:
                self._failed = self._failed or event.error
            if event.given is None:
                self._source_ended = True
            else:
                self._again.append(_Trial(event.given))

    def _read(self, worker: _Process, message: dict[str, Any]) -> Iterator[BatchResult]:
        if "ready" in message:
            worker.ready, self._failed_starts = True, 0
        elif "result" in message:
            result = BatchResult.from_plain(message["result"])
            trial = worker.trials.pop(result.id)
            worker.reserved = worker.reserved and bool(worker.trials)
            yield replace(result, attempts=trial.deaths + 1, number=trial.value.number)
        elif "error" in message:
            # A refused spec or a store that is down: another worker would meet it too.
            self._failed = self._failed or BatchError(message["error"])
            worker.trials.pop(message.get("id", ""), None)

    def _buried(self, worker: _Process) -> Iterator[BatchResult]:
        """Queue a dead worker's inputs again. Yield a result for each that had its last try."""
        self._workers.remove(worker)
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= _MOST_FAILED_STARTS and self._failed is None:
                self._failed = BatchError(
                    f"{self._failed_starts} worker processes ended before they were ready (exit "
                    f"code {worker.process.returncode}); their stderr says why"
                )
        for trial in worker.trials.values():
            again = replace(trial, deaths=trial.deaths + 1)
            if again.deaths >= self._max_attempts:
                yield self._lost(again, worker)
            elif self._failed is None:
                self._again.append(again)
        worker.trials.clear()

    def _lost(self, trial: _Trial, worker: _Process) -> BatchResult:
        died = "worker" if trial.deaths == 1 else "workers"
        return BatchResult(
            id=trial.value.id,
            status="failed",
            error={
                "type": LOST,
                "message": f"{trial.deaths} {died} died while running this input; the last one "
                f"ended with exit code {worker.process.returncode}",
                "path": "",
            },
            run_id=run_id_of(self._spec.batch, trial.value.id),
            attempts=trial.deaths,
            number=trial.value.number,
        )

    def _kill_silent(self) -> None:
        now = _now()
        for worker in self._workers:
            limit = self._heartbeat if worker.ready else _START_SECONDS
            if now - worker.heard > limit:
                # SIGKILL also ends a process that is paused. Its end is an event of its own.
                with suppress(ProcessLookupError):
                    worker.process.kill()

    # Inputs.

    def _fill(self, inputs: AsyncIterator[BatchInput]) -> None:
        """Send waiting inputs to workers with room, and read the next one if there is room left."""
        if self._failed is not None:
            return
        for _ in range(len(self._again)):
            trial = self._again.popleft()
            worker = self._worker_for(trial)
            if worker is None:
                self._again.append(trial)  # others may fit
                continue
            worker.trials[trial.value.id] = trial
            worker.send({"input": trial.value.to_plain()})
        if self._reading is None and not self._source_ended and self._roomiest() is not None:
            self._reading = asyncio.create_task(self._next(inputs))

    def _worker_for(self, trial: _Trial) -> _Process | None:
        """Return a worker for an input, None if it must wait.

        The last trial of an input is alone on its worker: if that dies, it died of this input, and
        takes no others with it.
        """
        if not trial.deaths or trial.deaths + 1 < self._max_attempts:
            return self._roomiest()
        reserved = next((one for one in self._workers if one.reserved and not one.trials), None)
        if reserved is not None:
            return reserved
        if not any(one.reserved for one in self._workers) and (free := self._roomiest()):
            free.reserved = True
            return None if free.trials else free
        return None

    def _roomiest(self) -> _Process | None:
        """Return the ready worker with the most room, None if none has any."""
        some = [
            one
            for one in self._workers
            if one.ready and not one.reserved and len(one.trials) < self._each
        ]
        return min(some, key=lambda one: len(one.trials), default=None)

    async def _next(self, inputs: AsyncIterator[BatchInput]) -> None:
        try:
            event = _Event(given=await anext(inputs, None))
        except Exception as error:  # noqa: BLE001  (raised after the runs in progress)
            event = _Event(error=error)
        self._events.put_nowait(event)

    # Processes.

    async def _start(self) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "mergepoint.scale.worker_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE,
        )
        worker = _Process(process, _now())
        self._workers.append(worker)
        worker.reading = asyncio.create_task(self._lines(worker))
        worker.send({"spec": self._spec.to_plain()})

    async def _lines(self, worker: _Process) -> None:
        stdout = worker.process.stdout
        while stdout is not None and (line := await stdout.readline()):
            if line.endswith(b"\n"):  # the last line of a killed worker may be torn
                self._events.put_nowait(_Event(worker=worker, line=line))
        await worker.process.wait()
        self._events.put_nowait(_Event(worker=worker))

    async def _tick(self) -> None:
        pause = self._heartbeat / 4
        while True:
            before = _now()
            await asyncio.sleep(pause)
            if _now() - before > 2 * pause:
                # This process was blocked or paused itself: the workers' lines are not read yet.
                for worker in self._workers:
                    worker.heard = _now()
            self._events.put_nowait(_Event(tick=True))

    async def _end(self) -> None:
        """End all workers: they cancel their runs, which lets calls in progress finish."""
        for worker in self._workers:
            if worker.process.stdin is not None:
                worker.process.stdin.close()
        waiting = [asyncio.create_task(one.process.wait()) for one in self._workers]
        if waiting:
            await asyncio.wait(waiting, timeout=_GRACE_SECONDS)
        for worker in self._workers:
            if worker.process.returncode is None:
                with suppress(ProcessLookupError):
                    worker.process.kill()
        readers = [one.reading for one in self._workers if one.reading is not None]
        await asyncio.gather(*waiting, *readers, return_exceptions=True)


def _now() -> float:
    return asyncio.get_running_loop().time()
