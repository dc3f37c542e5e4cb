"""`mergepoint ui`: sessions in the browser, with Chainlit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mergepoint.apps.cli.completion import complete_workflows
from mergepoint.apps.cli.errors import CommandError
from mergepoint.apps.cli.option_binding import SERVER, declared, option
from mergepoint.apps.cli.options import AgentOptions, ChatOptions, Json, Traceback

if TYPE_CHECKING:
    from mergepoint.apps.cli.chat_loop import ChatSetup
    from mergepoint.session.turn_runner import TurnRunner

EXAMPLES = (
    "mergepoint ui",
    "mergepoint ui --model openai:gpt-5-mini --sessions sqlite:///sessions.db",
    "mergepoint ui my_tree.py:tree --port 0 --headless",
    "mergepoint ui --new-login ada >> logins.txt",
    "mergepoint ui --host 0.0.0.0 --login logins.txt",
)


def ui(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="Tree that answers, by name or FILE.py:NAME. Default: the agent.",
            autocompletion=complete_workflows,
            show_default=False,
        ),
    ] = None,
    *,
    options: ChatOptions,
    host: Annotated[
        str, option("--host", metavar="ADDRESS", help="Address to listen at.", panel=SERVER)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        option(
            "--port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Port to listen at; 0 for any free port.",
            panel=SERVER,
        ),
    ] = 8000,
    headless: Annotated[
        bool,
        option(
            "--headless/--browser",
            help="Only serve, without opening the page in a browser.",
            panel=SERVER,
        ),
    ] = False,
    login: Annotated[
        Path | None,
        option(
            "--login",
            metavar="FILE",
            help="File of users who may log in, with their passwords.",
            default="everybody on this machine, without a form",
            panel=SERVER,
        ),
    ] = None,
    new_login: Annotated[
        str | None,
        option(
            "--new-login",
            metavar="NAME",
            help="Ask for a password, print the line for the file of --login, and exit.",
            panel=SERVER,
        ),
    ] = None,
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Chat with the agent in the browser, with plans to approve and a history to resume.

    Serves until Ctrl-C, which ends it with exit code 0.
    """
    if new_login is not None:
        _print_login(new_login)
        return
    from mergepoint.apps.chainlit.web_server import Ui, check_extra, serve
    from mergepoint.apps.cli.chat_loop import new_setup
    from mergepoint.apps.cli.output import put_json_line, tell

    check_extra()
    changed = [
        known.names[0]
        for one, _, known in declared(AgentOptions)
        if getattr(options, one.name) != one.default
    ]
    if target is not None and changed:
        raise CommandError(f"{', '.join(changed)}: only for the agent. Remove TARGET or them.")
    setup = new_setup(options)
    place = options.sessions

    def ready(address: str) -> None:
        if json:
            put_json_line({"address": address, "sessions": place})
        else:
            tell(f"{address} shows the sessions in {place}; Ctrl-C ends it")

    turns = setup.turns() if target is None else _turns(target, setup)
    examples = _EXAMPLES if target is None and not options.skills else ()
    serve(
        Ui(
            turns=turns,
            place=place,
            host=host,
            port=port,
            logins=login,
            browser=not headless,
            starters=examples,
        ),
        ready=ready,
    )


_EXAMPLES = (
    ("Sales by region", "Which region sold most?"),
    ("Open orders", "How many orders are open?"),
    ("Stock by warehouse", "How much stock is in each warehouse?"),
)


def _turns(target: str, setup: ChatSetup) -> TurnRunner:
    """Return the runner of a tree that answers. Raises CommandError if it needs inputs."""
    from mergepoint.session.turn_runner import TurnRunner
    from mergepoint.targets import find_target
    from mergepoint.tree.nodes import REQUIRED

    tree = find_target(target).tree
    if tree is None:
        raise CommandError(f"{target!r} is a recipe, and a chat needs a tree.")
    needed = [one.name for one in getattr(tree, "inputs", ()) if one.default is REQUIRED]
    if needed:
        raise CommandError(
            f"{target} needs the inputs {', '.join(map(repr, needed))}, and a page has only "
            "messages. Add defaults to the inputs, or use mergepoint run."
        )
    return TurnRunner(
        tree,
        model=setup.model,
        settings=setup.settings,
        budget=setup.budget,
        prices=setup.prices,
    )


def _print_login(name: str) -> None:
    from mergepoint.apps.chainlit.logins import login_line
    from mergepoint.apps.cli.output import put

    put(login_line(name, _new_password()))


def _new_password() -> str:
    """Return a password: asked for twice on a terminal, or a line from a pipe."""
    if sys.stdin.isatty():
        asked: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return asked
    if not (password := sys.stdin.readline().rstrip("\r\n")):
        raise CommandError(
            "--new-login needs a password. Run it on a terminal, or pass the password through a "
            "pipe."
        )
    return password
