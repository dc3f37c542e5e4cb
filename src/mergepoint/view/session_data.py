"""The data of a session's page: its conversation, its facts, and its turns with their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from mergepoint.core.text import clip
from mergepoint.report.run_state import RunState
from mergepoint.session.session_memory import SessionMemory
from mergepoint.view.session_turns import SessionTurn, turns_of

_TITLE = 80  # characters
_SECRETS = frozenset({"masked", "redacted"})


def session_data(
    memory: SessionMemory,
    *,
    text: Callable[[str], int],
    run: Callable[[RunState], int],
    commands: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return a session as `Session` of page.d.ts.

    Args:
        memory: The session, which is only read.
        text: Store a text of the page, and return its number.
        run: Store a run of the page, and return its index.
        commands: Shell commands for the session, by purpose.
    """
    turns = turns_of(memory)
    return {
        "id": memory.session_id,
        "title": _title(turns),
        "created_at": memory.created_at.isoformat(),
        "facts": [
            {"text": text(fact.content), "source": f"turn {fact.turn}" if fact.turn else ""}
            for fact in memory.get_facts()
        ],
        "turns": [_turn(one, text, run) for one in turns],
        "notes": list(_notes(memory, turns)),
        "commands": dict(commands),
    }


def _turn(turn: SessionTurn, text: Callable[[str], int], run: Callable[[RunState], int]) -> Any:
    asked, answer = turn.asked, turn.answer
    return {
        "number": turn.number,
        "user": text("" if asked is None else asked.content),
        "answer": None if answer is None else text(answer.content),
        "status": turn.status,
        "entries": [{**asdict(one), "text": text(one.text)} for one in turn.entries()],
        "run": -1 if turn.run is None else run(turn.run),
    }


def _title(turns: Sequence[SessionTurn]) -> str:
    """Return the first message of a user in one line, shortened."""
    first = next((one.asked.content for one in turns if one.asked is not None), "")
    return clip(" ".join(first[: 8 * _TITLE].split()), _TITLE)


def _notes(memory: SessionMemory, turns: Sequence[SessionTurn]) -> Iterator[str]:
    """Yield what a reader of the record has to know."""
    repaired = memory.past.header.repaired
    if repaired:
        times = "once" if repaired == 1 else f"{repaired} times"
        yield f"The record was repaired {times}: damaged lines were left out."
    cleared = memory.turn - sum(one.asked is not None for one in turns)
    if cleared > 0:
        yield f"Earlier turns were cleared: {cleared} of {memory.turn} aren't shown."
    changes = [one.changed for one in memory.get_messages()]
    changes += [one.changed for one in memory.get_facts()]
    changes += [one.changed for one in memory.get_steps()]
    masked = sum(not _SECRETS.isdisjoint(one) for one in changes)
    if masked:
        yield f"Secrets were masked when they were written, in {masked} of {len(changes)} texts."
    for turn in turns:
        if turn.problem:
            yield f"Turn {turn.number}: its run can't be read: {turn.problem}"
        elif turn.run is None and turn.asked is not None and turn.asked.run:
            yield f"Turn {turn.number}: its run has no journal."
