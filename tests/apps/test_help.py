"""What `--help` says, of every command that there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.apps.command import command
from typer.main import get_command

from mergepoint.agent.code_runner import code_runner
from mergepoint.apps.cli.agent_options import Runner
from mergepoint.apps.cli.app import app
from mergepoint.core.errors import SandboxMissing


def _commands(at: Any, *names: str) -> Iterator[tuple[str, ...]]:
    """Give the words of each command and each group below one."""
    yield names
    for name, below in getattr(at, "commands", {}).items():
        yield from _commands(below, *names, name)


COMMANDS = tuple(_commands(get_command(app)))


def test_all_commands_are_looked_at() -> None:
    """The walk below finds commands of the first and of the second level."""
    assert {(), ("chat",), ("session", "show"), ("recipe", "run")} <= set(COMMANDS)


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_help_says_what_goes_there_and_no_type(names: tuple[str, ...]) -> None:
    """What follows an option or stands for an argument is in capitals or a choice of words."""
    run = command(*names, "--help")
    assert run.code == 0
    usage, _, rest = run.out.partition("\n\n")
    assert "[[" not in usage
    assert [name for name in re.findall(r"<(\w[^\s>]*)", rest) if "|" not in name] == []
    lower = re.findall(r"^  (?:-\w, )?(?:--[\w-]+) ([a-z]\S*)", rest, re.MULTILINE)
    assert lower == []


def test_arguments_are_told_once_as_in_the_usage() -> None:
    """One that may be left out, or come several times, has one pair of brackets and one name."""
    usage = command("recipe", "run", "--help").out.partition("\n")[0]
    assert usage == "Usage: mergepoint recipe run [OPTIONS] {RECIPE} [ITEM]..."
    assert "\n  ITEM    Items, each a text.\n" in command("recipe", "run", "--help").out


def test_the_runners_that_are_offered_are_those_that_there_are() -> None:
    """Each is known to what makes runners, which knows of no other; a wrong one is told them."""
    with pytest.raises(ValueError, match="there are: ") as refused:
        code_runner("bash")
    assert str(refused.value).rpartition(": ")[2].split(", ") == list(Runner)
    for name in Runner:
        try:
            assert code_runner(name).name == name
        except SandboxMissing:
            continue
    for line in ("chat", "ui"):
        told = command(line, "--runner", "bash")
        assert told.code == 2
        assert all(name in told.err for name in Runner)
