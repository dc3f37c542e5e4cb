"""`mergepoint ui`: sessions in the browser, with Chainlit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mergepoint.apps.cli.agent_options import (
    Ask,
    AskOption,
    FilesOption,
    RunnerOption,
    SkillsOption,
)
from mergepoint.apps.cli.chat.chat import ASKED, files_of, skills_in
from mergepoint.apps.cli.complete import graphs
from mergepoint.apps.cli.errors import CommandError
from mergepoint.apps.cli.options import (
    BaseUrlOption,
    BudgetOption,
    JsonOption,
    ModelOption,
    PriceOption,
    TracebackOption,
)

if TYPE_CHECKING:
    from mergepoint.apps.cli.chat.conversing import Setup
    from mergepoint.session.turn_runner import TurnRunner

EXAMPLES = (
    "mergepoint ui",
    "mergepoint ui --model openai:gpt-5-mini --store sqlite:///sessions.db",
    "mergepoint ui my_tree.py:tree --port 0 --headless",
    "mergepoint ui --new-login ada >> logins.txt",
    "mergepoint ui --host 0.0.0.0 --login logins.txt",
)

_WHERE = "Where, and to whom"


def ui(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TREE",
            help="What answers: a graph that comes along, or FILE.py:NAME. Left out: the agent.",
            autocompletion=graphs,
            show_default=False,
        ),
    ] = None,
    *,
    model: ModelOption = "offline",
    base_url: BaseUrlOption = None,
    skills: SkillsOption = [],  # noqa: B006  (typer makes a new list for each call)
    file: FilesOption = [],  # noqa: B006
    ask: AskOption = Ask.EVERYTHING,
    runner: RunnerOption = None,
    budget: BudgetOption = [],  # noqa: B006
    price: PriceOption = [],  # noqa: B006
    store: Annotated[
        str,
        typer.Option(
            "--store",
            "--sessions",
            metavar="DIR|URL",
            help="Where sessions are kept: a folder, or the URL of a database.",
            rich_help_panel=_WHERE,
        ),
    ] = "sessions",
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="The address to listen at.", rich_help_panel=_WHERE),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(metavar="PORT", min=0, max=65535, help="0 is any.", rich_help_panel=_WHERE),
    ] = 8000,
    headless: Annotated[
        bool,
        typer.Option(
            "--headless/--browser",
            help="Only serve, or open the page in a browser too.",
            rich_help_panel=_WHERE,
        ),
    ] = False,
    login: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Who may come in, by name and password. Left out: everybody on this machine, "
            "without a form.",
            rich_help_panel=_WHERE,
            show_default=False,
        ),
    ] = None,
    new_login: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Ask for a password, print the line for --login's file, and end.",
            rich_help_panel=_WHERE,
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Talk in the browser: plans to approve, steps as they run, a history to resume.

    It serves until it is interrupted (Ctrl-C), which is how it is meant to end: exit code 0.
    """
    if new_login is not None:
        _print_login(new_login)
        return
    from mergepoint.apps.chainlit.server import Ui, check_extra, serve
    from mergepoint.apps.cli.announce import had_model
    from mergepoint.apps.cli.chat.conversing import Setup
    from mergepoint.apps.cli.output import put_json_line, tell
    from mergepoint.apps.cli.spending import read_budget, read_prices

    check_extra()
    if target is not None and (skills or file or runner or ask is not Ask.EVERYTHING):
        raise CommandError("--skills, --file, --runner and --ask are of the agent; leave out TREE")
    setup = Setup(
        model=had_model(model, base_url=base_url),
        about=model,
        skills=skills_in(skills),
        files=files_of(file),
        ask=ASKED[ask],
        runner=runner,
        budget=read_budget(budget),
        prices=read_prices(price),
        sessions=store,
    )

    def ready(address: str) -> None:
        if json:
            put_json_line({"address": address, "store": store})
        else:
            tell(f"{address} shows the sessions in {store}; Ctrl-C ends it")

    turns = setup.turns() if target is None else _turns(target, setup)
    examples = _EXAMPLES if target is None and not skills else ()
    serve(
        Ui(
            turns=turns,
            place=store,
            host=host,
            port=port,
            logins=login,
            browser=not headless,
            starters=examples,
        ),
        ready=ready,
    )


_EXAMPLES = (
    ("Sales by month", "Sum the sales by month."),
    ("Open orders", "How many orders are open?"),
    ("Low stock", "Which items are low in stock?"),
)


def _turns(target: str, setup: Setup) -> TurnRunner:
    from mergepoint.session.turn_runner import TurnRunner
    from mergepoint.tree.target import resolve_target

    tree = resolve_target(target).tree
    return TurnRunner(tree, model=setup.model, budget=setup.budget, prices=setup.prices)


def _print_login(name: str) -> None:
    from mergepoint.apps.chainlit.logins import login_line
    from mergepoint.apps.cli.output import put

    password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    put(login_line(name, password))
