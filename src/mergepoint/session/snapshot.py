"""Snapshot: a session as YAML, for people; its schema: docs/sessions.md. Never the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mergepoint.session.entry import plain_of
from mergepoint.session.fact import Fact
from mergepoint.session.log import Mark
from mergepoint.session.message import SessionMessage
from mergepoint.session.past import Past
from mergepoint.session.working_step import WorkingStep
from mergepoint.tree.strict_yaml import dump

RECENT = 200
"""Of each list a snapshot holds the last ones, so that it costs the same however long it is."""

Row = SessionMessage | Fact | WorkingStep

_ABOUT = """\
# Worked out from the first {bytes} bytes of journal.jsonl at the end of a turn. Nobody reads it
# back: what is changed here is lost.
"""


class Snapshot:
    """Writes a session as YAML; rows that it wrote before it knows by their ids."""

    def __init__(self) -> None:
        self._written: dict[str, str] = {}

    def recent(self, past: Past, mark: Mark) -> str:
        """Give the session, of long ones its last rows and how many are left out."""
        rows = _rows(past)
        shown = {name: found[-RECENT:] for name, found in rows.items()}
        omitted = {
            name: len(found) - len(shown[name])
            for name, found in rows.items()
            if len(found) > len(shown[name])
        }
        text = self._text(past, shown, omitted)
        if len(self._written) > 8 * RECENT:
            self._written.clear()
        return _ABOUT.format(bytes=mark.position) + text

    def whole(self, past: Past) -> str:
        """Give the whole session."""
        return Snapshot()._text(past, _rows(past), {})

    def _text(self, past: Past, rows: dict[str, Sequence[Row]], omitted: dict[str, int]) -> str:
        about: dict[str, Any] = {
            "session_id": past.header.session_id,
            "created_at": past.header.created_at.isoformat(),
            "updated_at": past.updated_at.isoformat(),
        }
        if omitted:
            about["omitted"] = omitted
        parts = [dump(about)]
        for name, found in rows.items():
            parts.append(f"{name}:\n" if found else f"{name}: []\n")
            parts += map(self._row, found)
        return "".join(parts)

    def _row(self, row: Row) -> str:
        text = self._written.get(row.id)
        if text is None:
            text = self._written[row.id] = dump([row_to_plain(row)])
        return text


def row_to_plain(row: Row) -> dict[str, Any]:
    """Give a message, fact or step as it stands in a snapshot."""
    plain = plain_of(row)
    if isinstance(row, WorkingStep):
        first = {"id": plain.pop("id"), "type": plain.pop("type")}
        return {**first, "category": str(row.category), **plain}
    return plain


def _rows(past: Past) -> dict[str, Sequence[Row]]:
    return {"messages": past.messages, "facts": past.facts, "steps": past.steps}
