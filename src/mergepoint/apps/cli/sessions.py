"""`mergepoint sessions`: list, show, export, check and repair sessions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mergepoint.apps.cli.framework import argument, option
from mergepoint.apps.cli.options import (
    SESSIONS,
    Json,
    SessionArgument,
    Sessions,
    Yes,
    complete_sessions,
)
from mergepoint.apps.cli.output import (
    WRONG,
    CommandError,
    Declined,
    brief,
    count,
    put,
    put_json,
    put_row,
    tell,
)
from mergepoint.apps.cli.run_store import LAST
from mergepoint.journal.checked_lines import write_whole

if TYPE_CHECKING:
    from mergepoint.session.entries import SessionMessage, WorkingStep
    from mergepoint.session.session_memory import SessionBrief, SessionMemory
    from mergepoint.session.session_memory import Sessions as SessionStore
    from mergepoint.session.session_store import Flaw

LIST_EXAMPLES = (
    "mergepoint sessions list",
    "mergepoint sessions list --sessions sqlite:///sessions.db",
    "mergepoint sessions list --json | jq -r '.[].session_id'",
)
SHOW_EXAMPLES = (
    "mergepoint sessions show last",
    "mergepoint sessions show last --turn 3 --steps",
    "mergepoint sessions show last --json | jq '.steps[] | select(.type == \"execute\")'",
)
EXPORT_EXAMPLES = (
    "mergepoint sessions export last > session.yaml",
    "mergepoint sessions export last --to session.yaml",
)
CHECK_EXAMPLES = (
    "mergepoint sessions check last",
    "mergepoint sessions check --all",
    "mergepoint sessions check --all --json | jq '.[] | select(.ok | not)'",
)
REPAIR_EXAMPLES = (
    "mergepoint sessions repair trip",
    "mergepoint sessions repair trip --yes --json",
)

CHAT_OPTIONS = "mergepoint.chat"  # key in the header of a turn's run: options of a resumed chat
_TITLE = 60


def open_sessions(sessions: str) -> SessionStore:
    """Return the sessions of a folder or database. Raises what `sessions_at` raises."""
    from mergepoint.session.session_store import sessions_at

    return sessions_at(sessions)


def named_session(place: SessionStore, session: str) -> str:
    """Return the id of a session. Raises CommandError for `last` without any session."""
    if session != LAST:
        return session
    known = place.sessions()
    if not known:
        raise CommandError("There are no sessions yet.")
    return known[0].session_id


def list_sessions(
    *,
    sessions: Sessions = SESSIONS,
    json: Json = False,
) -> None:
    """List the sessions, most recent first."""
    briefs = open_sessions(sessions).sessions()
    if json:
        put_json(
            [
                {
                    "session_id": one.session_id,
                    "created_at": one.created_at and one.created_at.isoformat(),
                    "updated_at": one.updated_at and one.updated_at.isoformat(),
                    "title": one.title,
                    "problem": one.problem or None,
                }
                for one in briefs
            ]
        )
    elif not briefs:
        tell(f"There are no sessions in {sessions}.")
    else:
        for line in brief_lines(briefs):
            put_row(line)


def show(
    session: SessionArgument,
    *,
    turn: Annotated[
        int | None, option("--turn", metavar="N", min=1, help="Show only turn N.", default="all")
    ] = None,
    steps: Annotated[
        bool, option("--steps", help="Show plans, programs, output and decisions too.")
    ] = False,
    sessions: Sessions = SESSIONS,
    json: Json = False,
) -> None:
    """Show the conversation of a session, and with --steps the work on each answer."""
    place = open_sessions(sessions)
    memory = place.open(named_session(place, session))
    if turn is not None and turn > memory.turn:
        raise CommandError(
            f"--turn {turn}: session {memory.session_id} has only {memory.turn} turns."
        )
    if json:
        put_json(_session_facts(memory, turn))
        return
    turns = range(1, memory.turn + 1) if turn is None else (turn,)
    put(f"session {memory.session_id}")
    for fact in memory.get_facts():
        put(f"fact: {fact.content} (turn {fact.turn})")
    for number in turns:
        said = [one for one in memory.get_messages() if one.turn == number]
        lines = message_lines(one for one in said if one.role != "assistant")
        lines += [f"  . {line}" for line in step_lines(memory.get_steps(turn=number))] * steps
        lines += message_lines(one for one in said if one.role == "assistant")
        for line in lines:
            put(line)
    if resume := session_resume_command(memory):
        put(f"resume: {resume}")


def chat_command(memory: SessionMemory, options: Sequence[str]) -> str:
    """Return the command that resumes a session in the terminal."""
    return " ".join(["mergepoint chat --resume", memory.session_id, *options])


def session_resume_command(memory: SessionMemory) -> str | None:
    """Return the command that resumes the last turn, None if it has an answer.

    Without a run of the turn, the options of the chat are unknown.
    """
    from mergepoint.session.session_memory import failed_turn, records_of

    left = memory.unfinished or failed_turn(memory)
    if left is None:
        return None
    found = records_of(memory, left.turn)
    options = [] if found is None else found[0].meta.get(CHAT_OPTIONS, [])
    return chat_command(memory, [str(word) for word in options])


def _session_facts(memory: SessionMemory, turn: int | None) -> dict[str, Any]:
    from mergepoint.session.entries import entry_to_plain

    messages = [one for one in memory.get_messages() if turn in (None, one.turn)]
    return {
        "session_id": memory.session_id,
        "created_at": memory.created_at.isoformat(),
        "updated_at": memory.updated_at.isoformat(),
        "unfinished": memory.unfinished.turn if memory.unfinished is not None else None,
        "messages": [entry_to_plain(one) for one in messages],
        "facts": [entry_to_plain(one) for one in memory.get_facts()],
        "steps": [entry_to_plain(one) for one in memory.get_steps(turn=turn)],
    }


def export(
    session: SessionArgument,
    *,
    to: Annotated[
        Path | None, option("--to", metavar="FILE", help="New file to write.", default="stdout")
    ] = None,
    sessions: Sessions = SESSIONS,
) -> None:
    """Write a whole session as YAML, in the documented schema."""
    place = open_sessions(sessions)
    text = place.open(named_session(place, session)).export()
    if to is None:
        put(text.rstrip("\n"))
        return
    if to.exists():
        raise CommandError(f"{to} already exists. Remove it, or name another file.")
    write_whole(to, text.encode())
    tell(f"Wrote {to}.")


def check(
    session: Annotated[
        list[str] | None, argument("ID", "Sessions: IDs, or 'last'.", complete_sessions)
    ] = None,
    *,
    every: Annotated[bool, option("--all", help="Check all sessions.")] = False,
    sessions: Sessions = SESSIONS,
    json: Json = False,
) -> None:
    """Report all problems in sessions, with their lines.

    The exit code is 3 if there is a problem.
    """
    from mergepoint.session.session_store import check_session

    place = open_sessions(sessions)
    if bool(session) == every:
        raise CommandError("Name the sessions to check, or use --all.")
    ids = [one.session_id for one in place.sessions()] if every else session or []
    found = {
        name: check_session(name, sessions=place) for name in (named_session(place, n) for n in ids)
    }
    if json:
        put_json([_facts(name, flaws) for name, flaws in found.items()])
    else:
        for name, flaws in found.items():
            for line in [f"{name}: {flaw}" for flaw in flaws] or [f"{name}: OK"]:
                put(line)
            if flaws:
                tell(f"To keep the undamaged part: mergepoint sessions repair {name}")
        if not found:
            tell(f"There are no sessions in {sessions}.")
    if any(found.values()):
        raise typer.Exit(WRONG)


def _facts(name: str, flaws: list[Flaw]) -> dict[str, object]:
    problems = [{"where": one.where, "problem": one.what, "loses": one.loses} for one in flaws]
    return {"session_id": name, "ok": not flaws, "problems": problems}


def repair(
    session: SessionArgument,
    *,
    yes: Yes = False,
    sessions: Sessions = SESSIONS,
    json: Json = False,
) -> None:
    """Rewrite a session without its unreadable lines, and rewrite its snapshot.

    A copy of the damaged file stays next to it.
    """
    from mergepoint.apps.cli.gate_answers import can_ask
    from mergepoint.session.session_store import check_session, repair_session

    place = open_sessions(sessions)
    name = named_session(place, session)
    flaws = check_session(name, sessions=place)
    if flaws and not json:
        for flaw in flaws:
            tell(str(flaw))
        if not yes and can_ask():
            lost = sum(flaw.loses for flaw in flaws)
            if not typer.confirm(f"{count(lost, 'line')} would be dropped. Continue?", err=True):
                raise Declined("Nothing was changed.")
    done = repair_session(name, sessions=place)
    if json:
        problems = [str(flaw) for flaw in done.flaws]
        facts = {"session_id": name, "repaired": bool(done.flaws), "kept": done.kept}
        put_json({**facts, "problems": problems, "copy": done.copy or None})
        return
    if done.copy:
        put(f"Copied the damaged file to {done.copy}.")
    put(f"{name}: {count(done.kept, 'entry').replace('entrys', 'entries')} kept")


# Lines of sessions, messages and steps, for the terminal.


def brief_lines(briefs: Sequence[SessionBrief], here: str = "") -> list[str]:
    """Return a line per session, most recent first; `here` marks one."""
    if not briefs:
        return ["There are no sessions yet."]
    width = max(len(one.session_id) for one in briefs)
    return [
        f"{one.session_id:<{width}}  {_when(one)}  {_title(one)}"
        f"{'  (this one)' if one.session_id == here else ''}".rstrip()
        for one in briefs
    ]


def message_lines(messages: Iterable[SessionMessage]) -> list[str]:
    """Return the lines of a conversation, each message below its turn and role."""
    lines: list[str] = []
    for message in messages:
        lines.append(f"{message.turn} {message.role}:")
        lines += [f"  {line}" for line in message.content.splitlines()]
    return lines


def step_lines(steps: Iterable[WorkingStep]) -> list[str]:
    """Return the lines of steps, with their whole content."""
    lines: list[str] = []
    for step in steps:
        lines.append(_head(step))
        lines += [f"    {line}" for line in _text(step).splitlines()]
        if step.error:
            lines.append(f"    {step.error.get('type', '')}: {step.error.get('message', '')}")
    return lines


def _text(step: WorkingStep) -> str:
    """Return a step's content; for an execution, its output and errors."""
    from mergepoint.session.entries import StepType

    if step.type is not StepType.EXECUTE:
        return step.content
    stdout, stderr = step.printed
    return f"{stdout.rstrip()}\nstderr:\n{stderr}" if stderr else stdout


def _head(step: WorkingStep) -> str:
    """Return a step's line: type, attempt, path, and result."""
    from mergepoint.session.entries import StepType

    facts = [str(step.type)]
    if step.type is not StepType.RESPONSE and step.attempt is not None:
        facts.append(f"(attempt {step.attempt})")
    facts.append(step.path)
    if step.exit_code is not None:
        facts.append(f"exit code {step.exit_code}")
    if step.decision:
        said = f": {step.feedback}" if step.feedback else ""
        facts.append(f"{step.decision}{said}")
    if step.message:
        facts.append(f"-> message {step.message}")
    return " ".join(fact for fact in facts if fact)


def _when(one: SessionBrief) -> str:
    when = one.updated_at
    return f"{when.astimezone():%Y-%m-%d %H:%M}" if when is not None else " " * 16


def _title(one: SessionBrief) -> str:
    return f"unreadable: {one.problem}" if one.problem else brief(one.title, _TITLE)
