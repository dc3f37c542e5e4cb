"""Texts with lists in them, as a page shows them."""

from __future__ import annotations

import pytest

from mergepoint.offline.language import apart


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Sales:\n- a: 1\n- b: 2\nTotal: 3", "Sales:\n- a: 1\n- b: 2\n\nTotal: 3"),
        ("1. One.\n2. Two.\nChoice: 2", "1. One.\n2. Two.\n\nChoice: 2"),
        ("- a\n  more of a\nEnd\nhere", "- a\n  more of a\n\nEnd\nhere"),
        ("Issues:\n- a\nEdits:\n- b", "Issues:\n- a\n\nEdits:\n- b"),
        ("- a\n\nEnd", "- a\n\nEnd"),
        ("- a\n- b\n", "- a\n- b\n"),
        ("-5 degrees\nand 2.5 more\nhere", "-5 degrees\nand 2.5 more\nhere"),
        ("", ""),
    ],
)
def test_what_follows_a_list_is_no_part_of_it(text: str, shown: str) -> None:
    """An empty line ends a list, one that is there is enough, and other lines stay as they are."""
    assert apart(text) == shown
    assert apart(shown) == shown
