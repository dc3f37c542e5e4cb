"""Campaign: runs that are killed at random moments, each resumed until it is done."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from tests.crash.doomed import Order, live, records_in
from tests.crash.expected import calm, differences, lacks, transcript_in
from tests.crash.process import Doomed
from tests.crash.served import Served
from tests.crash.survey import Survey
from tests.crash.trees import turning

from mergepoint.record.record import CallRecord
from mergepoint.record.store_at import store_at
from mergepoint.run.graph import Form
from mergepoint.testing.server import ModelServer

REACH = 16
"""A process is killed before so many more answers have come in."""

PATIENCE = 40
"""Kills of one run, after which it is left alone."""


@dataclass(frozen=True)
class Killed:
    """A process that was killed: the answers that had come in, and the records there were."""

    came: frozenset[str]
    records: tuple[CallRecord, ...]


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
    survey: Survey = field(default_factory=Survey, init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(f"{self.seed} {self.form}")  # noqa: S311  (no secrets)
        self._store = store_at(self.runs)

    def of(self, kills: int) -> Survey:
        """Kill that many processes; what is wrong with the ends of their runs is in the survey."""
        for number in count(1):
            self._run(f"r{number}", min(PATIENCE, kills - self.survey.kills))
            self.tell(self.survey)
            if self.survey.kills >= kills:
                break
        return self.survey

    def _run(self, run: str, most: int) -> None:
        """Run until done, killed at random moments at most so often, and count what happened."""
        served, killed, survey = Served(self.latency), list[Killed](), self.survey
        with ModelServer(served.answer) as server:
            while True:
                on_loop = survey.runs % 2 == 1
                order = Order(server.url, self.runs, run, self.form, len(killed), on_loop)
                with Doomed(live, order) as process:
                    self._wait(process, doomed=len(killed) < most)
                came, records = frozenset(process.all("came")), records_in(self._store, run) or ()
                survey.came += len(came)
                survey.lost += len(set(process.all("kept")) - {one.path for one in records})
                if ends := process.all("end"):
                    break
                killed.append(Killed(came, records))
                survey.hit(len(records), records[-1].path if records else "nothing on record")
        survey.runs += 1
        survey.lost += _gone(killed, records)
        _count_repeats(killed, served, survey)
        self._judge(run, ends[0])

    def _wait(self, process: Doomed, *, doomed: bool) -> None:
        """Wait for the end, or for the moment of a kill.

        The moment is some answers and a part of an answer away, so that it hits every phase
        however fast the machine is.
        """
        if not doomed:
            process.hear(lambda: False)
            return
        answers = self._chance.randrange(REACH)
        process.hear(lambda: bool(process.told) and len(process.all("came")) >= answers)
        process.pause(self._chance.uniform(0.0, 1.5 * self.latency))

    def _judge(self, run: str, end: object) -> None:
        undisturbed = calm(turning, run)
        self.survey.calls += len(undisturbed.asked)
        found = [
            *differences(turning, self._store, run, end, undisturbed),
            *lacks(transcript_in(self._store, run), end, undisturbed),
        ]
        self.survey.wrong += [f"{run}: {said}" for said in found]


def _gone(killed: Sequence[Killed], records: Iterable[CallRecord]) -> int:
    """Count the records that were there at a kill and are not at the end."""
    there = {_known(record) for one in killed for record in one.records}
    return len(there - {_known(record) for record in records})


def _known(record: CallRecord) -> tuple[str, str, str]:
    return (record.path, record.request, record.response)


def _count_repeats(killed: Sequence[Killed], served: Served, survey: Survey) -> None:
    """Count what the server was asked more than once, by what was known when it was."""
    for key, attempts in served.asked.items():
        for after in attempts[1:]:
            before = killed[:after]
            came = any(key in one.came for one in before)
            survey.again += came
            survey.in_flight += not came
            survey.lost += any(key in record.response for one in before for record in one.records)
