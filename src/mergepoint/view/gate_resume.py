"""Resume a run after an answer at a gate: a process of the command, at most one per run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mergepoint.core.errors import MergepointError
from mergepoint.view.live_pages import PAUSE, Address, PageCache


class AnswerRefused(MergepointError):
    """An answer at a gate that wasn't taken; the run is as it was."""


@dataclass(frozen=True, slots=True)
class ResumeCommand:
    """A command line, without the interpreter, that resumes a run with an answer.

    It reads the decision as JSON from stdin, and writes errors as JSON to stdout. `environment` is
    added to that of the server. With `enqueues`, it adds the run to a queue, and another process
    resumes it.
    """

    words: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    enqueues: bool = False


class Resumes:
    """The processes that resume runs.

    Args:
        command: Returns the command that resumes a run, by its id and the path of the gate.
        cache: The pages, which say whether a process writes a run.
    """

    def __init__(self, command: Callable[[str, str], ResumeCommand], cache: PageCache) -> None:
        self._command = command
        self._cache = cache
        self._processes: dict[str, asyncio.subprocess.Process | None] = {}
        self._taken: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, run_id: str, path: str, decision: Mapping[str, Any]) -> None:
        """Resume a run with an answer, and return once its process has taken it.

        Raises AnswerRefused if the gate doesn't wait, if the run is being written, and with the
        message of the command if it refuses.
        """
        while run_id in self._processes:
            # A process that waits at the next gate has left the journal, and ends in a moment.
            state = await self._cache.state(Address("run", (run_id,)))
            if run_id in self._processes and (run_id not in self._taken or state.written):
                raise AnswerRefused("The run is being resumed by an earlier answer.")
            await asyncio.sleep(PAUSE)
        self._processes[run_id] = None
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A task of its own: the viewer may leave before the process ends.
        task = asyncio.create_task(self._resume(run_id, path, decision, taken))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(taken)

    def stop(self) -> list[str]:
        """Interrupt the processes of unfinished runs, as Ctrl-C does, and return their ids."""
        interrupted = []
        for run_id, process in [*self._processes.items()]:
            state = self._cache.state_now(Address("run", (run_id,)))
            # A process that has left the journal is done, and only has to exit.
            if process is not None and (state.written or run_id not in self._taken):
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGINT)
                interrupted.append(run_id)
        return interrupted

    async def _resume(
        self, run_id: str, path: str, decision: Mapping[str, Any], taken: asyncio.Future[None]
    ) -> None:
        try:
            await self._check(run_id, path)
            command = self._command(run_id, path)
            process = await _start(command)
            self._processes[run_id] = process
            reading = asyncio.create_task(process.communicate(json.dumps(decision).encode()))
            while not reading.done() and not taken.done():
                if (await self._cache.state(Address("run", (run_id,)))).written:
                    self._taken.add(run_id)
                    taken.set_result(None)
                else:
                    await asyncio.wait({reading}, timeout=PAUSE)
            out, _ = await reading
            if not taken.done():
                if command.enqueues:
                    refused = process.returncode != 0
                else:
                    # A short run can end between two looks, so the gate says if it was answered.
                    built = await self._cache.built(Address("run", (run_id,)))
                    refused = path in built.waiting
                if refused:
                    raise AnswerRefused(_message(out))
                taken.set_result(None)
        except Exception as error:  # noqa: BLE001  (every error is an answer to the viewer)
            if not taken.done():
                taken.set_exception(error)
        finally:
            self._taken.discard(run_id)
            self._processes.pop(run_id, None)

    async def _check(self, run_id: str, path: str) -> None:
        address = Address("run", (run_id,))
        if (await self._cache.state(address)).written:
            raise AnswerRefused("Another process is writing the run. Answer there.")
        if path not in (await self._cache.built(address)).waiting:
            raise AnswerRefused(f"No gate waits at {path}: it may have been answered elsewhere.")


async def _start(command: ResumeCommand) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mergepoint.apps.cli",
        *command.words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **command.environment},
        # Ctrl-C in the server's terminal must not reach it twice: `stop` interrupts it.
        start_new_session=True,
    )


def _message(out: bytes) -> str:
    """Return the message of a command's error."""
    try:
        return str(json.loads(out)["message"])
    except (ValueError, LookupError, TypeError):
        return "The command that resumes the run ended without a message."
