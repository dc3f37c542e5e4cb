"""Rows: what Chainlit has of a thread that is no part of its session, as rows that are appended.

A row says what became of a thing, a thread is what its rows come to. Calls of a data layer are not
ordered, so a row that fills in never takes away: an empty create changes nothing, and one that
comes after its update neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mergepoint.apps.chainlit.shown import worked_out

NAME = "chainlit"
"""The name under which the rows are kept."""

Kind = Literal["thread", "step", "element", "feedback"]
Plain = dict[str, Any]

_EMPTY: tuple[Any, ...] = (None, "", {}, [])
_RUN = ("id", "type", "name", "parentId")


@dataclass
class Kept:
    """What the rows of a thread come to."""

    thread: Plain = field(default_factory=dict)
    steps: dict[str, Plain] = field(default_factory=dict)
    elements: dict[str, Plain] = field(default_factory=dict)
    feedback: dict[str, Plain] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Kept:
        """Give what rows come to."""
        kept = cls()
        for row in rows:
            kept.take(row)
        return kept

    def take(self, row: Mapping[str, Any]) -> None:
        """Take in one more row."""
        data, kind = dict(row.get("data") or {}), row["kind"]
        if kind == "thread":
            self._thread(data)
            return
        found: dict[str, Plain] = getattr(self, _HOMES[kind])
        key = str(row["id"])
        if row.get("gone"):
            self.gone.add(key)
            found.pop(key, None)
        elif key not in self.gone:
            old = found.get(key, {})
            found[key] = _filled(old, data) if row.get("fills") else _changed(old, data)

    @property
    def runs(self) -> dict[str, str]:
        """Give the ids of the steps around turns, by the user's message."""
        return {
            str(one["parentId"]): key
            for key, one in self.steps.items()
            if one.get("type") == "run" and one.get("parentId")
        }

    @property
    def words(self) -> dict[str, str]:
        """Give the ids of messages that are words at a gate, by the entry that holds them."""
        return {str(one["of"]): key for key, one in self.steps.items() if one.get("of")}

    def own_steps(self) -> list[Plain]:
        """Give the messages and steps that the session knows nothing of."""
        return [
            one
            for key, one in self.steps.items()
            if not worked_out(key) and one.get("type") != "run" and "output" in one
        ]

    def feedback_of(self, step: str) -> Plain | None:
        """Give what was thought of a step."""
        return next((one for one in self.feedback.values() if one["forId"] == step), None)

    def _thread(self, data: Plain) -> None:
        metadata = data.pop("metadata", None)
        self.thread.update(data)
        if metadata is not None:
            self.thread["metadata"] = merged(self.thread.get("metadata") or {}, metadata)


_HOMES: dict[str, str] = {"step": "steps", "element": "elements", "feedback": "feedback"}


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> Plain:
    """Give metadata with what is new in it; None takes a key away."""
    return {key: value for key, value in {**old, **new}.items() if value is not None}


def step_row(step: Mapping[str, Any], *, fills: bool) -> Plain | None:
    """Give the row of a step that Chainlit wants stored, None where the session has all of it.

    What is worked out from a session, and what the user said, is there already: of those only
    their metadata are Chainlit's own. The step around a turn repeats the message, and keeps its
    id alone.
    """
    key = str(step["id"])
    if worked_out(key) or step.get("type") == "user_message":
        data = {"metadata": step["metadata"]} if step.get("metadata") else {}
    elif step.get("type") == "run":
        data = {name: step[name] for name in _RUN if step.get(name)}
    else:
        data = {name: value for name, value in step.items() if value not in _EMPTY}
        data["output"] = step.get("output") or ""
        data.pop("streaming", None)
    if not data:
        return None
    return {"kind": "step", "id": key, "data": data, **({"fills": True} if fills else {})}


def whole_row(step: Mapping[str, Any]) -> Plain:
    """Give the row of a message that the session did not take."""
    data = {name: value for name, value in step.items() if value not in _EMPTY}
    return {"kind": "step", "id": str(step["id"]), "data": data}


def words_row(step: str, entry: str) -> Plain:
    """Give the row that says where the words of a message stand in the session."""
    return {"kind": "step", "id": step, "data": {"of": entry}}


def gone_row(kind: Kind, key: str) -> Plain:
    """Give the row that takes a thing away."""
    return {"kind": kind, "id": key, "gone": True}


def _filled(old: Plain, new: Plain) -> Plain:
    rest = {key: value for key, value in new.items() if old.get(key) in _EMPTY}
    return {**old, **rest}


def _changed(old: Plain, new: Plain) -> Plain:
    return {**old, **{key: value for key, value in new.items() if value is not None}}
