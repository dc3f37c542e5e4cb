"""Origin: the run that another one goes on with, or takes its answers from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mergepoint.apps.cli.errors import CommandError

if TYPE_CHECKING:
    from mergepoint.apps.cli.home import Home
    from mergepoint.apps.cli.homes import Homes


def origin_of(
    homes: Homes, *, resume: str | None, reuse: str | None, replay: str | None
) -> dict[str, Home]:
    """Give the one that was asked for, by the name of its option.

    Raises CommandError for more than one, and for a run without a journal.
    """
    asked = {"resume": resume, "reuse": reuse, "replay": replay}
    given = {name: run for name, run in asked.items() if run is not None}
    if len(given) > 1:
        options = " and ".join(f"--{name}" for name in given)
        raise CommandError(f"{options} exclude each other; give one")
    return {name: homes.find_journal(run) for name, run in given.items()}


def check_resumed(inputs: Mapping[str, Any], messages: Sequence[str], run_id: str | None) -> None:
    """Refuse what a run that goes on has already. Raises CommandError."""
    if inputs or messages or run_id is not None:
        raise CommandError(
            "a resumed run has its inputs, messages and id already; leave them out, or begin a "
            "new run with --reuse"
        )
