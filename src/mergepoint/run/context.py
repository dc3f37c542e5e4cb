"""RunContext: what a run is given and what it leaves, on the caller's side."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from mergepoint.core.merge import last_response
from mergepoint.record.record import CallRecord
from mergepoint.record.transcript import Transcript
from mergepoint.record.usage import Usage, usage_by_path, usage_of
from mergepoint.run.facts import new_run_id, unused_run_id, whole_messages
from mergepoint.run.recorder import Recorder
from mergepoint.tree.node import Node, Order, root_path


@dataclass(frozen=True, slots=True)
class Turn:
    """One tree that ran in a context: its id, and what it started from."""

    run_id: str
    tree: Node
    base: tuple[BaseMessage, ...]
    inputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a turn ended."""

    text: str = ""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, str] | None = None


@dataclass(kw_only=True)
class RunContext:
    """A conversation, inputs and outputs, and what happened to them.

    A run reads `messages` and `inputs`, and changes `messages` and `outputs` once, when it has
    succeeded. When it fails they stay as they were, and `error` says {type, message, path, node}.
    `steps` holds the answered calls. A context may be run again, for another turn of the same
    conversation: the ids of the second turn start with `<run_id>.2`. `meta` is your own data; it
    is kept in the header of a run's journal.
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
    ended: dict[str, Ended] = field(default_factory=dict, repr=False)
    earlier: tuple[CallRecord, ...] = field(default=(), repr=False)  # of turns in other journals

    @cached_property
    def rng(self) -> random.Random:
        """Give the random numbers of the run; prompts get their own, by path."""
        return random.Random(self.seed)  # noqa: S311  (sampling, no secrets)

    @property
    def steps(self) -> tuple[CallRecord, ...]:
        """Give the answered calls of all turns, each turn in tree order."""
        return tuple(record for turn in self.turns for record in self.transcript(turn).records)

    @property
    def usage(self) -> Usage:
        """Give what the calls of all turns used, failed ones too; answers taken over cost nothing.

        By path: `usage_by_path`.
        """
        return usage_of(self._records())

    @property
    def usage_by_path(self) -> dict[str, Usage]:
        """Give what all turns used at each path and below it, so that parents add up.

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
        """Give the last assistant message of the conversation, or nothing."""
        response = last_response(self.messages)
        return str(response.text) if response is not None else ""

    def run_id_for(self, tree: Node) -> str:
        """Give the id that the next turn with this tree will have."""
        number = len(self.turns) + 1
        run_id = self.run_id if number == 1 else f"{self.run_id}.{number}"
        return unused_run_id(run_id, root_path(tree), self.messages)

    def begin(self, tree: Node, inputs: Mapping[str, Any]) -> Turn:
        """Open a turn."""
        self.messages = whole_messages(self.messages)
        run_id = self.run_id_for(tree)
        turn = Turn(run_id, tree, tuple(self.messages), dict(inputs))
        self.turns.append(turn)
        self.error = None
        return turn

    def settle(self, turn: Turn, kept: Sequence[BaseMessage], outputs: Mapping[str, Any]) -> None:
        """Close a turn that succeeded: the conversation grows by what its root kept."""
        self.messages = [*turn.base, *kept]
        self.outputs = dict(outputs)
        response = last_response(kept)
        text = str(response.text) if response is not None else ""
        self.ended[turn.run_id] = Ended(text, dict(outputs))

    def fail(self, error: BaseException) -> None:
        """Close a turn that failed: nothing but `error` changes."""
        self.error = {
            "type": type(error).__name__,
            "message": str(error),
            "path": getattr(error, "pipeline_path", "") or "",
            "node": getattr(error, "pipeline_node_name", "") or "",
        }
        self.ended[self.turns[-1].run_id] = Ended(error=dict(self.error))

    def transcript(self, turn: Turn | None = None) -> Transcript:
        """Give the transcript of a turn, by default the last."""
        turn = turn or self.turns[-1]
        ended = self.ended.get(turn.run_id, Ended())
        return Transcript.of(
            (*self.earlier, *self.recorder.journal.records),
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
