"""Session: what one more turn costs in a session of some turns, and in a long one."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count

from tests.benchmarks.model import EchoModel
from tests.benchmarks.result import Ratio, Results, Spent
from tests.benchmarks.timing import Clock, Times, ratio

from mergepoint import SessionMemory, SessionMessage, Step, StepType, TurnRunner, WorkingStep
from mergepoint.session.entries import Entry, Role, SessionHeader
from mergepoint.session.session_store import FileSessions

ONCE = 10
"""Turns for one time: they make a session longer by hardly anything."""

_CLOCKS: dict[Clock, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}
_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
_TEXT = "Some forty to fifty characters of a usual answer. "


def one_more_turn(sizes: Sequence[int], repetitions: int, results: Results) -> None:
    """Time one more turn, and one more answer without a run, in sessions of these turns."""
    with tempfile.TemporaryDirectory() as folder:
        memories = {turns: _session(FileSessions(folder), turns) for turns in sizes}
        turns = TurnRunner(Step("Answer.", name="answer"), model=EchoModel())
        number = count()

        def turn(memory: SessionMemory) -> None:
            turns.run(memory, f"Question {next(number)}.")

        def answer(memory: SessionMemory) -> None:
            memory.add_response("assistant", f"Answer {next(number)}.")

        for clock in _CLOCKS:
            _told("one more turn", turn, memories, clock, repetitions, results)
            _told("one more answer", answer, memories, clock, repetitions, results)


def _told(
    work: str,
    act: Callable[[SessionMemory], None],
    memories: dict[int, SessionMemory],
    clock: Clock,
    repetitions: int,
    results: Results,
) -> None:
    found: dict[int, list[float]] = {size: [] for size in memories}
    for _ in range(repetitions):
        for size, memory in memories.items():
            gc.collect()
            start = _CLOCKS[clock]()
            for _ in range(ONCE):
                act(memory)
            found[size].append((_CLOCKS[clock]() - start) / ONCE)
    times = {size: Times(tuple(seconds)) for size, seconds in found.items()}
    first, *others = times
    for size, spent in times.items():
        label = f"{work} after {size:,}"
        middle, low = spent.median * 1e6, spent.minimum * 1e6
        results.spent.append(Spent(clock, label, "sync", "s", clock, middle, low))
    for size in others:
        label = f"{work} after {size:,} against {first:,}"
        middle, low = ratio(times[size], times[first])
        results.ratios.append(Ratio(clock, label, "sync", "s/s", middle, low, 1.15))


def _session(sessions: FileSessions, turns: int) -> SessionMemory:
    """Return a session of so many turns, each with a plan, code and its run."""
    header = SessionHeader(session_id=f"s{turns}", created_at=_BEGAN)
    return sessions.begin(header, _entries(f"s{turns}", turns))


def _entries(name: str, turns: int) -> Iterator[Entry]:
    for turn in range(1, turns + 1):
        at = _BEGAN + timedelta(seconds=turn)
        stem = f"{name}.{turn}"
        yield _message(f"{stem}/user", "user", turn, at)
        for kind in (StepType.PLAN, StepType.CODEGEN, StepType.EXECUTE):
            yield WorkingStep(
                id=f"{stem}/{kind}", type=kind, turn=turn, created_at=at, content=_TEXT * 4
            )
        yield _message(f"{stem}/answer/1", "assistant", turn, at)


def _message(name: str, role: Role, turn: int, at: datetime) -> SessionMessage:
    said = _TEXT * (1 if role == "user" else 8)
    return SessionMessage(id=name, role=role, content=said, turn=turn, created_at=at)
