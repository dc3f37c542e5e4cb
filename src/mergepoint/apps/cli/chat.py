"""`mergepoint chat` and `ui`: chat with an agent in the terminal or in the browser."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mergepoint.apps.cli.framework import SERVER, TRACEBACK, argument, declared, option, words
from mergepoint.apps.cli.options import (
    AgentOptions,
    ChatOptions,
    Json,
    Quiet,
    complete_sessions,
    complete_workflows,
)
from mergepoint.apps.cli.output import CommandError, put, put_json_line, tell

if TYPE_CHECKING:
    from mergepoint.apps.cli.chat_loop import ChatSetup
    from mergepoint.session.turn_runner import TurnRunner


CHAT_EXAMPLES = (
    "mergepoint chat",
    "mergepoint chat --model openai:gpt-5-mini --file report.csv",
    "mergepoint chat --resume last",
    "mergepoint chat -m 'Sum the sales by month.' --ask nothing",
    "printf 'Sum the sales.\\na\\na\\n' | mergepoint chat",
)


def chat(
    *,
    resume: Annotated[
        str | None,
        option(
            "--resume",
            metavar="ID",
            help="Session to resume, or 'last' for the most recent one.",
            default="a new session",
            completion=complete_sessions,
        ),
    ] = None,
    message: Annotated[
        tuple[str, ...],
        option("--message", "-m", metavar="TEXT", help="Send TEXT, print the answer, and exit."),
    ] = (),
    options: ChatOptions,
    quiet: Quiet = False,
    traceback: Annotated[bool, TRACEBACK] = False,
) -> None:
    """Chat with an agent. Answers go to stdout, everything else to stderr.

    The agent plans, shows the plan and each program before anything runs, runs programs in a
    sandbox, and answers. A session stores all of it. Lines from a pipe are messages, and answers
    to the agent's questions.
    """
    from mergepoint.apps.cli.chat_loop import converse, new_setup
    from mergepoint.apps.cli.invocation import has_key, with_environment

    options = with_environment(options)
    # These options are printed, and recorded with each turn: they must not contain a key.
    shown = replace(
        options,
        base_url=tuple("URL" if has_key(one) else one for one in options.base_url),
        sessions="URL" if has_key(options.sessions) else options.sessions,
    )
    setup = replace(
        new_setup(options), resume_words=tuple(words(shown)), quiet=quiet, traceback=traceback
    )
    raise typer.Exit(converse(setup, resume=resume, messages=message))


UI_EXAMPLES = (
    "mergepoint ui",
    "mergepoint ui --model openai:gpt-5-mini --sessions sqlite:///sessions.db",
    "mergepoint ui my_tree.py:tree --port 0 --headless",
    "mergepoint ui --new-login ada >> logins.txt",
    "mergepoint ui --host 0.0.0.0 --login logins.txt",
)


def ui(
    target: Annotated[
        str | None,
        argument(
            "TARGET",
            "Tree that answers, by name or FILE.py:NAME. Default: the agent.",
            complete_workflows,
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
) -> None:
    """Chat with the agent in the browser, with plans to approve and a history to resume.

    Serves until Ctrl-C, which ends it with exit code 0.
    """
    if new_login is not None:
        from mergepoint.apps.chainlit.security import login_line

        put(login_line(new_login, _new_password()))
        return
    from mergepoint.apps.chainlit.web_server import UiSettings, check_extra, serve
    from mergepoint.apps.cli.chat_loop import new_setup

    check_extra()
    changed = [
        known.names[0]
        for one, _, known in declared(AgentOptions)
        if getattr(options, one.name) != one.default
    ]
    if target is not None and changed:
        raise CommandError(f"{', '.join(changed)}: only for the agent. Remove TARGET or them.")
    setup = new_setup(options)
    store = options.sessions

    def ready(address: str) -> None:
        if json:
            put_json_line({"address": address, "sessions": store})
        else:
            tell(f"{address} shows the sessions in {store}; Ctrl-C ends it")

    turns = setup.turns() if target is None else _turns(target, setup)
    starters = _STARTERS if target is None and not options.skills else ()
    serve(
        UiSettings(
            turns=turns,
            store=store,
            host=host,
            port=port,
            logins=login,
            browser=not headless,
            starters=starters,
        ),
        ready=ready,
    )


_STARTERS = (
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


def _new_password() -> str:
    """Return a password: asked for twice on a terminal, or a line from a pipe."""
    if sys.stdin.isatty():
        asked: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return asked
    # Only the line end is cut: blanks can be part of the password.
    if not (password := sys.stdin.readline().rstrip("\r\n")):
        raise CommandError(
            "--new-login needs a password. Run it on a terminal, or pass the password through a "
            "pipe."
        )
    return password
