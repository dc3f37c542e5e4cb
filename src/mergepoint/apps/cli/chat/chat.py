"""`mergepoint chat`: talk with an agent that plans, writes programs, and runs them in a sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mergepoint.apps.cli import complete
from mergepoint.apps.cli.agent_options import (
    Ask,
    AskOption,
    FilesOption,
    RunnerOption,
    SkillsOption,
)
from mergepoint.apps.cli.errors import CommandError
from mergepoint.apps.cli.options import (
    BaseUrlOption,
    BudgetOption,
    ModelOption,
    PriceOption,
    QuietOption,
    SessionsOption,
    TracebackOption,
)

if TYPE_CHECKING:
    from mergepoint.agent.agent import Asked
    from mergepoint.agent.skill_library import SkillLibrary

EXAMPLES = (
    "mergepoint chat",
    "mergepoint chat --model openai:gpt-5-mini --file report.csv",
    "mergepoint chat --resume last",
    "mergepoint chat -m 'Sum the sales by month.' --ask nothing",
    "printf 'Sum the sales.\\na\\na\\n' | mergepoint chat",
)


ASKED: dict[Ask, tuple[Asked, ...]] = {
    Ask.EVERYTHING: ("plan", "code"),
    Ask.PLANS: ("plan",),
    Ask.PROGRAMS: ("code",),
    Ask.NOTHING: (),
}
_RULES = " (plain rules, no language model)"


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
        typer.Option(
            "--message",
            "-m",
            metavar="TEXT",
            help="Say this, then end. Repeatable.",
            show_default=False,
        ),
    ] = [],  # noqa: B006  (typer makes a new list for each call)
    model: ModelOption = "offline",
    base_url: BaseUrlOption = None,
    skills: SkillsOption = [],  # noqa: B006
    file: FilesOption = [],  # noqa: B006
    ask: AskOption = Ask.EVERYTHING,
    runner: RunnerOption = None,
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
    from mergepoint.apps.cli.announce import had_model
    from mergepoint.apps.cli.chat.conversing import Setup, converse
    from mergepoint.apps.cli.spending import read_budget, read_prices

    setup = Setup(
        model=had_model(model, base_url=base_url),
        about=f"model {model}{_RULES if model == 'offline' else ''}",
        skills=skills_in(skills),
        files=files_of(file),
        ask=ASKED[ask],
        runner=runner,
        budget=read_budget(budget),
        prices=read_prices(price),
        sessions=sessions,
        quiet=quiet,
    )
    raise typer.Exit(converse(setup, resume=resume, given=message))


def skills_in(folders: list[Path]) -> SkillLibrary:
    """Give the skills of some folders, by default those that come along."""
    from mergepoint.agent.skill_library import EXAMPLES as COMING_ALONG
    from mergepoint.agent.skill_library import SkillLibrary

    return SkillLibrary.at(*(folders or [COMING_ALONG]))


def files_of(paths: list[Path]) -> dict[str, Path]:
    """Give the files by the names that programs find them under."""
    files: dict[str, Path] = {}
    for path in paths:
        if not path.is_file():
            raise CommandError(f"--file {path}: there is no such file")
        if path.name in files:
            raise CommandError(f"--file {path}: two files are called {path.name!r}; rename one")
        files[path.name] = path.resolve()
    return files
