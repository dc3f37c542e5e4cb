"""Output: how text, counts and times are written."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from tests.apps.command import command

from mergepoint.apps.cli.output import (
    brief,
    clock,
    count,
    printable,
    put,
    put_prose,
    stderr_console,
    tell,
    tell_fact,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0, "0.00s"),
        (9.99, "9.99s"),
        (9.996, "10.0s"),
        (59.94, "59.9s"),
        (59.96, "1m00s"),
        (245, "4m05s"),
        (3720, "1h02m"),
    ],
)
def test_times_are_short(seconds: float | None, text: str) -> None:
    """Seconds, then minutes, then hours."""
    assert clock(seconds) == text


def test_counts_have_a_number() -> None:
    """One is singular, all else plural."""
    assert [count(number, "call") for number in (0, 1, 2, 1000)] == [
        "0 calls",
        "1 call",
        "2 calls",
        "1,000 calls",
    ]


def test_control_codes_are_made_visible() -> None:
    """Lines and tabs stay, what could move a terminal's cursor does not."""
    assert printable("a\tb\nc\x1b[31m\x07\r\x9b") == "a\tb\nc\\x1b[31m\\x07\\x0d\\x9b"
    assert printable("a\r\nb\u202ec\u2066d\ud800") == "a\nb\\u202ec\\u2066d\\ud800"
    assert printable("ein Bild für später — 絵") == "ein Bild für später — 絵"


def test_a_brief_text_is_one_line() -> None:
    """Longer text ends with an ellipsis within the width."""
    assert brief("a\n  b", 10) == "a b"
    assert brief("abcdef", 4) == "abc…"


def test_a_pipe_gets_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Long lines are the reader's business, control codes are escaped there too."""
    text = "x " * 200 + "\x1b\u202e\ud800"
    put_prose(text)
    assert capsys.readouterr().out == "x " * 200 + "\\x1b\\u202e\\ud800\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_whatever_a_console_is_given_is_safe(
    terminal: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Text, tables and code with control codes in them reach stderr as escapes."""
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    if terminal:
        monkeypatch.setattr(stream, "isatty", lambda: True)
    hostile = "a\x1b]0;owned\x07\x9b31mb\u202ec"
    table = Table.grid()
    table.add_row(hostile)
    console = stderr_console()
    assert console.is_terminal == terminal
    for one in (Text(hostile), table, Syntax(hostile, "python"), hostile):
        console.print(one)
    tell_fact(hostile, hostile)
    said = stream.getvalue()
    assert not {"\x07", "\x9b", "\u202e"} & set(said)
    assert "\x1b]" not in said
    assert said.count("\\u202e") >= 4


def test_a_terminal_gets_whole_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines end between words, paragraphs stay, and control codes are visible."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    put_prose("one two three four five six\n\n  indented\x1b")
    assert capsys.readouterr().out == "one two three four\nfive six\n\n  indented\\x1b\n"
    put("a long line that is no prose and stays")
    assert capsys.readouterr().out.count("\n") == 1


HOSTILE = "rivers\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\u2066\r!"
TREE = f"""\
from mergepoint import Block, Call, Gate, Step

HOSTILE = {HOSTILE!r}


def say(ctx):
    return HOSTILE


def fail(ctx):
    raise ValueError(HOSTILE)


tree = Block(
    [
        Step("Say something.", name="draft"),
        Gate(Call(say, name="say", capture_key="said"), question=HOSTILE),
    ],
    name="hostile",
    inputs=("topic",),
)
failing = Block([Step("Say something.", name="draft"), Call(fail, name="fail")], name="failing")
"""


def test_no_command_writes_what_could_steer_a_terminal(here: Path) -> None:
    """Inputs, answers, questions and errors come out of every command with their codes escaped."""
    (here / "hostile.py").write_text(TREE, encoding="utf-8")
    gate = ("--answer", "**=approve")
    said = [
        command("run", "hostile.py:tree", "-i", f"topic={HOSTILE}", "-m", HOSTILE),
        command("runs", "list"),
        command("show", "last"),
        command("show", "last", "hostile/draft"),
        command("resume", "last", *gate),
        command("show", "last"),
        command("run", "hostile.py:failing"),
        command("run", "hostile.py:failing", "--traceback"),
        command("show", "last"),
        command("run", "best_of_n", HOSTILE, "--why", "*", "*"),
        command("run", f"no-{HOSTILE}"),
        command("chat", "-m", HOSTILE, "--ask", "nothing", "--runner", "unsafe_subprocess"),
        command("sessions", "show", "last"),
    ]
    for number, one in enumerate(said):
        steering = set("\x1b\x07\x9b\u202e\u2066\r") & set(one.out + one.err)
        assert not steering, (number, steering, one)
    assert sum("\\x1b" in one.out + one.err for one in said) > 6


@pytest.mark.parametrize("write", [tell, lambda text: tell_fact("look", text)])
def test_a_command_is_not_broken_on_a_terminal(
    write: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line with a command can be copied whole, however long; others end between words."""
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setenv("COLUMNS", "40")
    words = " ".join(f"word{number}" for number in range(12))
    write(f"resume: mergepoint resume {words}")
    write(f"pip install {words}")
    assert len(shown.getvalue().splitlines()) == 2
    write(words)
    assert len(shown.getvalue().splitlines()) > 3
