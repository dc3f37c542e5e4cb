"""Vocabulary: the words that blocks and recipes agree on, and who wrote one of them wrongly.

Conventions and no rules: whatever is not near to a known word is somebody's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mergepoint.tree.strict_yaml import load_file

FILE = Path(__file__).with_name("vocabulary.yaml")


class VocabularyWarning(UserWarning):
    """A name that is nearly a word of the vocabulary."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Meanings by word: values of `kind` and `status`, and names of props."""

    kinds: Mapping[str, str]
    assessment: Mapping[str, str]
    status: Mapping[str, str]
    provenance: Mapping[str, str]

    @property
    def props(self) -> Mapping[str, str]:
        """Give the names of props with their meanings."""
        return {**self.assessment, **self.provenance}


@lru_cache(maxsize=1)
def vocabulary() -> Vocabulary:
    """Give the vocabulary that comes along."""
    return Vocabulary(**load_file(FILE).value)


def misspelt(props: Mapping[str, Any]) -> tuple[str, ...]:
    """Say which names of props, kind and status are nearly words of the vocabulary."""
    known = vocabulary()
    found = [_near("prop", name, known.props) for name in props]
    for name, words in (("kind", known.kinds), ("status", known.status)):
        if isinstance(value := props.get(name), str):
            found.append(_near(name, value, words))
    return tuple(filter(None, found))


def misspelt_names(names: Iterable[str]) -> tuple[str, ...]:
    """Say which names of props are nearly words of the vocabulary."""
    return misspelt(dict.fromkeys(names))


@lru_cache(maxsize=4096)
def _near_word(word: str, known: tuple[str, ...]) -> str | None:
    if word in known:
        return None
    return next((other for other in known if _is_near(word, other)), None)


def _near(kind: str, word: str, known: Mapping[str, str]) -> str:
    near = _near_word(word, tuple(known))
    if near is None:
        return ""
    return f"{kind} {word!r} is not in the vocabulary; did you mean {near!r}?"


def _is_near(word: str, known: str) -> bool:
    """Say whether one slip leads from one to the other; two in words of eight letters and more.

    Short words and a first letter that differs are other words, and so is a plural.
    """
    if len(known) < 4 or word[:1] != known[:1] or word == f"{known}s" or known == f"{word}s":
        return False
    return slips(word, known) <= (2 if len(known) >= 8 else 1)


def slips(one: str, other: str) -> int:
    """Give how many letters were added, left out, changed or swapped with the next.

    The restricted edit distance of Damerau (1964) and Levenshtein (1966).
    """
    before: list[int] = []
    above = list(range(len(other) + 1))
    for row, letter in enumerate(one, start=1):
        here = [row]
        for column, wanted in enumerate(other, start=1):
            cost = min(above[column] + 1, here[-1] + 1, above[column - 1] + (letter != wanted))
            swapped = row > 1 and column > 1 and letter == other[column - 2]
            if swapped and one[row - 2] == wanted:
                cost = min(cost, before[column - 2] + 1)
            here.append(cost)
        before, above = above, here
    return above[-1]
