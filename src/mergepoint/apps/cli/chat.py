"""`mergepoint chat`: chat with an agent that plans, writes programs, and runs them in a sandbox."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from mergepoint.apps.cli.completion import complete_sessions
from mergepoint.apps.cli.option_binding import option, words
from mergepoint.apps.cli.options import ChatOptions, Quiet, Traceback

EXAMPLES = (
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
    traceback: Traceback = False,
) -> None:
    """Chat with an agent. Answers go to stdout, everything else to stderr.

    The agent plans, shows the plan and each program before anything runs, runs programs in a
    sandbox, and answers. A session stores all of it. Lines from a pipe are messages, and answers
    to the agent's questions.
    """
    from mergepoint.apps.cli.chat_loop import converse, new_setup
    from mergepoint.apps.cli.invocation import has_key, with_environment

    options = with_environment(options)
    shown = replace(
        options,
        base_url=tuple("URL" if has_key(one) else one for one in options.base_url),
        sessions="URL" if has_key(options.sessions) else options.sessions,
    )
    setup = replace(
        new_setup(options), resume_words=tuple(words(shown)), quiet=quiet, traceback=traceback
    )
    raise typer.Exit(converse(setup, resume=resume, messages=message))
