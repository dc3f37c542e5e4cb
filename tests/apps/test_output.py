"""Output: how text, counts and times are written."""

from __future__ import annotations

import pytest

from mergepoint.apps.cli.output import brief, clock, count, printable, put, put_prose


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
    assert printable("a\tb\nc\x1b[31m\x07\r\x9b") == "a\tb\nc\\x1b[31m\\x07\\r\\x9b"
    assert printable("ein Bild für später — 絵") == "ein Bild für später — 絵"


def test_a_brief_text_is_one_line() -> None:
    """Longer text ends with an ellipsis within the width."""
    assert brief("a\n  b", 10) == "a b"
    assert brief("abcdef", 4) == "abc…"


def test_a_pipe_gets_the_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Long lines and control codes are the reader's business; half characters are escaped."""
    text = "x " * 200 + "\x1b\ud800"
    put_prose(text)
    assert capsys.readouterr().out == "x " * 200 + "\x1b\\ud800\n"


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
