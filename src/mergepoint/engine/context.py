"""RunContext: the input and the results of runs, on the caller's side."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from mergepoint.core.errors import describe_error
from mergepoint.core.merge import last_response
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.run_constants import new_run_id, unused_run_id
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.transcript import Transcript, Usage, usage_by_path, usage_of
from mergepoint.models.requests import whole_messages
from mergepoint.tree.nodes import Node, Order, root_path
from mergepoint.tree.validate import readable


@dataclass(frozen=True, slots=True)
class Turn:
    """One tree that ran in a context: its id, and what it started from.

    `extra` are the names of those inputs that are outputs of earlier turns.
    """

    run_id: str
    tree: Node
    base: tuple[BaseMessage, ...]
    inputs: Mapping[str, Any]
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The end of a turn: its text, outputs and error."""

    text: str = ""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, str] | None = None


@dataclass(kw_only=True)
class RunContext:
    """A conversation with its inputs, outputs and runs.

    A run reads `messages`, `inputs` and `outputs`. It adds to `messages` and `outputs` once, when
    it succeeds. When it fails, they stay unchanged, and `error` contains type, message, path and
    node. `steps` holds the answered calls. A context may be run again, for another turn of the
    same conversation: the ids of the second turn start with `<run_id>.2`. `meta` is your own data;
    it is kept in the header of a run's journal.
    """

    messages: list[BaseMessage] = field(default_factory=list)
    inputs: dict[str, Any] = field(default_factory=dict)
    run_id: str = field(default_factory=new_run_id)
    seed: int = 0
    config: RunnableConfig = field(default_factory=RunnableConfig)
    meta: Mapping[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    error: dict[str, str] | None = None
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    recorder: Recorder = field(default_factory=Recorder, repr=False)
    turns: list[Turn] = field(default_factory=list, repr=False)
    ended: dict[str, TurnEnd] = field(default_factory=dict, repr=False)
    earlier: tuple[CallRecord, ...] = field(default=(), repr=False)  # of turns in other journals
    _transcripts: dict[str, tuple[Any, Transcript]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def rng(self) -> random.Random:
        """Return the random numbers of the run; prompts get their own, by path."""
        return random.Random(self.seed)  # noqa: S311  (sampling, no secrets)

    @property
    def steps(self) -> tuple[CallRecord, ...]:
        """Return the answered calls of all turns, each turn in tree order."""
        return tuple(record for turn in self.turns for record in self.transcript(turn).records)

    @property
    def usage(self) -> Usage:
        """Return the usage of all turns, failed calls included; reused answers cost nothing.

        By path: `usage_by_path`.
        """
        return usage_of(self._records())

    @property
    def usage_by_path(self) -> dict[str, Usage]:
        """Return the usage of all turns at each path and below it, so that parents add up.

        The paths of a turn are in the order of its tree, those of the first turn come first.
        """
        orders = [Order(turn.tree, root_path(turn.tree)) for turn in self.turns]

        def place(path: str) -> tuple[int, tuple[tuple[int, int], ...]]:
            turn = next((n for n, order in enumerate(orders) if path in order), 0)
            return turn, orders[turn](path)

        return usage_by_path(self._records(), place)

    def _records(self) -> list[CallRecord]:
        own = {turn.run_id for turn in self.turns}
        records = (*self.earlier, *self.recorder.journal.records)
        return [record for record in records if record.key.run in own]

    @property
    def text(self) -> str:
        """Return the last assistant message of the conversation, or nothing."""
        response = last_response(self.messages)
        return str(response.text) if response is not None else ""

    def run_id_for(self, tree: Node) -> str:
        """Return the id that the next turn with this tree will have."""
        number = len(self.turns) + 1
        run_id = self.run_id if number == 1 else f"{self.run_id}.{number}"
        return unused_run_id(run_id, root_path(tree), self.messages)

    def inputs_for(self, tree: Node) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return a turn's inputs, and the names of those that come from `outputs`.

        These are the outputs that the tree can read. As inputs they are in journal and transcript,
        and a resumed run has them too.
        """
        # Most runs begin without outputs: then the tree needs no walk.
        known = readable(tree, self.outputs) if self.outputs else ()
        extra = tuple(key for key in known if key not in self.inputs)
        return {**{key: self.outputs[key] for key in extra}, **self.inputs}, extra

    def begin(self, tree: Node) -> Turn:
        """Open a turn."""
        inputs, extra = self.inputs_for(tree)
        self.messages = whole_messages(self.messages)
        run_id = self.run_id_for(tree)
        turn = Turn(run_id, tree, tuple(self.messages), inputs, extra)
        self.turns.append(turn)
        self.error = None
        return turn

    def settle(self, turn: Turn, kept: Sequence[BaseMessage], outputs: Mapping[str, Any]) -> None:
        """Close a turn that succeeded: conversation and outputs grow by what its root kept."""
        self.messages = [*turn.base, *kept]
        self.outputs = {**self.outputs, **outputs}
        response = last_response(kept)
        text = str(response.text) if response is not None else ""
        self.ended[turn.run_id] = TurnEnd(text, dict(outputs))

    def fail(self, error: BaseException) -> None:
        """Close a turn that failed: nothing but `error` changes."""
        self.error = {
            "type": type(error).__name__,
            "message": describe_error(error),
            "path": getattr(error, "pipeline_path", "") or "",
            "node": getattr(error, "pipeline_node_name", "") or "",
        }
        self.ended[self.turns[-1].run_id] = TurnEnd(error=dict(self.error))

    def transcript(self, turn: Turn | None = None) -> Transcript:
        """Return the transcript of a turn, by default the last."""
        turn = turn or self.turns[-1]
        ended = self.ended.get(turn.run_id, TurnEnd())
        records = (*self.earlier, *self.recorder.journal.records)
        # Writing it and returning it asks for the same transcript twice or more.
        basis = (ended, self.seed, self.created_at, records)
        known = self._transcripts.get(turn.run_id)
        if known is None or known[0] != basis:
            known = basis, self._transcript_of(turn, ended, records)
            self._transcripts[turn.run_id] = known
        return known[1]

    def _transcript_of(
        self, turn: Turn, ended: TurnEnd, records: tuple[CallRecord, ...]
    ) -> Transcript:
        return Transcript.of(
            records,
            turn.tree,
            run_id=turn.run_id,
            at=root_path(turn.tree),
            base=turn.base,
            inputs=turn.inputs,
            outputs=ended.outputs,
            text=ended.text,
            error=ended.error,
            created_at=self.created_at,
            seed=self.seed,
        )
