"""`mergepoint chat` and `ui`: chat with an agent in the terminal or in the browser."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

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
    "mergepoint ui --enqueue --sessions postgresql://postgres@localhost/runs",
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
    enqueue: Annotated[
        bool,
        option(
            "--enqueue",
            help="After a decision, 'mergepoint work' continues the turn. Its queue is in the "
            "database of --sessions (default: the variable MERGEPOINT_STORE).",
            panel=SERVER,
        ),
    ] = False,
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
    from mergepoint.session.session_store import sessions_at

    check_extra()
    changed = [
        known.names[0]
        for one, _, known in declared(AgentOptions)
        if getattr(options, one.name) != one.default
    ]
    if target is not None and changed:
        raise CommandError(f"{', '.join(changed)}: only for the agent. Remove TARGET or them.")
    queue = None
    if enqueue:
        from mergepoint.apps.cli.turn_queue import in_database, turn_queue

        options = in_database(options)
        queue = turn_queue(options, target)
    setup = new_setup(options)
    store = options.sessions
    # str() of a database masks its password.
    named = str(sessions_at(store)) if "://" in store else store

    def ready(address: str) -> None:
        if json:
            put_json_line({"address": address, "sessions": named})
            return
        then = ", and hands decided turns to its queue" if enqueue else ""
        tell(f"{address} shows the sessions in {named}{then}; Ctrl-C ends it")

    turns = setup.turns(target)
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
            queue=queue,
        ),
        ready=ready,
    )


_STARTERS = (
    ("Sales by region", "Which region sold most?"),
    ("Open orders", "How many orders are open?"),
    ("Stock by warehouse", "How much stock is in each warehouse?"),
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
