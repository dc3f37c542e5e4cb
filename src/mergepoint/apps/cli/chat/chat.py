"""`mergepoint chat`: talk with an agent that plans, writes programs, and runs them in a sandbox."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mergepoint.apps.cli import complete
from mergepoint.apps.cli.errors import CommandError
from mergepoint.apps.cli.homes import LAST
from mergepoint.apps.cli.options import (
    BaseUrlOption,
    BudgetOption,
    ModelOption,
    PriceOption,
    QuietOption,
    SessionsOption,
    TracebackOption,
)
from mergepoint.core.errors import SessionError

if TYPE_CHECKING:
    from mergepoint.agent.skill_library import SkillLibrary
    from mergepoint.apps.cli.chat.talk import Talk
    from mergepoint.session.memory import SessionMemory
    from mergepoint.session.sessions import Sessions

EXAMPLES = (
    "mergepoint chat",
    "mergepoint chat --model openai:gpt-5-mini --file report.csv",
    "mergepoint chat --resume last",
    "mergepoint chat -m 'Sum the sales by month.' --ask nothing",
    "printf 'Sum the sales.\\na\\na\\n' | mergepoint chat",
)


class Ask(StrEnum):
    """What waits for a person."""

    EVERYTHING = "everything"
    PLANS = "plans"
    PROGRAMS = "programs"
    NOTHING = "nothing"


_ASK = {
    Ask.EVERYTHING: ("plan", "code"),
    Ask.PLANS: ("plan",),
    Ask.PROGRAMS: ("code",),
    Ask.NOTHING: (),
}


def chat(
    *,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Go on with a session; 'last' is the one that was written last.",
            show_default=False,
            autocompletion=complete.sessions,
        ),
    ] = None,
    message: Annotated[
        list[str],
        typer.Option("--message", "-m", help="Say this, then end. Repeatable.", show_default=False),
    ] = [],  # noqa: B006  (typer makes a new list for each call)
    model: ModelOption = "offline",
    base_url: BaseUrlOption = None,
    skills: Annotated[
        list[Path],
        typer.Option(
            metavar="DIR",
            help="A folder of skills, in place of those that come along. Repeatable.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    file: Annotated[
        list[Path],
        typer.Option(help="A file that programs may read. Repeatable.", show_default=False),
    ] = [],  # noqa: B006
    ask: Annotated[Ask, typer.Option(help="What waits for you before it goes on.")] = (
        Ask.EVERYTHING
    ),
    runner: Annotated[
        str | None,
        typer.Option(
            help="What runs programs: bubblewrap, monty, ...", show_default="what is safe"
        ),
    ] = None,
    budget: BudgetOption = [],  # noqa: B006
    price: PriceOption = [],  # noqa: B006
    sessions: SessionsOption = "sessions",
    quiet: QuietOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Talk with an agent; answers go to stdout, all else to stderr.

    It plans, shows the plan and each program before anything runs, runs programs in a sandbox, and
    answers. A session keeps all of it. Lines from a pipe are messages, and answers where it asks.
    """
    from mergepoint.agent.agent import agent
    from mergepoint.apps.cli.announce import had_model
    from mergepoint.apps.cli.chat.folded import Folded
    from mergepoint.apps.cli.chat.lines import Lines
    from mergepoint.apps.cli.chat.running import TurnLoop
    from mergepoint.apps.cli.chat.talk import Talk
    from mergepoint.apps.cli.output import tell
    from mergepoint.apps.cli.spending import read_budget, read_prices
    from mergepoint.session.sessions_at import sessions_at
    from mergepoint.session.turn_runner import TurnRunner

    known = _skills(skills)
    tree = agent(known, files=_files(file), runner=runner, ask=_ASK[ask])  # type: ignore[arg-type]
    turns = TurnRunner(
        tree,
        model=had_model(model, base_url=base_url),
        budget=read_budget(budget),
        prices=read_prices(price),
    )
    place = sessions_at(sessions)
    memory = _opened(place, resume)
    if not quiet:
        _greet(memory, model, runner)
    with TurnLoop() as loop:
        talk = Talk(memory, turns, loop, Lines(message), Folded(quiet=quiet))
        memory = _converse(talk, place, known)
    if not quiet:
        option = "" if sessions == "sessions" else f" --sessions {shlex.quote(sessions)}"
        tell(f"session kept; go on with: mergepoint chat --resume {memory.session_id}{option}")
    raise typer.Exit(talk.code)


def _converse(talk: Talk, place: Sessions, skills: SkillLibrary) -> SessionMemory:
    """Talk until somebody leaves, and give the session that was talked with last."""
    from mergepoint.apps.cli.chat.commands import Commands
    from mergepoint.apps.cli.output import tell

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
    return talk.memory


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


def _skills(folders: list[Path]) -> SkillLibrary:
    from mergepoint.agent.skill_library import EXAMPLES as COMING_ALONG
    from mergepoint.agent.skill_library import SkillLibrary

    return SkillLibrary.at(*(folders or [COMING_ALONG]))


def _files(paths: list[Path]) -> dict[str, Path]:
    """Give the files by the names that programs find them under."""
    files: dict[str, Path] = {}
    for path in paths:
        if not path.is_file():
            raise CommandError(f"--file {path}: there is no such file")
        if path.name in files:
            raise CommandError(f"--file {path}: two files are called {path.name!r}; rename one")
        files[path.name] = path.resolve()
    return files


def _greet(memory: SessionMemory, model: str, runner: str | None) -> None:
    """Say what is talked with, and whether programs can be run here."""
    from mergepoint.agent.code_runner import code_runner
    from mergepoint.apps.cli.output import tell
    from mergepoint.core.errors import SandboxMissing

    about = " (plain rules, no language model)" if model == "offline" else ""
    tell(f"session {memory.session_id}, model {model}{about}; /help lists commands", style="dim")
    try:
        name = code_runner(runner).name
    except SandboxMissing as error:
        tell(f"programs cannot be run here, so only talk works: {error}", style="yellow")
        return
    except ValueError as error:
        raise CommandError(f"--runner: {error}") from error
    if name == "unsafe_subprocess":
        tell("programs run UNCONFINED, with your files, keys and network", style="bold yellow")
