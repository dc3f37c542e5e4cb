"""Text without lone surrogates."""

from __future__ import annotations

import pytest

from mergepoint.core.text import clean, clean_text

HALF, WHOLE = "\ud83d", "\N{GRINNING FACE}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        (f"a {WHOLE}", f"a {WHOLE}"),
        (f"a {HALF}", "a \ufffd"),
        ("\ude00 b", "\ufffd b"),
        ("\ud83d\ude00", WHOLE),
        (f"{HALF}{HALF} ü", "\ufffd\ufffd ü"),
    ],
)
def test_a_text_can_be_encoded_afterwards(text: str, expected: str) -> None:
    """Pairs are joined, a lone half becomes the replacement character, all else stays."""
    assert clean_text(text) == expected
    assert clean_text(text).encode().decode() == expected


def test_data_is_cleaned_at_every_depth() -> None:
    """Keys and values in lists, tuples and mappings are cleaned; other values stay."""
    thing = object()
    given = {f"k{HALF}": [HALF, (1, {"x": f"a{HALF}"})], "thing": thing}
    assert clean(given) == {"k\ufffd": ["\ufffd", (1, {"x": "a\ufffd"})], "thing": thing}
    assert given[f"k{HALF}"] == [HALF, (1, {"x": f"a{HALF}"})]


def test_what_is_clean_stays_the_same_object() -> None:
    """Nothing is copied where nothing changes."""
    given = {"a": ["ü", {"b": ("c", 1.5, None)}]}
    assert clean(given) is given
