"""Campaign: runs that are killed at random moments, each resumed until it is done."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.crash.doomed import Order, live
from tests.crash.expected import Calm, calm, differences, lacks, transcript_in
from tests.crash.process import Doomed
from tests.crash.served import Served
from tests.crash.survey import Survey
from tests.crash.trees import turning

from mergepoint.engine.compiler import Form
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.file_journal import store_at
from mergepoint.testing.server import ModelServer

REACH = 16
"""A process is killed before so many more answers have come in."""

PATIENCE = 40
"""Kills of one run, after which it is left alone."""

STOPS = 20
"""Processes of one run that may stop by themselves, at a gate for example, before its end."""

Records = Sequence[CallRecord]


@dataclass(frozen=True)
class Killed:
    """A process that was killed: the answers that had come in, and the records there were."""

    came: frozenset[str]
    records: Records


@dataclass
class Campaign:
    """What one campaign does, to runs of the looping tree that are kept at a place.

    `latency` is how long the model takes, in seconds, give or take a half. Every second run is
    on an event loop. `tell` is called after each run.
    """

    runs: str
    form: Form
    latency: float
    seed: int = 0
    tell: Callable[[Survey], None] = lambda survey: None
    survey: Survey = field(default_factory=Survey)

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.seed} {self.form}")  # noqa: S311  (no secrets)
        self._store = store_at(self.runs)

    def of(self, kills: int) -> Survey:
        """Kill that many processes; what is wrong with the ends of their runs is in the survey."""
        for number in count(1):
            self._run(f"r{number}", min(PATIENCE, kills - self.survey.kills))
            self.tell(self.survey)
            if self.survey.kills >= kills:
                break
        return self.survey

    def start(self, url: str, run: str, attempt: int) -> Doomed:
        """Start a process that goes on with a run."""
        on_loop = self.survey.runs % 2 == 1
        return Doomed(live, Order(url, self.runs, run, self.form, attempt, on_loop))

    def attend(self, process: Doomed) -> None:
        """Wait for the end of a process, or for the moment at which it is to be killed.

        The moment is some answers and a part of an answer away, so that it hits every phase
        however fast the machine is.
        """
        answers = self.chance.randrange(REACH)
        process.hear(lambda: bool(process.told) and len(process.all("came")) >= answers)
        process.pause(self.chance.uniform(0.0, 1.5 * self.latency))

    def spare(self, process: Doomed) -> None:
        """Wait for the end of a process."""
        process.hear(lambda: False)

    def hit(self, process: Doomed, records: Records) -> None:
        """Count a kill."""
        self.survey.hit(len(records), records[-1].path if records else "nothing on record")

    def calm(self, run: str) -> Calm:
        """Return the same run undisturbed."""
        return calm(turning, run)

    def wrong(self, run: str, end: Any, undisturbed: Calm) -> Iterator[str]:
        """Yield what is not as it should be at the end of a run."""
        yield from differences(turning, self._store, run, end, undisturbed)
        yield from lacks(transcript_in(self._store, run), end, undisturbed)

    def _records(self, run: str) -> Records:
        """Return the records that are whole, whatever a kill left behind them."""
        return self._store.read(run)[1] if self._store.has(run) else ()

    def _run(self, run: str, most: int) -> None:
        """Run until done, killed at most so often, and count what happened.

        Raises AssertionError where process after process ends by itself and without the run's end.
        """
        served, killed, survey = Served(self.latency), list[Killed](), self.survey
        with ModelServer(served.answer) as server:
            while True:
                with self.start(server.url, run, len(killed)) as process:
                    (self.attend if len(killed) < most else self.spare)(process)
                came, records = frozenset(process.all("came")), self._records(run)
                survey.came += len(came)
                survey.lost += len(set(process.all("kept")) - {one.path for one in records})
                if ends := process.all("end"):
                    break
                if len(killed) >= most + STOPS:
                    raise AssertionError(f"{run}: processes that nobody killed told no end")
                killed.append(Killed(came, records))
                self.hit(process, records)
        survey.runs += 1
        survey.lost += gone(killed, records)
        repeated(killed, served, survey)
        undisturbed = self.calm(run)
        survey.calls += len(undisturbed.asked)
        survey.wrong += [f"{run}: {said}" for said in self.wrong(run, ends[0], undisturbed)]


def gone(killed: Sequence[Killed], records: Iterable[CallRecord]) -> int:
    """Count the records that were there at a kill and are not at the end."""
    there = {_known(record) for one in killed for record in one.records}
    return len(there - {_known(record) for record in records})


def _known(record: CallRecord) -> tuple[str, str, str, str]:
    return (record.path, record.request, record.response, str(record.value))


def repeated(killed: Sequence[Killed], served: Served, survey: Survey) -> None:
    """Count what the server was asked more than once, by what was known when it was."""
    for key, attempts in served.asked.items():
        for after in attempts[1:]:
            before = killed[:after]
            came = any(key in one.came for one in before)
            survey.again += came
            survey.in_flight += not came
            survey.lost += any(key in record.response for one in before for record in one.records)
