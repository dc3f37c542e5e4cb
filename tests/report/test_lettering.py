"""Text is measured, cut and wrapped in cells, and made safe to show."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mergepoint.core.text import cells, clip, shown, wrap


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("größe 日本語", "größe 日本語"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\u202eb", "a\\u202eb"),
        ("\ud800", "\\ud800"),
        ("\ufffe", "\\ufffe"),
        ("\U0001fffe", "\\U0001fffe"),
        ("line\u2028end", "line\\u2028end"),
        ("👩‍👧", "👩‍👧"),
    ],
)
def test_what_cannot_be_seen_is_written_as_an_escape(text: str, expected: str) -> None:
    """Control characters, halves of pairs and turns of direction show; letters stay."""
    assert shown(text) == expected


def test_a_line_break_is_kept_where_it_is_wanted() -> None:
    """Characters in `keep` are not escaped."""
    assert shown("a\n\tb", keep="\n") == "a\n\\x09b"


@pytest.mark.parametrize(("text", "width"), [("abc", 3), ("日本", 4), ("e\u0301", 1), ("", 0)])
def test_cells_count_what_is_drawn(text: str, width: int) -> None:
    """Wide characters take two cells, combining marks none."""
    assert cells(text) == width


@pytest.mark.parametrize(
    ("text", "expected"), [("abcd", "abcd"), ("abcde", "abc…"), ("日本語", "日…")]
)
def test_clip_cuts_to_a_width(text: str, expected: str) -> None:
    """A text that is too wide ends in an ellipsis and fits."""
    assert clip(text, 4) == expected


def test_clip_counts_marks_too() -> None:
    """A name of endless combining marks does not make a drawing endless."""
    assert len(clip("e" + "\u0301" * 10_000, 4)) <= 17


def test_wrap_breaks_at_spaces_and_inside_of_long_words() -> None:
    """Indents and double spaces stay, lines are filled, a word without end is cut."""
    assert wrap("  two  words\n\nabcdefghij k", 8) == ["  two ", "words", "", "abcdefgh", "ij k"]


@given(text=st.text(alphabet="ab 日\n\u0301", max_size=60), width=st.integers(2, 12))
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_wrapped_lines_fit_and_lose_no_letter(text: str, width: int) -> None:
    """No line is wider than asked for, and all that is not white comes out again in order."""
    lines = wrap(text, width)
    assert max(map(cells, lines)) <= width
    assert "".join("".join(lines).split()) == "".join(text.split())
