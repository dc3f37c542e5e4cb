"""Rows with Chainlit's data about a thread that isn't in its session, append-only.

A thread is the result of applying its rows in order. Chainlit's calls aren't ordered, so a row that
fills in values never removes any: an empty create changes nothing, and neither does a create after
its update.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mergepoint.apps.chainlit.shown_step import ICON, worked_out

NAME = "chainlit"
"""The name under which the rows are stored."""

Kind = Literal["thread", "step", "element", "feedback"]
Plain = dict[str, Any]

_EMPTY: tuple[Any, ...] = (None, "", {}, [])
_RUN = ("id", "type", "name", "parentId")


@dataclass
class ThreadRows:
    """The state of a thread after applying its rows."""

    thread: Plain = field(default_factory=dict)
    steps: dict[str, Plain] = field(default_factory=dict)
    elements: dict[str, Plain] = field(default_factory=dict)
    feedback: dict[str, Plain] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> ThreadRows:
        """Return the state after applying rows."""
        kept = cls()
        for row in rows:
            kept.take(row)
        return kept

    def take(self, row: Mapping[str, Any]) -> None:
        """Apply one more row."""
        data, kind = dict(row.get("data") or {}), row["kind"]
        if kind == "thread":
            self._thread(data)
            return
        found: dict[str, Plain] = getattr(self, _HOMES[kind])
        key = str(row["id"])
        if row.get("gone"):
            self.gone.add(key)
            found.pop(key, None)
        # A late update must not bring a deleted step back.
        elif key not in self.gone:
            old = found.get(key, {})
            found[key] = _filled(old, data) if row.get("fills") else _changed(old, data)

    @property
    def runs(self) -> dict[str, str]:
        """Return the ids of the steps around turns, by the user's message."""
        return {
            str(one["parentId"]): key
            for key, one in self.steps.items()
            if one.get("type") == "run" and one.get("parentId")
        }

    @property
    def words(self) -> dict[str, str]:
        """Return the ids of feedback messages at gates, by their session entry."""
        return {str(one["of"]): key for key, one in self.steps.items() if one.get("of")}

    def own_steps(self) -> list[Plain]:
        """Return the messages and steps that the session doesn't contain."""
        return [
            one
            for key, one in self.steps.items()
            if not worked_out(key) and one.get("type") != "run" and "output" in one
        ]

    def feedback_of(self, step: str) -> Plain | None:
        """Return the feedback on a step."""
        return next((one for one in self.feedback.values() if one["forId"] == step), None)

    def _thread(self, data: Plain) -> None:
        metadata = data.pop("metadata", None)
        self.thread.update(data)
        if metadata is not None:
            self.thread["metadata"] = merged(self.thread.get("metadata") or {}, metadata)


_HOMES: dict[str, str] = {"step": "steps", "element": "elements", "feedback": "feedback"}


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> Plain:
    """Return updated metadata; None removes a key."""
    return {key: value for key, value in {**old, **new}.items() if value is not None}


def step_row(step: Mapping[str, Any], *, fills: bool) -> Plain | None:
    """Return the row for a step, or None if the session contains all of it.

    Derived steps and the user's messages are in the session, so only their metadata is stored. The
    step around a turn repeats the message, so only its id is stored.
    """
    key = str(step["id"])
    # The icon is derived from the step too, so it isn't stored.
    if worked_out(key) or step.get("type") == "user_message":
        metadata = dict(step.get("metadata") or {})
        metadata.pop(ICON, None)
        data: Plain = {"metadata": metadata} if metadata else {}
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
    """Return the row of a message that the session didn't accept."""
    data = {name: value for name, value in step.items() if value not in _EMPTY}
    return {"kind": "step", "id": str(step["id"]), "data": data}


def words_row(step: str, entry: str) -> Plain:
    """Return the row that links a message to its session entry."""
    return {"kind": "step", "id": step, "data": {"of": entry}}


def gone_row(kind: Kind, key: str) -> Plain:
    """Return the row that deletes a step, element, or feedback."""
    return {"kind": kind, "id": key, "gone": True}


def _filled(old: Plain, new: Plain) -> Plain:
    rest = {key: value for key, value in new.items() if old.get(key) in _EMPTY}
    return {**old, **rest}


def _changed(old: Plain, new: Plain) -> Plain:
    return {**old, **{key: value for key, value in new.items() if value is not None}}
