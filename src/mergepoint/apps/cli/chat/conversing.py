"""Conversing: a chat from its setup to its exit code."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from langchain_core.language_models import BaseChatModel

from mergepoint.agent.agent import Asked, agent
from mergepoint.agent.code_runner import CodeRunner, code_runner
from mergepoint.agent.skill_library import SkillLibrary
from mergepoint.apps.cli.chat.commands import Commands
from mergepoint.apps.cli.chat.folded import Folded
from mergepoint.apps.cli.chat.lines import Lines
from mergepoint.apps.cli.chat.running import TurnLoop
from mergepoint.apps.cli.chat.talk import Talk
from mergepoint.apps.cli.errors import CommandError
from mergepoint.apps.cli.homes import LAST
from mergepoint.apps.cli.output import tell
from mergepoint.core.errors import SandboxMissing, SessionError
from mergepoint.models.prices import Price
from mergepoint.session.memory import SessionMemory
from mergepoint.session.sessions import Sessions
from mergepoint.session.sessions_at import sessions_at
from mergepoint.session.turn_runner import TurnRunner
from mergepoint.tree.budget import Budget

HOME = "sessions"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a chat is held with; `about` says which model answers, `ask` what waits for a person."""

    model: BaseChatModel
    about: str
    skills: SkillLibrary
    files: Mapping[str, Path] = field(default_factory=dict)
    ask: tuple[Asked, ...] = ("plan", "code")
    runner: CodeRunner | str | None = None
    budget: Budget | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)
    sessions: str = HOME
    quiet: bool = False

    def turns(self) -> TurnRunner:
        """Give what runs the turns."""
        tree = agent(self.skills, files=self.files, runner=self.runner, ask=self.ask)
        return TurnRunner(tree, model=self.model, budget=self.budget, prices=self.prices)


def converse(setup: Setup, *, resume: str | None = None, given: Sequence[str] = ()) -> int:
    """Talk until somebody leaves, and give the exit code.

    Raises SessionError for a session that cannot be opened, CommandError for a runner that there
    is not.
    """
    turns, place = setup.turns(), sessions_at(setup.sessions)
    if not setup.quiet:
        _tell_of_runner(setup.runner)
    memory = _opened(place, resume)
    if not setup.quiet:
        tell(f"session {memory.session_id}, {setup.about}; /help lists commands", style="dim")
    with TurnLoop() as loop:
        talk = Talk(memory, turns, loop, Lines(given), Folded(quiet=setup.quiet))
        _talk(talk, place, setup.skills)
    if not setup.quiet:
        option = "" if setup.sessions == HOME else f" --sessions {shlex.quote(setup.sessions)}"
        name = talk.memory.session_id
        tell(f"session kept; go on with: mergepoint chat --resume {name}{option}", style="dim")
    return talk.code


def _talk(talk: Talk, place: Sessions, skills: SkillLibrary) -> None:
    """Take lines until somebody leaves, or a question is left for later."""
    goes_on = talk.begin()
    while goes_on:
        try:
            line = talk.lines.said()
        except KeyboardInterrupt:
            tell("\nCtrl-D or /quit leaves", style="dim")
            continue
        if line is None:
            break
        said = Commands(talk.memory, place, skills).of(line)
        if said.leave:
            break
        if said.session is not None:
            try:
                talk.memory = _opened(place, said.session or None)
            except SessionError as error:
                tell(str(error), style="yellow")
                continue
            tell(f"session {talk.memory.session_id}", style="dim")
            goes_on = talk.begin()
        elif said.say:
            goes_on = talk.say(said.say)


def _opened(place: Sessions, resume: str | None) -> SessionMemory:
    """Open the session that is named, or begin a new one."""
    if resume is None:
        return place.create()
    if resume != LAST:
        return place.open(resume)
    there = [one.session_id for one in place.sessions() if not one.problem]
    if not there:
        raise CommandError("there is no session to resume yet; `mergepoint chat` begins one")
    return place.open(there[0])


def _tell_of_runner(runner: CodeRunner | str | None) -> None:
    """Say where programs cannot be run, or are not confined."""
    if runner is not None and not isinstance(runner, str):
        return
    try:
        name = code_runner(runner).name
    except SandboxMissing as error:
        tell(f"programs cannot be run here, so only talk works: {error}", style="yellow")
    except ValueError as error:
        raise CommandError(f"--runner: {error}") from error
    else:
        if name == "unsafe_subprocess":
            tell("programs run UNCONFINED, with your files, keys and network", style="bold yellow")
