"""Cassette: the answers of a test's calls in a file, recorded once and replayed from then on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, convert_to_messages

from mergepoint.models.view import View
from mergepoint.record.lines import JournalError
from mergepoint.record.read_journal import read_journal
from mergepoint.record.record import CallRecord
from mergepoint.record.redact import Redact, safe_texts
from mergepoint.run.context import RunContext
from mergepoint.run.graph import Form
from mergepoint.run.recorder import Recorder
from mergepoint.run.runner import ChatRunner
from mergepoint.testing.engrave import RUN, engrave, steady
from mergepoint.testing.tape import (
    CassetteError,
    CassetteRecorder,
    Played,
    Tape,
    playable,
    strange,
)
from mergepoint.tree.node import Node

__all__ = ["Cassette", "CassetteError", "Mode"]

Mode = Literal["once", "replay", "rewrite"]


class Cassette:
    """Answers in a file: recorded the first time, replayed without a call of a model from then on.

    Give `recorder` to any graph in `config={"callbacks": [cassette.recorder]}`, begin a run with
    `ctx=cassette.context()`, or let `run` do it. As a context manager, or by `finish`, it ends:
    a recording is written, a replay checked. When the body fails, nothing is written.

    `mode` is "once" (record if there is no file), "replay" (never record) or "rewrite" (record
    anew). Keys of known forms are masked in what is written, and `redact` is applied to every text
    before; what it gave, it leaves as it is. Requests are compared redacted.
    With `allow_unused` answers may be left over. `way_out` tells readers of an error how to record
    again.

    Raises CassetteError for a file that is missing where nothing may be recorded, and JournalError
    for one that was changed by hand.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        mode: Mode = "once",
        redact: Redact | None = None,
        allow_unused: bool = False,
        way_out: str = "to record again, open the cassette with mode='rewrite'",
    ) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"mode is one of {', '.join(map(repr, get_args(Mode)))}, not {mode!r}")
        self.path = Path(path)
        self.recording = mode == "rewrite" or (mode == "once" and not self.path.exists())
        self._allow_unused = allow_unused
        self._way_out = way_out
        self._redact = None if redact is None else steady(redact)
        self._answers = Tape() if self.recording else self._played()
        self._recorder = CassetteRecorder(self._answers, seen=self._seen)
        self._runs = 0
        self._finished = False

    @property
    def recorder(self) -> Recorder:
        """Give the callback handler that records or answers the calls of a graph."""
        return self._recorder

    @property
    def records(self) -> tuple[CallRecord, ...]:
        """Give the records of the calls so far, live or replayed."""
        return self._recorder.journal.records

    def context(
        self, *, inputs: Mapping[str, Any] | None = None, messages: Sequence[Any] = ()
    ) -> RunContext:
        """Give a context whose runs are recorded or answered, with the same run id each time."""
        self._runs += 1
        given: list[BaseMessage] = convert_to_messages(messages)
        return RunContext(
            run_id=f"{RUN}-{self._runs}",
            inputs=dict(inputs or {}),
            messages=given,
            config={"callbacks": [self._recorder]},
        )

    def run(
        self,
        tree: Node,
        *,
        model: str | BaseChatModel | None = None,
        inputs: Mapping[str, Any] | None = None,
        messages: Sequence[Any] = (),
        form: Form = "subgraphs",
        view: View | None = None,
    ) -> RunContext:
        """Run a tree, and give its context: `text`, `messages`, `outputs`, `steps`.

        The model is made in a replay too, and never called. Raises what `ChatRunner.run` does,
        and ReplayMiss with a diff for a call that is not on the cassette.
        """
        runner = ChatRunner(model, form=form, view=view)
        return runner.run(self.context(inputs=inputs, messages=messages), tree)

    def finish(self) -> None:
        """Write what was recorded, or check that what was replayed fits; once.

        Raises CassetteError for a recording that could not be replayed and for answers that no
        call used, and ReplayMiss where one was raised and caught by someone on its way.
        """
        if self._finished:
            return
        self._finished = True
        if isinstance(self._answers, Tape):
            self._check_recorded(self._answers.records)
            engrave(self.path, self._answers.records, self._redact)
        else:
            self._check_played(self._answers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()

    def _seen(self, value: Any) -> Any:
        return safe_texts(value, self._redact)

    def _played(self) -> Played:
        if not self.path.exists():
            raise CassetteError(
                f"there is no cassette {self.path}, and none may be recorded; {self._way_out}"
            )
        try:
            records = read_journal(self.path)[1]
        except JournalError as error:
            raise JournalError(f"{error}\n{self._way_out}") from error
        return Played(records, seen=self._seen, way_out=self._way_out)

    def _check_recorded(self, records: Sequence[CallRecord]) -> None:
        if paths := [one.path for one in records if one.kind == "step" and not one.key.run]:
            raise CassetteError(strange(paths))
        found = {one.key.full_path for one in playable(records)}
        lost = [one for one in records if one.error and one.key.full_path not in found]
        if lost:
            errors = ", ".join(f"{one.key.full_path} ({(one.error or {})['type']})" for one in lost)
            raise CassetteError(
                f"calls failed without an answer: {errors}. A cassette holds answers and would "
                "not replay that; nothing was written. Failures are tested with a ScriptedModel"
            )
        if not found and not self._allow_unused:
            raise CassetteError(
                f"no call reached the cassette {self.path}; run the graph with "
                'config={"callbacks": [cassette.recorder]}, or with ctx=cassette.context()'
            )

    def _check_played(self, answers: Played) -> None:
        if answers.misses:
            raise answers.misses[0]
        unused = [record.key.full_path for record in answers.unused]
        if unused and not self._allow_unused:
            raise CassetteError(
                f"{len(unused)} answers on {self.path} were not asked for: {', '.join(unused)}; "
                f"{self._way_out}, or allow it with allow_unused=True"
            )
