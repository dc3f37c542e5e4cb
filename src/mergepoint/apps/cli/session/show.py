"""`mergepoint session show`: what was said in a session, and how the answers came about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mergepoint.apps.cli.errors import CommandError
from mergepoint.apps.cli.options import JsonOption, SessionsOption, TracebackOption
from mergepoint.apps.cli.session.arguments import SessionArgument, named, place_of

if TYPE_CHECKING:
    from mergepoint.session.memory import SessionMemory

EXAMPLES = (
    "mergepoint session show last",
    "mergepoint session show last --turn 3 --steps",
    "mergepoint session show last --json | jq '.steps[] | select(.type == \"execute\")'",
)


def show(
    session: SessionArgument,
    *,
    turn: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only this turn.", show_default=False)
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="Plans, programs, output and decisions too.")
    ] = False,
    sessions: SessionsOption = "sessions",
    json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Show a session: its conversation, and with --steps how each answer came about."""
    from mergepoint.apps.cli.output import put, put_json
    from mergepoint.apps.cli.session.told import told_messages, told_steps

    place = place_of(sessions)
    memory = place.open(named(place, session))
    if turn is not None and turn > memory.turn:
        raise CommandError(f"--turn {turn}: session {memory.session_id} has {memory.turn} turns")
    if json:
        put_json(_facts(memory, turn))
        return
    turns = range(1, memory.turn + 1) if turn is None else (turn,)
    put(f"session {memory.session_id}")
    for fact in memory.get_facts():
        put(f"fact: {fact.content} (turn {fact.turn})")
    for number in turns:
        said = [one for one in memory.get_messages() if one.turn == number]
        lines = told_messages(one for one in said if one.role != "assistant")
        lines += [
            f"  . {line}" for line in told_steps(memory.get_working_steps(turn=number))
        ] * steps
        lines += told_messages(one for one in said if one.role == "assistant")
        for line in lines:
            put(line)


def _facts(memory: SessionMemory, turn: int | None) -> dict[str, Any]:
    from mergepoint.session.entry import entry_to_plain

    messages = [one for one in memory.get_messages() if turn in (None, one.turn)]
    return {
        "session_id": memory.session_id,
        "created_at": memory.created_at.isoformat(),
        "updated_at": memory.updated_at.isoformat(),
        "unfinished": memory.unfinished.turn if memory.unfinished is not None else None,
        "messages": [entry_to_plain(one) for one in messages],
        "facts": [entry_to_plain(one) for one in memory.get_facts()],
        "steps": [entry_to_plain(one) for one in memory.get_working_steps(turn=turn)],
    }
