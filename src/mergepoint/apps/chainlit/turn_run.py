"""The run of a turn: its calls, costs, decisions, and programs, from the journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage

from mergepoint.apps.chainlit.texts import shortened, worded
from mergepoint.apps.cli.output import clock, count, money
from mergepoint.journal.records import CallRecord
from mergepoint.journal.usage import Usage, usage_of
from mergepoint.tree.decision import Decision
from mergepoint.tree.prompts import as_text


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """A model call of a run, for the cost table of an answer."""

    path: str
    model: str
    usage: Usage
    seconds: float
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramExecution:
    """How a program ended: its wall time, and the limit that stopped it, if any."""

    seconds: float
    stopped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateDecision:
    """A person's decision at a gate, and when it was made."""

    path: str
    at: float
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRun:
    """A run's gates, model calls, and programs, by path.

    `kept` contains the subject of each gate as text, by path, and `decided` the decisions.
    `seconds` is the time in which calls were in progress, without waiting for decisions.
    """

    persons: frozenset[str] = frozenset()
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
    decided: Sequence[GateDecision] = ()
    calls: Sequence[CallRow] = ()
    executions: Mapping[str, ProgramExecution] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0

    @classmethod
    def of(cls, records: Iterable[CallRecord]) -> TurnRun:
        """Return the run that records describe."""
        found = [one for one in records if not one.begun]
        return cls(
            persons=frozenset(one.path for one in found if one.asks),
            kept={one.path: kept_text(one.messages, one.outputs) for one in found if one.asks},
            decided=tuple(_decided(found)),
            calls=tuple(_model_calls(found)),
            executions={
                one.path: _execution(one) for one in found if one.kind == "call" and one.answered
            },
            usage=usage_of(found),
            seconds=_worked(found),
        )

    @property
    def line(self) -> str:
        """Return the costs of the run, on one line."""
        tokens = self.usage.total_tokens
        parts = [count(self.usage.calls, "call"), count(tokens, "token"), self._cost]
        return " · ".join([*parts, clock(self.seconds)])

    @property
    def table(self) -> str:
        """Return the run's model calls as a Markdown table."""
        lines = ["| step | model | tokens in | tokens out | cost | time |"]
        lines.append("| :-- | :-- | --: | --: | --: | --: |")
        for one in self.calls:
            path = f"{one.path} (failed)" if one.failed else one.path
            cells = [worded(path), worded(one.model)]
            cells += [f"{one.usage.input_tokens:,}", f"{one.usage.output_tokens:,}"]
            cost = one.usage.known_cost
            cells += ["unknown" if cost is None else _dollars(cost), clock(one.seconds)]
            lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
        return "\n".join(lines)

    @property
    def _cost(self) -> str:
        known = self.usage.known_cost
        if known is None:
            return "cost unknown"
        least = "at least " if self.usage.unknown_cost_calls else ""
        return f"{least}{_dollars(known)}"


def kept_text(messages: Iterable[BaseMessage], outputs: Mapping[str, Any]) -> list[str]:
    """Return what a gate holds for approval as Markdown: messages, and outputs that add something.

    If there are answers, prompts are omitted: the decision is about the answers.
    """
    held = [*messages]
    answers = [message for message in held if message.type != "human"]
    said = [str(message.text) for message in answers or held]
    texts = {key: as_text(value) for key, value in outputs.items()}
    said += [f"**{key}:** {value}" for key, value in texts.items() if value not in said]
    return [shortened(worded(text)) for text in said]


def _decided(records: Sequence[CallRecord]) -> Iterator[GateDecision]:
    asked = {one.path for one in records if one.asks}
    for one in records:
        if one.kind == "gate" and one.answered and one.path in asked:
            yield GateDecision(path=one.path, at=one.ended, decision=Decision.of(one.value))


def _dollars(usd: float) -> str:
    return money(usd) if usd else "$0"


def _model_calls(records: Iterable[CallRecord]) -> Iterator[CallRow]:
    for one in records:
        used = Usage.of(one)
        if used.calls:
            seconds = max(0.0, one.ended - one.started)
            yield CallRow(
                path=one.path, model=one.model, usage=used, seconds=seconds, failed=one.failed
            )


def _execution(record: CallRecord) -> ProgramExecution:
    value: Any = record.value
    stopped = value.get("stopped") if isinstance(value, Mapping) else None
    seconds = max(0.0, record.ended - record.started)
    return ProgramExecution(seconds=seconds, stopped=stopped if isinstance(stopped, str) else "")


def _worked(records: Iterable[CallRecord]) -> float:
    """Return the seconds in which at least one call was made: parallel ones count once."""
    total, until = 0.0, 0.0
    for one in sorted(records, key=lambda record: record.started):
        if one.source == "live" and one.ended > until:
            total += one.ended - max(one.started, until)
            until = one.ended
    return total
