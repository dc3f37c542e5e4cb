"""Vocabulary: the words, and who wrote one of them wrongly."""

from __future__ import annotations

import re

import pytest

from mergepoint.streams.provenance import misspelt, slips, vocabulary


def test_the_vocabulary_has_a_meaning_for_each_word() -> None:
    """All words have a meaning that is said, and the signals of control flow are among them."""
    known = vocabulary()
    for words in (known.kinds, known.assessment, known.status, known.provenance):
        assert all(isinstance(meaning, str) and meaning for meaning in words.values())
    assert {"candidate", "converged", "done", "stuck", "failed"} <= set(known.status)
    assert not set(known.assessment) & set(known.provenance)


def test_no_word_is_near_to_another() -> None:
    """The words themselves are never taken for slips of one another."""
    known = vocabulary()
    assert misspelt(dict.fromkeys(known.props)) == ()
    for name, words in (("kind", known.kinds), ("status", known.status)):
        assert [misspelt({name: word}) for word in words] == [()] * len(words)


@pytest.mark.parametrize(
    ("props", "problem"),
    [
        ({"scroe": 1}, "prop 'scroe' is not in the vocabulary; did you mean 'score'?"),
        ({"confidance": 1}, "did you mean 'confidence'?"),
        ({"group_siez": 1}, "did you mean 'group_size'?"),
        ({"status": "convergd"}, "status 'convergd' .* did you mean 'converged'?"),
        ({"kind": "anser"}, "kind 'anser' .* did you mean 'answer'?"),
    ],
)
def test_a_slip_of_the_pen_is_said(props: dict[str, object], problem: str) -> None:
    """A name that is one slip away from a word gives a warning that names it."""
    (said,) = misspelt(props)
    assert re.search(problem, said)


@pytest.mark.parametrize(
    "props",
    [
        {"temperature": 1, "my_own": 2, "scores": [1], "source": "x", "bank": 1, "ties": 1},
        {"status": "waiting", "kind": "poem"},
        {"status": 3, "kind": None},
    ],
)
def test_own_words_are_nobodys_business(props: dict[str, object]) -> None:
    """Names that are near to no word, plurals among them, and values of other types are let be."""
    assert misspelt(props) == ()


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [
        ("score", "score", 0),
        ("scroe", "score", 1),
        ("scor", "score", 1),
        ("", "abc", 3),
        ("ab", "ba", 1),
        ("kitten", "sitting", 3),
    ],
)
def test_slips_are_counted(one: str, other: str, count: int) -> None:
    """Letters added, left out, changed or swapped each count once, in both directions."""
    assert slips(one, other) == slips(other, one) == count
