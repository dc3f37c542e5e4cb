"""GateCampaign: runs with open questions are killed before, between and after the answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from langgraph.types import Durability
from tests.crash.attended import Attended, Kind, Way, attend
from tests.crash.campaign import Campaign, Records
from tests.crash.expected import Calm, calm, differences, lacks
from tests.crash.person import Person, decision_at
from tests.crash.process import Doomed
from tests.crash.served import answer_to
from tests.crash.survey import Asked
from tests.crash.trees import gated

from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.replay import answer_questions
from mergepoint.journal.transcript import transcript_of

LONGEST = 0.7
"""Seconds within which a process is killed that is killed whatever it does."""

SIDES = {"work/both/left", "work/both/deep/right"}
DURABILITIES: tuple[Durability, ...] = ("sync", "async", "exit")


@dataclass(kw_only=True)
class GateCampaign(Campaign):
    """What one campaign does to runs of the tree with gates.

    `checkpoints` is where the saver keeps its own. Its durability changes from run to run.
    """

    saver: Kind
    checkpoints: str
    way: Way
    survey: Asked = field(default_factory=Asked)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chance.seed(f"{self.seed} {self.form} {self.saver} {self.way}")
        self._person = Person(self.chance, self.survey, all_listed=self.way != "person")

    def start(self, url: str, run: str, attempt: int) -> Doomed:
        """Start a process that goes on with a run."""
        if attempt == 0:
            self._person.begin()
        self._run_id = run
        return Doomed(
            attend,
            Attended(
                url=url,
                runs=self.runs,
                run=run,
                form=self.form,
                attempt=attempt,
                saver=self.saver,
                checkpoints=self.checkpoints,
                way=self.way,
                durability=DURABILITIES[self.survey.runs % len(DURABILITIES)],
            ),
        )

    def attend(self, process: Doomed) -> None:
        """Answer what is asked, until the process is to be killed.

        That is a while after a question came or an answer went, or at any moment. Short whiles
        are as likely as long ones: from a tenth of a millisecond to a fifth of a second.
        """
        fate = self.chance.choice(("asked", "answered", "answered", "any"))
        times = self.chance.choice((1, 1, 1, 2, 3))
        moment = time.monotonic() + self.chance.uniform(0.0, LONGEST)
        self._answer(process, fate, times, moment if fate == "any" else float("inf"))
        if fate != "any":
            process.pause(10 ** self.chance.uniform(-4.0, -0.7))
        self._person.hear(process.told)

    def spare(self, process: Doomed) -> None:
        """Answer what is asked until the process ends."""
        self._answer(process, "", 0, float("inf"))

    def hit(self, process: Doomed, records: Records) -> None:
        """Count a kill by how many answers were on record, and by what was under way."""
        person = self._person
        person.hear(process.told)
        answered = {record.path for record in records if _decides(record)}
        one = " (one of the two)" if len(answered & SIDES) == 1 else ""
        self.survey.hit(len(answered), f"{person.situation(answered)}{one}")
        person.goes_on(answered)

    def calm(self, run: str) -> Calm:
        """Return the same run undisturbed."""
        return calm(gated, run, lambda question: decision_at(question.path))

    def wrong(self, run: str, end: Any, undisturbed: Calm) -> Iterator[str]:
        """Yield what is not as it should be at the end of a run, and count what was swapped."""
        header, records = self._store.read(run)
        gates = [record for record in records if _decides(record)]
        self.survey.questions += len(gates)
        for gate in gates:
            if gate.value != decision_at(gate.path):
                self.survey.swapped += 1
                yield f"at {gate.path} stands {gate.value}"
        yield from differences(gated, self._store, run, end, undisturbed)
        yield from lacks(transcript_of(header, records), end, undisturbed)

    def _answer(self, process: Doomed, fate: str, times: int, until: float) -> None:
        person = self._person
        while process.open and time.monotonic() < until:
            process.hear(lambda: person.hear(process.told), until=until)
            if not person.open:
                continue
            times -= 1
            if fate == "asked" and not times:
                return
            answers = person.answers()
            if self.way == "journal":
                answer_questions(self._store, self._run_id, gated(answer_to), answers)
                person.knows(answers)
            process.say(answers)
            if fate == "answered" and not times:
                return


def _decides(record: CallRecord) -> bool:
    """Return whether a record is a decision; a gate's question stands on record too."""
    return record.kind == "gate" and record.answered
