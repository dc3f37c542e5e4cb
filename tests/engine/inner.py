"""Functions that ask models, and recorders that find their answers again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mergepoint import Block, Call, CallContext, Recorder, Step
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.recorded_answers import RecordedAnswers, ResumeSource
from mergepoint.journal.stores import MemoryJournal
from mergepoint.testing.scripted_model import ScriptedModel

Function = Callable[[CallContext], Any]


class Kept(MemoryJournal):
    """A journal in memory whose records are looked up, as those on disk are."""

    keyed = True


def listening(answers: RecordedAnswers | None = None) -> Recorder:
    """Return a recorder that works out requests."""
    return Recorder(Kept(), answers=answers)


def resumed(before: Recorder | Iterable[CallRecord]) -> Recorder:
    """Return a recorder that goes on with a run."""
    records = before.journal.records if isinstance(before, Recorder) else tuple(before)
    return Recorder(Kept(records), answers=ResumeSource(records))


def around(target: Any, **fields: Any) -> Block:
    """Return a Call between two steps; its result is captured."""
    call = Call(target, name="ask", capture_key="said", **fields)
    return Block([Step("Write.", name="write"), call, Step("Go on.", name="go")], name="root")


def model(inside: Any, **fields: Any) -> ScriptedModel:
    """Return a model that answers both steps, and a function with what is given here."""
    steps = {"root/write": "a text", "root/go": "on"}
    return ScriptedModel(by_path={**steps, "root/ask": inside}, **fields)


def made(kind: type[ScriptedModel], *answers: Any, **fields: Any) -> ScriptedModel:
    """Return a scripted model of a kind; type checkers see the fields of such kinds alone."""
    known: Any = kind
    found: ScriptedModel = known(list(answers), **fields)
    return found


def inner(recorder: Recorder) -> list[CallRecord]:
    """Return the records of models inside of functions."""
    return [record for record in recorder.journal.records if record.kind == "inner"]


def asking(prompt: Any = "Inner?", **options: Any) -> Function:
    """Return a function that asks the run's model once."""

    def ask(ctx: CallContext) -> str:
        return str(ctx.model().invoke(prompt, **options).text)

    return ask
