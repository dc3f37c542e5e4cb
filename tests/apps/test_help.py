"""What `--help` says, of every command that there is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import typer
from tests.apps.command import command
from typer.main import get_command
from typer.testing import CliRunner

from mergepoint.apps.cli.app import app
from mergepoint.apps.cli.framework import with_options, words
from mergepoint.apps.cli.options import RecordedOptions, Runner
from mergepoint.core.errors import SandboxMissing
from mergepoint.sandbox.backends import code_runner


def _commands(at: Any, *names: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command and each group below one."""
    yield names
    for name, below in getattr(at, "commands", {}).items():
        yield from _commands(below, *names, name)


COMMANDS = tuple(_commands(get_command(app)))


def test_all_commands_are_looked_at() -> None:
    """The walk below finds commands of the first and of the second level."""
    assert {(), ("chat",), ("sessions", "show"), ("run",)} <= set(COMMANDS)


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
    usage = command("run", "--help").out.partition("\n")[0]
    assert usage == "Usage: mergepoint run [OPTIONS] {TARGET} [ITEM]..."
    assert "\n  ITEM    Items of a recipe.\n" in command("run", "--help").out


def test_the_runners_that_are_offered_are_those_that_there_are() -> None:
    """Each is known to what makes runners, which knows of no other; a wrong one is told them."""
    with pytest.raises(ValueError, match="known runners: ") as refused:
        code_runner("bash")
    assert str(refused.value).rpartition(": ")[2].split(", ") == list(get_args(Runner))
    for name in get_args(Runner):
        try:
            assert code_runner(name).name == name
        except SandboxMissing:
            continue
    for line in ("chat", "ui"):
        told = command(line, "--runner", "bash")
        assert told.code == 2
        assert all(name in told.err for name in get_args(Runner))


@pytest.mark.parametrize("names", [("run",), ("resume",), ("chat",), ("ui",), ("demo",)])
def test_help_has_the_common_options_and_help_all_the_others(names: tuple[str, ...]) -> None:
    """The common options fit on a screen; the others are listed in sections on request."""
    short, whole = command(*names, "--help").out, command(*names, "--help-all").out
    assert "\n  --base-url" not in short
    assert "\nModel options:\n  --base-url" in whole
    assert len(short.partition("\n\n  Examples:")[0].splitlines()) <= 40
    assert all(line in whole for line in short.splitlines() if line.startswith("  -"))


def test_exit_codes_are_in_the_help_of_the_whole_command_only() -> None:
    """They are listed once, and not below every command."""
    assert "  4    The run waits for a decision at a gate.\n" in command("--help").out
    assert "Exit codes" not in command("run", "--help").out


def test_an_option_that_is_set_is_written_back() -> None:
    """Every recorded option has words that are read as the same value."""
    options = RecordedOptions(
        model="openai:m",
        temperature=0.0,
        max_tokens=7,
        set=("a:prompt=b c", "d:n=1"),
        parallel=False,
        form="fused",
        blocks=("my blocks.py",),
        budget=("usd=0.5",),
        wanted=3,
    )
    found: list[RecordedOptions] = []

    def keep(*, options: RecordedOptions) -> None:
        found.append(options)

    one = typer.Typer()
    one.command()(with_options(keep))
    line = " ".join(words(options))
    assert CliRunner().invoke(one, shlex.split(line)).exit_code == 0
    assert found == [options]
    assert list(words(RecordedOptions())) == []
