"""kill -9 at random moments: a run is resumed until it is done, and nothing is paid twice."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.run.crash import live, tree

from mergepoint.record.file_journal import read_journal
from mergepoint.record.transcript import read_transcript
from mergepoint.run.graph import Form
from mergepoint.testing.server import ModelServer

STEPS = 15
MARGIN = 0.02
"""Seconds between an answer's leaving the server and its being on record, on a busy machine."""


@dataclass
class Ledger:
    """What the server was asked, and when each answer left it."""

    left: dict[str, list[float]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answers(self) -> int:
        """Give how many answers have left."""
        with self.lock:
            return sum(map(len, self.left.values()))

    def answer(self, body: dict[str, Any]) -> str:
        """Answer by what was said, so that a wrong context gives a wrong answer."""
        said = json.dumps(body["messages"])
        time.sleep(0.004)
        with self.lock:
            self.left.setdefault(said, []).append(time.monotonic())
        return answer_to(said)


def answer_to(said: str) -> str:
    """Give the one answer to what was said."""
    return "answer " + hashlib.sha256(said.encode()).hexdigest()[:12]


def answers_on_record(folder: Path) -> set[str]:
    """Give the answers that are whole on disk, whatever a kill left behind them."""
    journal = folder / "r1" / "journal.jsonl"
    written = journal.read_bytes() if journal.exists() else b""
    return set(
        re.findall(r'"response":"(answer \w+)"', written[: written.rfind(b"\n") + 1].decode())
    )


@dataclass
class Survey:
    """What many killed runs came to."""

    kills: int = 0
    calls: int = 0
    lost: int = 0
    again: int = 0
    in_flight: int = 0
    phases: Counter[int] = field(default_factory=Counter)


def one_run(folder: Path, form: Form, chance: random.Random, survey: Survey) -> str:
    """Run until done, killed at random moments, and give the text at the end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.run.crash"])
    ledger = Ledger()
    killed: list[float] = []
    kept: list[set[str]] = []
    with ModelServer(ledger.answer) as server:
        for attempt in range(60):
            ready = context.Event()
            process = context.Process(target=live, args=(server.url, str(folder), form, ready))
            process.start()
            assert ready.wait(60)
            wait_for(process, ledger, chance, doomed=attempt < 40)
            if process.exitcode is not None:
                break
            process.kill()
            killed.append(time.monotonic())
            process.join()
            kept.append(answers_on_record(folder))
            survey.phases[len(kept[-1])] += 1
        assert process.exitcode == 0
    survey.kills += len(killed)
    survey.calls += STEPS
    for said, times in ledger.left.items():
        for moment, answers in zip(killed, kept, strict=True):
            survey.lost += answer_to(said) in answers and times[-1] > moment + MARGIN
        for first, _ in pairwise(times):
            after = min(moment for moment in killed if moment > first - MARGIN)
            finished = after - first > MARGIN
            survey.again += finished
            survey.in_flight += not finished
    return check(folder)


def wait_for(process: Any, ledger: Ledger, chance: random.Random, *, doomed: bool) -> None:
    """Wait for the process's end, or for the moment at which it is to be killed.

    The moment is some answers and some milliseconds away, so that it hits every phase however
    fast the machine is.
    """
    until = ledger.answers() + chance.randrange(7) if doomed else STEPS**3
    while process.exitcode is None and ledger.answers() < until:
        process.join(0.001)
    if doomed:
        process.join(chance.uniform(0.0, 0.015))


def check(folder: Path) -> str:
    """Hold the transcript against the journal; give the text at the end."""
    transcript = read_transcript(folder / "r1" / "transcript.json")
    records = read_journal(folder / "r1" / "journal.jsonl")[1]
    answered = [record.path for record in records if record.answered]
    assert sorted(answered) == sorted(record.path for record in transcript.records)
    assert len(answered) == len(set(answered)) == STEPS
    state = transcript.replay().state
    assert state is not None
    assert str(state.messages[-1].text) == transcript.text
    return transcript.text


def surveyed(kills: int, tmp_path: Path, form: Form, tell: Callable[[str, object], None]) -> Survey:
    """Kill runs that many times, and compare their ends with that of a run that was left alone."""
    chance = random.Random(f"{kills} {form}")  # noqa: S311  (moments, no secrets)
    survey, expected = Survey(), undisturbed(tmp_path / "calm", form)
    number = 0
    while survey.kills < kills:
        assert one_run(tmp_path / str(number), form, chance, survey) == expected
        number += 1
    tell("kills", f"{survey.kills} kills, {survey.calls} calls, {survey.again} made again")
    print(survey)
    return survey


def undisturbed(folder: Path, form: Form) -> str:
    """Give the text at the end of a run that nothing happened to."""
    with ModelServer(Ledger().answer) as server:
        live(server.url, str(folder), form, threading.Event())
    return check(folder)


def test_the_tree_has_as_many_steps_as_counted() -> None:
    """The counts of this file are those of its tree."""
    assert json.dumps(_shape(tree())).count('"step"') == STEPS


def _shape(node: Any) -> Any:
    return [node.kind, [_shape(child) for child in getattr(node, "nodes", ())]]


def test_a_killed_run_ends_as_if_it_had_not_been(
    tmp_path: Path, form: Form, record_property: Callable[[str, object], None]
) -> None:
    """Whenever it is killed, a resumed run comes to the same end, and pays no answer twice."""
    survey = surveyed(8, tmp_path, form, record_property)
    assert survey.lost == 0


@pytest.mark.campaign
def test_many_killed_runs_pay_next_to_nothing_twice(
    tmp_path: Path, form: Form, record_property: Callable[[str, object], None]
) -> None:
    """In 100 kills nothing on record and at most 0.2 % of finished calls is made again."""
    survey = surveyed(100, tmp_path, form, record_property)
    assert survey.lost == 0
    assert survey.again <= 0.002 * survey.calls
