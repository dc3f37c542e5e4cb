"""`mergepoint resume`: go on with a run, as it was started."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from mergepoint.apps.cli.arguments import JournalArgument
from mergepoint.apps.cli.complete import graphs
from mergepoint.apps.cli.errors import CommandError
from mergepoint.apps.cli.options import (
    AnswerOption,
    BaseUrlOption,
    BudgetOption,
    JsonOption,
    OutOption,
    PriceOption,
    QuietOption,
    StoreOption,
    TracebackOption,
    YesOption,
)

if TYPE_CHECKING:
    from mergepoint.apps.cli.command import Command
    from mergepoint.apps.cli.home import Home

EXAMPLES = (
    "mergepoint resume last",
    "mergepoint resume 20261120-110502-1f2e3d --yes --json | jq -r .text",
    "mergepoint resume last my.py:tree --model openai:gpt-5-mini",
    "mergepoint resume last --budget usd=1.50",
    "mergepoint resume last --answer plan/approval=approve",
)


def resume(
    run: JournalArgument,
    target: Annotated[
        str | None,
        typer.Argument(
            help="Where the tree is now. Left out: as the run was started.",
            metavar="TARGET",
            autocompletion=graphs,
            show_default=False,
        ),
    ] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="PROVIDER:NAME",
            help="Who answers. Left out: as the run was started.",
            show_default=False,
        ),
    ] = None,
    base_url: BaseUrlOption = None,
    budget: BudgetOption = [],  # noqa: B006  (typer makes a new list for each call)
    price: PriceOption = [],  # noqa: B006
    answer: AnswerOption = [],  # noqa: B006
    yes: YesOption = False,
    out: OutOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Go on with a run that did not end; what is on record is not called again.

    Target, model and options are those that the run was started with; what is given here wins. A
    budget is for the whole run, with what it has used already.
    """
    from mergepoint.apps.cli.homes import Homes
    from mergepoint.apps.cli.run import job_of, run_job

    homes = Homes.at(out, store)
    home = homes.find_journal(run)
    command = _command(home, target=target, model=model, base_url=base_url)
    command = replace(
        command,
        budget=tuple(budget) or command.budget,
        prices=tuple(price) or command.prices,
    )
    job = job_of(command, homes, quiet=quiet, origin={"resume": home}, answers=answer)
    run_job(job, yes=yes, json=json, quiet=quiet)


def _command(home: Home, *, target: str | None, model: str | None, base_url: str | None) -> Command:
    """Give what the run was started with, changed by what was given now."""
    from mergepoint.apps.cli.command import Command, read_command

    command = read_command(home)
    if command is None:
        if target is None or model is None:
            raise CommandError(
                f"what {home.place} was started with is not on record, as of a run from Python; "
                f"say how it goes on: mergepoint resume {home.name} TARGET --model PROVIDER:NAME"
            )
        return Command(target=target, model=model, base_url=base_url)
    missing = [name for name in command.left_out if name != "--base-url" or base_url is None]
    if missing:
        raise CommandError(
            f"{', '.join(missing)}: it seemed to hold a key and was not written down; "
            + (
                "give it again"
                if missing == ["--base-url"]
                else f"give all again, by mergepoint run TARGET ... --resume {home.name}"
            )
        )
    if model is not None and model != command.model:
        command = replace(command, model=model, base_url=None)  # the address was the other's
    return replace(command, target=target or command.target, base_url=base_url or command.base_url)
