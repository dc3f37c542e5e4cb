"""Expected: what a run has to come to, from its journal and from a run that was left alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.crash.doomed import AskingModel, ended, key_of
from tests.crash.served import answer_to
from tests.crash.trees import Ask, Said

from mergepoint import Node, Recorder
from mergepoint.core.merge import State
from mergepoint.engine.interpreter import interpret
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.recorded_answers import ReplaySource
from mergepoint.journal.replay import replay
from mergepoint.journal.stores import Store
from mergepoint.journal.transcript import Transcript, read_transcript, transcript_of
from mergepoint.tree.decision import Answerer

Tree = Callable[[Ask], Node]


@dataclass(frozen=True)
class Calm:
    """A run that nothing happened to: its end, the paths of its records, what was asked."""

    end: dict[str, Any]
    paths: tuple[str, ...]
    asked: tuple[str, ...]


def calm(tree: Tree, run: str, answerer: Answerer | None = None) -> Calm:
    """Run a tree in the interpreter, undisturbed and with nobody else there."""
    recorder, asked = Recorder(answerer=answerer), list[str]()

    def ask(said: Said) -> str:
        asked.append(key_of(said))
        return answer_to(said)

    state = interpret(tree(ask), model=AskingModel(ask=ask), run_id=run, recorder=recorder)
    return Calm(
        ended(state.messages, state.outputs), paths_of(recorder.journal.records), tuple(asked)
    )


def differences(tree: Tree, store: Store, run: str, end: Any, undisturbed: Calm) -> Iterator[str]:
    """Yield what is not as it should be at the end of a run.

    Its result is that of a replay of its journal, of the interpreter with the answers on record,
    and of an undisturbed run; every call is once in its journal.
    """
    header, records = store.read(run)
    replayed = replay(records, tree(_silent), base=State(header.messages)).state
    recorder = Recorder(answers=ReplaySource(records))
    model = AskingModel(ask=_silent)
    interpreted = interpret(tree(_silent), model=model, run_id=run, recorder=recorder)
    if replayed is None or end != ended(replayed.messages, replayed.outputs):
        yield "the end is not that of a replay of the journal"
    if end != ended(interpreted.messages, interpreted.outputs):
        yield "the end is not that of the interpreter with the answers on record"
    if end != undisturbed.end:
        yield "the end is not that of an undisturbed run"
    if paths_of(records) != undisturbed.paths:
        yield f"the journal is not that of an undisturbed run: {apart(records, undisturbed)}"


def lacks(transcript: Transcript, end: Any, undisturbed: Calm) -> Iterator[str]:
    """Yield what a transcript lacks of a run."""
    if paths_of(transcript.records) != undisturbed.paths:
        yield f"the transcript is not that of the run: {apart(transcript.records, undisturbed)}"
    if (transcript.text, transcript.outputs) != (end["messages"][-1][2], end["outputs"]):
        yield "the transcript ends otherwise than the run"


def transcript_in(store: Store, run: str) -> Transcript:
    """Return the transcript of a run: its file, or where there are no files that of the journal."""
    folder = store.folder_of(run)
    if folder is None:
        return transcript_of(*store.read(run))
    return read_transcript(folder / "transcript.json")


def paths_of(records: Sequence[CallRecord]) -> tuple[str, ...]:
    """Return the paths of answered calls, sorted; a path that was recorded twice is there twice."""
    return tuple(sorted(record.path for record in records if record.answered))


def _silent(said: Said) -> str:
    raise AssertionError(f"not on record: {said[-1]}")


def apart(records: Sequence[CallRecord], undisturbed: Calm) -> str:
    """Return which paths are missing from records, and which are too many or twice."""
    found, expected = Counter(paths_of(records)), Counter(undisturbed.paths)
    return f"missing {sorted(expected - found)}, too many {sorted(found - expected)}"
