"""Commands: the lines of a chat that begin with a slash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import click

from mergepoint.agent.skill_library import SkillLibrary
from mergepoint.apps.cli.output import tell
from mergepoint.apps.cli.session.told import told_briefs, told_messages, told_steps
from mergepoint.core.path import nearest
from mergepoint.session.memory import SessionMemory
from mergepoint.session.sessions import Sessions

HELP = """\
/help             this
/steps [TURN]     plan, programs, output and decisions of the last turn, or of one
/history [N]      the conversation, or its last N turns
/facts            what is remembered
/skills           what the agent can carry out
/sessions         the sessions there are
/resume ID        go on with another session
/new              begin a new session
/edit             write a message in your editor
/quit             leave; so does Ctrl-D. Ctrl-C cancels what is going on."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a line comes to: a message to `say`, another `session` (blank: a new one), the end."""

    say: str = ""
    session: str | None = None
    leave: bool = False


class Commands:
    """Carries out the commands of a chat."""

    def __init__(self, memory: SessionMemory, sessions: Sessions, skills: SkillLibrary) -> None:
        self._memory = memory
        self._sessions = sessions
        self._skills = skills
        self._known: dict[str, Callable[[str], Said]] = {
            "/help": lambda _: self._told(HELP.splitlines()),
            "/steps": self._steps,
            "/history": self._history,
            "/facts": self._facts,
            "/skills": lambda _: self._told(
                [f"{one.name}: {one.description}" for one in skills.values()]
            ),
            "/sessions": lambda _: self._told(told_briefs(sessions.sessions(), memory.session_id)),
            "/resume": self._resume,
            "/new": lambda _: Said(session=""),
            "/edit": self._edit,
            "/quit": lambda _: Said(leave=True),
        }

    def of(self, line: str) -> Said:
        """Give what a line comes to; one without a slash is a message."""
        if not line.startswith("/"):
            return Said(say=line)
        word, _, rest = line.partition(" ")
        known = self._known.get(word)
        if known is None:
            near = nearest(word, self._known)
            return self._told([f"there is no {word}{near}; /help lists what there is"])
        return known(rest.strip())

    def _told(self, lines: list[str]) -> Said:
        for line in lines:
            tell(line)
        return Said()

    def _steps(self, rest: str) -> Said:
        turn = _number(rest, self._memory.turn)
        if turn is None:
            return self._told([f"/steps {rest}: give the number of a turn"])
        steps = self._memory.get_working_steps(turn=turn)
        return self._told(told_steps(steps) or [f"turn {turn} has no steps"])

    def _history(self, rest: str) -> Said:
        last = _number(rest, self._memory.turn)
        if last is None:
            return self._told([f"/history {rest}: give how many turns"])
        messages = self._memory.get_messages(last=last)
        return self._told(told_messages(messages) or ["nothing was said yet"])

    def _facts(self, rest: str) -> Said:
        facts = [f"{one.content} (turn {one.turn})" for one in self._memory.get_facts()]
        return self._told(facts or ["nothing is remembered"])

    def _resume(self, rest: str) -> Said:
        return Said(session=rest) if rest else self._told(["/resume ID: /sessions lists them"])

    def _edit(self, rest: str) -> Said:
        try:
            found = click.edit(rest, extension=".md")
        except click.ClickException as error:
            return self._told([f"the editor could not be started: {error.format_message()}"])
        return Said(say=(found or "").strip())


def _number(text: str, default: int) -> int | None:
    if not text:
        return default
    return int(text) if text.isdecimal() and len(text) < 10 else None
